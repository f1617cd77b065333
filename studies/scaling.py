"""How does the cost of freezing Q and K change with size, and does a prediction from small sizes hold at a larger one?

    oelm plan studies/scaling.py --scale short --calibrate    its budget in core-hours on this machine
    oelm run  studies/scaling.py --scale short      2 core-hours: widths 32, 48 and 64, and 96 held back
    oelm run  studies/scaling.py --scale check      width 64: is the rate that it inherits a good one?
    oelm run  studies/scaling.py --scale learned    widths 32 and 48 with learned positions, as published
    oelm run  studies/scaling.py --scale schedules  width 48: Q and K that train for a part of the time
    oelm run  studies/scaling.py --scale map-...    width 48: what makes content matter, by factor
    oelm run  studies/scaling.py --scale ladder     22 core-hours: widths 64, 96 and 128, and 192 held back
    oelm run  studies/scaling.py                    widths 256 to 1024 (medium-512 among them), on GPUs

All arms are trained in bf16, which takes half the time on a CPU with native bf16. On others it is slow, so use
`precision="fp32"` in a study of its own there.

Text for the small sizes: film reviews and presidential addresses together, a document a line, 12.7 million training
tokens of a 2,048-entry vocabulary (speeches.txt as in studies/fair.py, sha256 805ccd2b...; reviews.txt
f632c48a...):

    mkdir text && cp speeches.txt text/
    python -c "from oelm.data.sources import *; [
        print(*str(row['text']).split()) for row in read_table(packaged_file('imdb'))]" > text/reviews.txt
    oelm prepare reviews-and-speeches --from text --documents lines --vocab-size 2048      (and 512 for the map)

The arms, with C = P - T, d = F - T and content kept = 1 - d/C in log perplexity:

    T  baseline+features   trained Q and K with position features
    P  position-only       no Q and K, the same features
    F  oelm-fast, oelm-fast+low-rank=4   frozen Q and K with the same features, without and with a small residual
       baseline, oelm+gain=2             the plain pair, without features; the baseline is the reference of verdicts

Every size has a context of 256 and 20 tokens for each parameter of its blocks; `short` has 4 layers and heads of 16
coordinates, `ladder` 6 layers and heads of 32 (docs/decisions/048). Initial deviations follow the width
(docs/decisions/032). Learning rates are tuned at the two smallest widths. From there they fall with the inverse square
root of the width: half-way, in logarithms, between a constant rate and the inverse width of the maximal-update rule, so
at twice the width both are within half a step of the grid. The largest width is held back: `oelm run` writes
prediction.json from the other sizes before its first run starts. Width 192 sees the text 4.2 times, width 96 0.7 times.
"""

from typing import Any

from oelm import DataSpec, RunSpec, Study, TrainSpec
from oelm.spec.run import GPTSpec, steps_for

FEATURED = ("baseline+features", "position-only", "oelm-fast")
PLAIN = ("baseline", "oelm+gain=2")
FROZEN = ("oelm-fast", "oelm-fast+low-rank=4", "oelm+gain=2")
ARMS = ("baseline", "baseline+features", "position-only", *FROZEN)
RATES = (6e-3, 1.2e-2, 2.4e-2)
TEXT = DataSpec(corpus="reviews-and-speeches", vocab_size=2048)
HEAD = 32
BATCH = 8


def shape(width: int, head: int = HEAD, **fields: Any) -> GPTSpec:
    """Return the model of a width: by default six layers and rotary positions."""
    settings = {"context": 256, "num_layers": 6, "positions": "rope", "initial_deviation": "width"} | fields
    return GPTSpec(model_dim=width, num_heads=width // head, **settings)


def size(width: int, batch: int = BATCH, **model: Any) -> dict[str, Any]:
    """Return the fields that change with the width, at 20 tokens per parameter."""
    sized = shape(width, **model)
    steps = steps_for(20, sized, batch)
    return {
        "model.model_dim": width,
        "model.num_heads": sized.num_heads,
        "train.steps": steps,
        "train.warmup_steps": steps // 20,
        "train.eval_every": steps // 8,
    }


def run(model: GPTSpec, data: DataSpec = TEXT, **train: Any) -> RunSpec:
    """Return the base run of the studies in this file."""
    settings = {"batch_size": BATCH, "learning_rate": 1.2e-2, "eval_tokens": 65_536, "precision": "bf16"} | train
    return RunSpec(model=model, data=data, train=TrainSpec(**settings))


LADDER = {str(width): size(width) for width in (64, 96, 128, 192)}
ladder = Study(
    name="scaling",
    question="How does the cost of freezing Q and K change with size, at 20 tokens per parameter?",
    base=run(shape(64)),
    arms=ARMS,
    sizes=LADDER,
    held_back=("192",),
    tuned={"train.learning_rate": RATES},
    tuning_seeds=(100,),
    tuned_at=("64", "96"),
    transfer=-0.5,
    seeds=(0, 1, 2, 3, 4, 5),
    size_seeds={"96": 3, "128": 2, "192": 1},
    family=FROZEN,
)
FOUR = {"num_layers": 4, "head": 16}
SIZES = {str(width): size(width, **FOUR) for width in (32, 48, 64, 96)}
short = Study(
    **dict(ladder)
    | {
        "name": "scaling-short",
        "base": run(shape(32, **FOUR)),
        "sizes": SIZES,
        "held_back": ("96",),
        "tuned_at": ("32", "48"),
        "seeds": (0, 1, 2, 3),
        "size_seeds": {"48": 3, "64": 2, "96": 1},
    }
)
check = Study(
    name="scaling-check",
    question="Is the rate that width 64 took over from smaller sizes near its own best one?",
    base=run(shape(32, **FOUR)),
    arms=("baseline", "baseline+features", "oelm-fast"),
    sizes={"64": SIZES["64"]},
    tuned={"train.learning_rate": RATES},
    tuning_seeds=(100,),
    seeds=(),
)
learned = Study(
    **dict(short)
    | {
        "name": "scaling-learned",
        "question": "Does it change with size in the same way with learned positions, as published?",
        "base": run(shape(32, positions="learned", **FOUR)),
        "arms": tuple(arm for arm in ladder.arms if arm.name in ("baseline", "oelm+gain=2", "oelm-fast")),
        "family": ("oelm-fast", "oelm+gain=2"),
        "sizes": {name: SIZES[name] for name in ("32", "48")},
        "size_seeds": {},
        "held_back": (),
        "seeds": (0, 1, 2),
    }
)
MIDDLE = {key.removeprefix("train."): value for key, value in SIZES["48"].items() if key.startswith("train.")}
"""Training of width 48, the centre of the map."""
schedules = Study(
    name="scaling-schedules",
    question="Are Q and K that train in one layer, or for a part of the time, as good as trained ones?",
    base=run(shape(48, **FOUR), **MIDDLE),
    arms=(
        "baseline",
        "oelm-freeze",
        "oelm-partial:0",
        "train-then-freeze:0.3",
        "oelm-progressive:0-0.3:first",
    ),
    tuned={"train.learning_rate": RATES},
    tuning_seeds=(100,),
    seeds=(0, 1, 2),
)


def factor(name: str, sizes: dict[str, dict[str, Any]]) -> Study:
    """Return one factor of the regime map: the arms at each of its values, all with one rate."""
    return Study(
        name=f"scaling-map-{name}",
        question=f"How much is content worth, and how much of it is kept, by {name}?",
        base=run(shape(48, **FOUR), **MIDDLE),
        arms=(*PLAIN, *FEATURED),
        sizes=sizes,
        seeds=(0, 1),
    )


def budget(tokens_per_parameter: float) -> dict[str, Any]:
    """Return the training length of the map's model."""
    steps = steps_for(tokens_per_parameter, shape(48, **FOUR), BATCH)
    return {"train.steps": steps, "train.warmup_steps": steps // 20, "train.eval_every": steps // 8}


CONTEXTS = (128, 256, 512)
scales = {
    "short": short,
    "ladder": ladder,
    "check": check,
    "learned": learned,
    "schedules": schedules,
    "map-vocabulary": factor("vocabulary", {"512": {"data.vocab_size": 512}}),
    "map-context": factor(
        "context", {str(length): {"model.context": length, "train.batch_size": 2048 // length} for length in CONTEXTS}
    ),
    "map-tokens": factor("tokens", {str(ratio): budget(ratio) for ratio in (5, 80)}),
    "map-positions": factor("positions", {"learned": {"model.positions": "learned"}}),
}

GPU = {  # 512 is medium-512 without its dropout of 0.1
    str(width): size(width, batch, head=64, context=512) | {"train.batch_size": batch}
    for width, batch in ((256, 32), (512, 64), (768, 128), (1024, 256))
}
study = Study(
    **dict(ladder)
    | {
        "name": "scaling-gpu",
        "base": RunSpec(
            model=shape(256, 64, context=512),
            data=DataSpec(corpus="openwebtext"),
            train=TrainSpec(batch_size=32, learning_rate=1e-3, precision="bf16", device="cuda"),
        ),
        "sizes": GPU,
        "held_back": ("1024",),
        "tuned": {"train.learning_rate": (3e-4, 6e-4, 1.2e-3, 2.4e-3)},
        "tuned_at": ("256", "512"),
        "checked_at": ("768",),
        "seeds": (0, 1, 2),
        "size_seeds": {"768": 2, "1024": 1},
    }
)
scales["gpu"] = study
