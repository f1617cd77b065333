"""Which skill does attention lose when Q and K are frozen: finding by content, or copying at a distance?

    oelm run studies/probes.py                    64 runs of less than two minutes on a free core
    oelm run studies/probes.py --scale features   20 runs: position features, with and without frozen content
    oelm run studies/probes.py --scale tuned      every arm tuned on three learning rates, three new seeds

A loss on text shows how much freezing costs, not why. `recall:N` lists N pairs of a key and a value and asks for the
values; `copy:D` repeats the token D positions before (docs/probes.md). The score is the share of right answers.
`uniform` has no Q and K and should not do better than counting. `baseline-shift` is the control of the repairs that let
a head see the previous token: with it, finding by content takes one layer, without it two. Positions are rotary, as in
studies/gap.py, so that the two can be compared. The report also draws entropy and distance of every head over training.

One learning rate for all arms, the lowest of the grid of studies/gap.py, is a first look and not evidence; `tuned` is.
Expected (LOG.md): shifted arms, frozen or not, reach 99 % of recall:4 after 100 steps, while the plain baseline is
still at the level of counting after 6000. copy:16 takes trained Q and K 100 steps and frozen ones 500. No arm learns
recall:32 and copy:64. So look at which arm learns a skill and when, not at which arm would learn it in the end.
"""

from oelm import DataSpec, GPTSpec, RunSpec, Study, TrainSpec

ARMS = (
    "baseline",
    "baseline-shift",
    "oelm-freeze",
    "oelm-random-matched",
    "oelm-shift",
    "oelm+bias+mix",
    "oelm+low-rank=3+bias+mix",
    "uniform",
)
study = Study(
    name="probes",
    question="Can attention with frozen Q and K find by content, and copy at a distance?",
    base=RunSpec(
        model=GPTSpec(context=128, model_dim=64, num_layers=2, num_heads=4, positions="rope"),
        data=DataSpec(corpus="recall:4"),
        train=TrainSpec(
            steps=1500, batch_size=16, learning_rate=3e-3, warmup_steps=50, eval_every=100, eval_tokens=16_384
        ),
    ),
    arms=ARMS,
    axes={"data.corpus": ("recall:4", "recall:32", "copy:16", "copy:64")},
    seeds=(0, 1),
)
features = Study(
    **dict(study)
    | {
        "name": "probes-features",
        "question": "Do frozen heads that find by content solve the probes that some arm solves?",
        "arms": ("baseline", "baseline+features", "position-only", "oelm-slice+features", "oelm-fast"),
        "axes": {"data.corpus": ("recall:4", "copy:16")},
    }
)
scales = {
    "features": features,
    "tuned": study.model_copy(
        update={
            "name": "probes-tuned",
            "tuned": {"train.learning_rate": (1e-3, 3e-3, 1e-2)},
            "tuning_seeds": (100,),
            "seeds": (0, 1, 2),
        }
    ),
}
