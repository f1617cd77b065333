"""Does a pretrained encoder need its attention to learn when it is fine-tuned? Real SST-2, every arm tuned alike.

    oelm prepare --task sst2 --from FOLDER     store GLUE's files in data/sst2; otherwise they come from the hub
    oelm run studies/sst2.py                   48 runs of 3 to 4 minutes, one thread each, more if the grid grows
    oelm run studies/sst2.py --scale scratch   12 more: the same encoder from scratch, frozen and not

The small pretrained encoder `minilm` on 4,000 sentences, tuned on held-out training sentences and reported once on
GLUE's dev set. `frozen-as-is` against `baseline` is freezing alone. `oelm-random`, `oelm-random-matched` and
`oelm-freeze` are new draws that differ in scale, then in orthogonality. `oelm-random-from-current` and
`oelm-from-current` keep the row spaces of the pretrained weights. `orthogonal-from-current-trained` is what the
published BERT baseline really was. From scratch, the frozen arm has its own baseline. This separates pretraining from
classification, which the published comparison with GPT confounds.
"""

from oelm import ExamplesSpec, HuggingFaceSpec, RunSpec, Study, TrainSpec


def fine_tuning(name: str, question: str, arms: tuple[str, ...], *, pretrained: bool) -> Study:
    """Return the study of one start of the encoder."""
    return Study(
        name=name,
        question=question,
        base=RunSpec(
            model=HuggingFaceSpec(name="minilm", labels=2, pretrained=pretrained),
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
        arms=arms,
        tuned={"train.learning_rate": (5e-5, 1.5e-4, 4.5e-4)},
        tuning_seeds=(100,),
        seeds=(0, 1, 2),
    )


study = fine_tuning(
    "sst2",
    "Does a pretrained encoder need its queries and keys to learn when it is fine-tuned on SST-2?",
    (
        "baseline",
        "orthogonal-from-current-trained",
        "oelm-from-current",
        "oelm-freeze",
        "oelm-random",
        "oelm-random-matched",
        "oelm-random-from-current",
        "frozen-as-is",
    ),
    pretrained=True,
)
scales = {
    "scratch": fine_tuning(
        "sst2-scratch",
        "Does an encoder that nobody has trained before need its queries and keys to learn SST-2?",
        ("baseline", "oelm-freeze"),
        pretrained=False,
    )
}
