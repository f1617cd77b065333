"""How much of the value of content does attention keep when all of Q and K is frozen?

    (prepare the corpora first, as described in studies/fair.py; the stories need no preparation; for `larger` also
     oelm prepare sotu --from speeches.txt --vocab-size 2048)
    oelm run studies/content.py --scale speeches    3 core-hours: the small regime of studies/gap.py
    oelm run studies/content.py --scale imdb        the same on film reviews
    oelm run studies/content.py --scale stories     the same on the embedded stories, which have to be read by content
    oelm run studies/content.py --scale tinystories 1 core-hour: a part of TinyStories, where content is worth more
    oelm run studies/content.py --scale larger      2 core-hours: width 128, 2048 entries, context 256, 6.1M tokens
    oelm run studies/content.py --scale rates       2 core-hours: the same, each arm tuned at that size
    oelm run studies/content.py                     the same question at the published size, on GPUs

Position features give every arm the same trained function of distance, so the arms differ in content only:

    T  baseline+features    Q and K trained
    P  position-only        no Q and K; attention depends on positions alone
    F  the frozen arms      they keep 1 - (F - T) / (P - T) of the value of content, in log perplexity

On real text of this size content is worth a few percent, so a margin of 5 % decides little. `stories` keeps the model
and the training and changes the text only: who has which thing can be known from the words of the story alone. It asks
whether the answer holds where content matters. The text is generated, so it says nothing about the size of the effect
on real text.

The plain baseline, without features, is the reference of every verdict. Each arm is tuned on the same grid of learning
rates (validation split, its own seed) and confirmed with three new seeds on test.

`tinystories` is a text of the published study: the first 2 MiB of its training file (sha256 5352b299...), read four
times. Names and things recur within a story, so content is worth several times as much as on the other texts. Its
regime was chosen by T and P alone, on one seed and validation (LOG.md, 2026-11-19). The published method and its
Gaussian control are arms there, too:

    oelm prepare tinystories-part --from train.part.txt --documents stories --vocab-size 2048

`larger` contains the runs of `speeches` as its small size and takes its learning rates over from them, each arm its
own best one, by the rule of studies/scaling.py (they fall with the inverse square root of the width). That rate was too
high for T (LOG.md, 2026-11-19), so `rates` tunes the larger size itself; it shares the runs at equal rates, and leaves
out the low-rank residual, which studies/scaling.py has at several sizes. Both are trained in bf16, all arms alike,
which halves the time on a CPU with native bf16; on others it is slow, so run them there with
`--base.train.precision fp32` in a study of its own.
"""

from typing import Any

from oelm import DataSpec, RunSpec, Study, TrainSpec
from oelm.spec.run import GPTSpec, named_size

QUESTION = "How much of what content is worth do frozen Q and K keep?"
FROZEN = ("oelm-fast", "oelm-fast+low-rank=4", "oelm-slice+features")
PUBLISHED = ("oelm-freeze", "oelm-random-matched")
ARMS = ("baseline", "baseline+features", "position-only", *FROZEN)


def regime(name: str, model: GPTSpec, data: DataSpec, train: TrainSpec, **of_study: Any) -> Study:
    """Return the study in one regime. The frozen arms answer one question, so their tests are corrected together."""
    usual = {
        "question": QUESTION,
        "arms": ARMS,
        "family": FROZEN,
        "tuned": {"train.learning_rate": (3e-3, 6e-3, 1.2e-2)},
    }
    base = RunSpec(model=model, data=data, train=train)
    return Study(name=name, base=base, tuning_seeds=(100,), seeds=(0, 1, 2), **usual | of_study)


SMALL = GPTSpec(context=128, model_dim=96, num_layers=4, num_heads=4, positions="rope")
SMALL_TRAIN = TrainSpec(
    steps=2450, batch_size=8, learning_rate=6e-3, warmup_steps=200, eval_every=350, eval_tokens=32_768
)
SPEECHES = DataSpec(corpus="sotu", vocab_size=512)
FIELDS_OF_A_SIZE = ("model.model_dim", "model.context", "data.vocab_size", "train.steps", "train.eval_every",
                    "train.eval_tokens", "train.precision")  # fmt: skip
SIZES = {
    "small": dict(zip(FIELDS_OF_A_SIZE, (96, 128, 512, 2450, 350, 32_768, "fp32"), strict=True)),
    "larger": dict(zip(FIELDS_OF_A_SIZE, (128, 256, 2048, 3000, 500, 65_536, "bf16"), strict=True)),
}
study = Study(
    name="content",
    question=QUESTION,
    base=RunSpec(
        model=named_size("medium-512"),
        data=DataSpec(corpus="wikitext-103"),
        train=TrainSpec(
            steps=200_000, batch_size=8, warmup_steps=1000, eval_every=1000, precision="bf16", device="cuda"
        ),
    ),
    arms=ARMS,
    tuned={"train.learning_rate": (3e-4, 6e-4, 1.2e-3)},
    tuning_seeds=(100,),
    seeds=(0, 1, 2),
    family=FROZEN,
)
larger = regime("content-larger", SMALL, SPEECHES, SMALL_TRAIN, sizes=SIZES, tuned_at=("small",), transfer=-0.5)
rates = Study(
    **dict(larger)
    | {
        "name": "content-rates",
        "question": "Does the answer of the larger size hold if each arm is tuned at that size?",
        "arms": tuple(arm for arm in larger.arms if arm.name != "oelm-fast+low-rank=4"),
        "family": ("oelm-fast", "oelm-slice+features"),
        "sizes": {"larger": SIZES["larger"]},
        "tuned": {"train.learning_rate": (2.6e-3, 5.2e-3, 1.04e-2)},
        "tuned_at": (),
        "transfer": "nearest",
    }
)
tinystories = regime(
    "content-tinystories",
    GPTSpec(context=256, model_dim=96, num_layers=4, num_heads=4, positions="rope", initial_deviation="width"),
    DataSpec(corpus="tinystories-part", vocab_size=2048),
    TrainSpec(
        steps=1000, batch_size=8, learning_rate=1e-2, warmup_steps=50, eval_every=125, eval_tokens=32_768,
        precision="bf16",
    ),
    question="How much of what content is worth do frozen Q and K keep where it is worth more than the margin?",
    arms=("baseline", "baseline+features", "position-only", *FROZEN[:2], *PUBLISHED),
    tuned={"train.learning_rate": (5e-3, 1e-2, 2e-2)},
    family=(*FROZEN[:2], *PUBLISHED),
)  # fmt: skip
scales = {
    "speeches": regime("content-speeches", SMALL, SPEECHES, SMALL_TRAIN),
    "imdb": regime("content-imdb", SMALL, DataSpec(corpus="imdb", vocab_size=512, tokens=3_000_000), SMALL_TRAIN),
    "stories": regime(
        "content-stories", SMALL, DataSpec(corpus="stories", vocab_size=512, tokens=3_000_000), SMALL_TRAIN
    ),
    "larger": larger,
    "rates": rates,
    "tinystories": tinystories,
    "medium-512": study,
}
