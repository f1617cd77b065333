"""The main job: what does freezing Q and K cost a small GPT?

    oelm run studies/demo.py        about 5 minutes on 2 cores, no GPU, no network

Three arms, two seeds, a mini GPT on the embedded stories. Expected: the baseline a little below oelm-freeze, far
below oelm-random, and above the floor. Two seeds and one learning rate show how the instrument works; they are not
evidence. Whether `oelm-random` is worse by its scale or by not being orthogonal, studies/fair.py asks.
"""

from oelm import DataSpec, RunSpec, Study, TrainSpec
from oelm.spec.model import named_size

study = Study(
    name="demo",
    question="What does freezing Q and K cost a mini GPT on stories?",
    base=RunSpec(
        model=named_size("mini"),
        data=DataSpec(corpus="stories", vocab_size=512, tokens=1_000_000),
        train=TrainSpec(
            steps=800,
            batch_size=8,
            learning_rate=2e-3,
            warmup_steps=80,
            eval_every=80,
            eval_tokens=16_384,
            checkpoint_every=400,
        ),
    ),
    arms=("baseline", "oelm-freeze", "oelm-random"),
    seeds=(0, 1),
)
