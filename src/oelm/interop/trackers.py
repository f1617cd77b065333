"""Send the metrics of a run to an experiment tracker: W&B, trackio or TensorBoard.

`metrics.jsonl` stays the truth, so a tracker may fail without harm: the failure is reported once, and the run goes on
without it. W&B writes to the run folder unless WANDB_MODE says otherwise, and trackio to its local database. The
identity of a tracked run is the fingerprint of the run, so that a continued run continues there, too.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol, cast

from oelm.errors import UsageError
from oelm.spec.run import RunSpec, TrackerName, fingerprint

PROJECT = "oelm"
"""Name of the project in a tracker; WANDB_PROJECT and TRACKIO_PROJECT replace it."""


def refuse_missing(name: TrackerName | None) -> None:
    """Raise if a tracker is not installed, before the run begins."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise UsageError(
            f"train.track={name} (--track) was requested, but {name} is not installed. Run `pip install -c "
            f"constraints.txt '.[{name}]'`, or leave it out: metrics.jsonl has the same curves."
        )


class _Sink(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Tracker:
    """The tracker of a run. The first failure is passed to `warn` and ends the tracking."""

    def __init__(self, run: RunSpec, folder: Path, resumed_at: int, warn: Callable[[str], None]) -> None:
        self._name, self._warn = run.train.track, warn
        self._sink: _Sink | None = None
        if self._name is not None:
            open_sink = _SINKS[self._name]
            self._sink = self._try(lambda: open_sink(run, folder, resumed_at))

    def log(self, step: int, values: Mapping[str, float | None]) -> None:
        """Send the values that are there."""
        known = {name: value for name, value in values.items() if value is not None}
        if (sink := self._sink) is not None:
            self._try(lambda: sink.log(step, known))

    def close(self) -> None:
        """End the tracked run, which may be continued later."""
        if (sink := self._sink) is not None:
            self._try(sink.close)
        self._sink = None

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            # Trackers greet on standard output, which belongs to the run.
            with redirect_stdout(io.StringIO()):
                return action()
        except Exception as error:  # noqa: BLE001  (whatever a tracker raises, the run must go on)
            self._sink = None
            reason = (str(error).splitlines() or [""])[0]
            self._warn(
                f"{self._name} failed ({type(error).__name__}: {reason}), so the rest of this run is not tracked. "
                "metrics.jsonl has everything."
            )
            return None


class _Wandb:
    """W&B. Each metric has the training step as its axis, so that steps repeated after a crash are accepted."""

    def __init__(self, run: RunSpec, folder: Path, resumed_at: int) -> None:  # noqa: ARG002
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            group=folder.parent.name or None,
            id=fingerprint(run),
            resume="allow",
            dir=str(folder),
            mode=cast("Any", os.environ.get("WANDB_MODE", "offline")),  # wandb checks it
            config=run.model_dump(mode="json"),
            settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """trackio, in its local database unless TRACKIO_SPACE_ID or TRACKIO_SERVER_URL names another place."""

    def __init__(self, run: RunSpec, folder: Path, resumed_at: int) -> None:  # noqa: ARG002
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=f"{run.arm}-seed{run.seed}_{fingerprint(run)}",
            group=folder.parent.name or None,
            resume="allow",
            config=run.model_dump(mode="json"),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import trackio

        trackio.finish()  # the run's own finish() would be repeated, with a message, when the process ends


class _TensorBoard:
    """Event files in the run folder; steps that are trained again replace the earlier ones."""

    def __init__(self, run: RunSpec, folder: Path, resumed_at: int) -> None:  # noqa: ARG002
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=resumed_at + 1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


_SINKS: dict[TrackerName, Callable[[RunSpec, Path, int], _Sink]] = {
    "wandb": _Wandb,
    "trackio": _Trackio,
    "tensorboard": _TensorBoard,
}
