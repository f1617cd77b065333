"""Does the published study give its figures again? Its 14 runs under their ids, with their settings as they were.

    oelm plan studies/published.py                       what it takes on an A5000, as published
    oelm run  studies/published.py --only GPT-06         one run at its full size, on a GPU
    oelm run  studies/published.py --scale mini          the same matrix on 2 cores, labelled text from data/ or the hub

Methods are what the published code did, not what its reports call it: the BERT "baseline" was orthogonalised too.
Learning rates differ by arm, as published, so `oelm compare` refuses these runs and says why; studies/fair.py asks the
question fairly. The reports say nothing about epochs and batch size of SST-2 and MNLI: those of XNLI are taken.

At the scale `mini` the corpora are three draws of the embedded stories, the ratio of the rates is kept, and a
small pretrained encoder stands for BERT-base; there is no MNLI without a network, so its runs draw on XNLI again.
Expected there: on stories the frozen arms behind the baseline, the random arm nearly as bad as uniform attention; of
the small encoder's runs only SST-2-01 learns much, because the published rates, times 5, are too high for the others.
"""

from pathlib import Path

from oelm import DataSpec, ExamplesSpec, ForeignSpec, Listing, RunSpec, TrainSpec, named_method
from oelm.spec.model import ModelSpec, named_size

QUESTION = "Do the published runs give their figures again?"
SEED = 42
GPT = [
    # id, corpus, method, learning rate, steps
    ("GPT-01", "tinystories", "baseline", 3e-4, 100_000),
    ("GPT-02", "tinystories", "oelm-freeze", 1e-3, 100_000),
    ("GPT-03", "tinystories", "oelm-random", 1e-3, 100_000),
    ("GPT-04", "openwebtext", "baseline", 3e-4, 150_000),
    ("GPT-05", "openwebtext", "oelm-freeze", 1e-3, 150_000),
    ("GPT-06", "wikitext-103", "baseline", 3e-4, 200_000),
    ("GPT-07", "wikitext-103", "oelm-freeze", 1e-3, 200_000),
]
BERT = [
    ("XNLI-01", "xnli", "orthogonal-from-current-trained", 2e-5),
    ("XNLI-02", "xnli", "oelm-from-current", 1e-4),
    ("SST-2-01", "sst2", "orthogonal-from-current-trained", 2e-5),
    ("SST-2-02", "sst2", "oelm-from-current", 1e-4),
    ("SST-2-03", "sst2", "oelm-random", 1e-4),
    ("MNLI-01", "mnli", "orthogonal-from-current-trained", 2e-5),
    ("MNLI-02", "mnli", "oelm-from-current", 1e-4),
]
LABELS = {"xnli": 3, "sst2": 2, "mnli": 3}


def run(name: str, method: str, model: ModelSpec, data: DataSpec | ExamplesSpec, train: TrainSpec) -> RunSpec:
    """Name a run as the published folders were named."""
    return RunSpec(
        arm=method,
        label=f"{name}_{method}",
        model=model,
        method=named_method(method),
        data=data,
        train=train,
        seed=SEED,
    )


def published() -> Listing:
    """Return the runs at their published size."""
    gpt = [
        run(
            name,
            method,
            named_size("medium-512"),
            DataSpec(corpus=corpus),
            TrainSpec(
                steps=steps,
                batch_size=8,
                learning_rate=rate,
                warmup_steps=1000,
                eval_every=1000,
                eval_tokens=None,
                checkpoint_every=5000,
                device="cuda",
            ),
        )
        for name, corpus, method, rate, steps in GPT
    ]
    bert = [
        run(
            name,
            method,
            ForeignSpec(name="google-bert/bert-base-uncased", labels=LABELS[corpus]),
            ExamplesSpec(corpus=corpus, padding="max_length"),
            TrainSpec(epochs=3, batch_size=16, learning_rate=rate, warmup_steps=0, decay="linear", device="cuda"),
        )
        for name, corpus, method, rate in BERT
    ]
    return Listing(name="published", question=QUESTION, listed=(*gpt, *bert))


def mini() -> Listing:
    """Return the same matrix at a size that 2 cores can do."""
    draws = {"tinystories": 0, "openwebtext": 1, "wikitext-103": 2}
    gpt = [
        run(
            name,
            method,
            named_size("mini"),
            DataSpec(corpus="stories", vocab_size=512, tokens=1_000_000, seed=draws[corpus]),
            TrainSpec(
                steps=steps // 125,
                batch_size=8,
                learning_rate=float(f"{5 * rate:.3g}"),
                warmup_steps=80,
                eval_every=steps // 1250,
                eval_tokens=16_384,
                checkpoint_every=400,
            ),
        )
        for name, corpus, method, rate, steps in GPT
    ]
    bert = [
        run(
            name,
            method,
            ForeignSpec(name="minilm", labels=LABELS[corpus]),
            at_hand(corpus),
            TrainSpec(
                epochs=2 if corpus == "sst2" else 3,
                batch_size=32 if corpus == "sst2" else 16,
                learning_rate=float(f"{5 * rate:.3g}"),
                warmup_steps=25,
                decay="linear",
                eval_every="epoch",
                eval_tokens=16_384,
            ),
        )
        for name, corpus, method, rate in BERT
    ]
    return Listing(name="published-mini", question=QUESTION, listed=(*gpt, *bert))


def at_hand(corpus: str) -> ExamplesSpec:
    """Return some thousand labelled rows: from `data/<corpus>`, from the real data beside the project, or the hub."""
    drawn_from, folder = ("sst2", "sst2") if corpus == "sst2" else ("xnli", "xnli-en")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / folder
    prepared = Path("data") / drawn_from
    return ExamplesSpec(
        corpus=drawn_from,
        rows=4000,
        seed=1 if corpus == "mnli" else 0,
        source=beside if beside.is_dir() and not prepared.is_dir() else None,
    )


study = published()
scales = {"mini": mini()}
