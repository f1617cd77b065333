"""The demo: a study of what freezing Q and K costs a small GPT, with an arm that meets 5 % and one that does not.

    oelm demo        at most 4 minutes on 2 quiet cores, without GPU and network

Three arms and three seeds of a mini GPT on the embedded stories. Expected verdicts: `oelm-freeze`, plain frozen Q and
K, does not meet the margin; `oelm-fast`, frozen Q and K with trained position features, meets it. One learning rate
and a short training show how the tool works; they are not evidence. `oelm new study NAME` writes a study to change.
"""

from oelm.spec.run import DataSpec, RunSpec, TrainSpec, named_size
from oelm.spec.study import Study

study = Study(
    name="demo",
    question="What does freezing Q and K cost a mini GPT on stories?",
    base=RunSpec(
        model=named_size("mini"),
        data=DataSpec(corpus="stories", vocab_size=512, tokens=500_000),
        train=TrainSpec(
            steps=240,
            batch_size=8,
            learning_rate=4e-3,
            warmup_steps=24,
            eval_every=80,
            eval_tokens=16_384,
            checkpoint_every=240,
        ),
    ),
    arms=("baseline", "oelm-freeze", "oelm-fast"),
    seeds=(0, 1, 2),
)
