"""Does a pretrained encoder need its attention to learn when it is fine-tuned? Real SST-2, every arm tuned alike.

    oelm prepare --task sst2 --from FOLDER     GLUE's files to data/sst2; left out, they come from the hub
    oelm run studies/sst2.py                   54 runs of about 3 minutes, one thread each, more if the grid grows

The small pretrained encoder `minilm` on 4,000 sentences, tuned on held-out training sentences, reported on GLUE's dev
set once. `frozen-as-is` says whether orthogonalising matters, `orthogonal-from-current-trained` is what the published
BERT baseline really was, and the two arms from scratch part pretraining from classification, which the published
comparison with GPT confounds.
"""

from oelm import Arm, ExamplesSpec, ForeignSpec, RunSpec, Study, TrainSpec, named_method

PRETRAINED = (
    "baseline",
    "orthogonal-from-current-trained",
    "oelm-from-current",
    "oelm-freeze",
    "oelm-random",
    "oelm-random-from-current",
    "frozen-as-is",
)
SCRATCH = tuple(
    Arm(name=f"scratch-{method}", method=named_method(method), model={"pretrained": False})
    for method in ("baseline", "oelm-freeze")
)

study = Study(
    name="sst2",
    question="Does a pretrained encoder need its queries and keys to learn when it is fine-tuned on SST-2?",
    base=RunSpec(
        model=ForeignSpec(name="minilm", labels=2),
        data=ExamplesSpec(corpus="sst2", rows=4000),
        train=TrainSpec(
            epochs=2,
            batch_size=32,
            learning_rate=1e-4,
            warmup_steps=25,
            decay="linear",
            eval_every="epoch",
            eval_tokens=16_384,
        ),
    ),
    arms=(*PRETRAINED, *SCRATCH),
    tuned={"train.learning_rate": (5e-5, 1.5e-4, 4.5e-4)},
    tuning_seeds=(100,),
    seeds=(0, 1, 2),
)
