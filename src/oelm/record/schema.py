"""The record: the one thing a run leaves for everything that comes after it.

`record.json` holds a `RunRecord`; `metrics.jsonl` beside it holds one `MetricRecord` per line. Both are plain
JSON, read without torch. Losses are mean natural-log losses per predicted token.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, computed_field

from oelm.errors import BadRecord
from oelm.spec.run import NUMERICS, RunSpec

SCHEMA = 1
Status = Literal["running", "complete", "interrupted", "failed"]
Failure = Literal["diverged", "out-of-memory", "error"]


class Record(BaseModel):
    """What all records share. Later versions may add fields; reading ignores what it does not know.

    JSON has no NaN and no infinity, and a run that diverged has both: they are written as the strings "NaN"
    and "Infinity" and read back as floats.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


RecordType = TypeVar("RecordType", bound=Record)


def read_if_present(path: Path, kind: type[RecordType], holds: str, way_out: str) -> RecordType | None:
    """Read a file that a run may have left; None where it has not. Raise BadRecord for a damaged file."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}. Check who owns it.") from error
    except ValidationError as error:
        raise BadRecord(f"{path} does not hold {holds}: {error.errors()[0]['msg']}. {way_out}") from error


def perplexity(loss: float) -> float:
    """Return exp(loss), infinite where a diverged loss is beyond the floats."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class EnvironmentRecord(Record):
    """Where a number was born."""

    oelm: str
    python: str
    torch: str
    platform: str
    device: str
    cores: int
    commit: str | None
    dirty: bool | None
    command: str


class ParametersRecord(Record):
    """Scalars of the model as the run began."""

    total: int
    trainable: int
    frozen: int
    qk: int = 0
    """Weights of Q and K, frozen or not."""
    repair: int = 0
    """Parameters that repairs of the logits train: to be held against `qk`."""


class CostRecord(Record):
    """FLOPs of one training step and bytes kept, by part, from shapes alone."""

    forward_flops: dict[str, int]
    backward_flops: dict[str, int]
    removed_flops: int
    """What the method takes away from a step of the same model fully trained."""
    weight_bytes: int
    optimizer_bytes: int
    activation_bytes: int | None = None
    """An estimate; None in records of before it was made."""


class SecondsRecord(Record):
    """Where the time went."""

    total: float
    train: float
    validation: float
    checkpoint: float
    processor: float | None = None
    """Processor seconds of the leading process in training steps, over its threads; None in older records."""
    timed_steps: int | None = None
    """Steps that `train` is of: fewer than the run's where it continues a checkpoint of another program; None: all."""


class DataRecord(Record):
    """The corpus a run saw: tokens per split, and what is known of it."""

    corpus: str
    checksum: str
    tokens: dict[str, int]
    vocab_size: int
    floor: dict[str, float] = {}
    """Nats per token that no model can beat, by split, where the corpus is generated."""
    rows: dict[str, int] = {}
    """Labelled texts by split."""
    labels: tuple[str, ...] = ()
    guess: float | None = None
    """The share of right answers that counting alone gives on a probe, and the commonest label on labelled text."""
    notes: tuple[str, ...] = ()
    """What was left out, cut or found twice."""


class ResultRecord(Record):
    """What came out. The figure to report is that of the test split at the end of training; `best` is secondary.

    It is `test_loss`, and for labelled text and probes `test_accuracy`.
    """

    val_loss: float
    test_loss: float | None
    best_val_loss: float
    best_step: int
    val_accuracy: float | None = None
    """The share of labelled texts that is labelled rightly, or of a probe's answers that are right; so the next two."""
    test_accuracy: float | None = None
    best_val_accuracy: float | None = None
    val_f1: float | None = None
    """Macro-averaged: the mean over the labels, however often each occurs."""
    test_f1: float | None = None
    train_tokens: int
    tokens_per_second: float
    flop_utilisation: float | None = None
    peak_memory_bytes: int

    @property
    def tuning_score(self) -> float:
        """What tuning minimises, on the whole validation split at the end of training: the loss, or for labels errors.

        To the share of errors a millionth of the loss is added, which decides between equal shares alone.
        """
        if self.val_accuracy is None:
            return self.val_loss
        return 1 - self.val_accuracy + 1e-6 * min(self.val_loss, 10.0)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def test_perplexity(self) -> float | None:
        """Perplexity of the test split; labels have none, and of probes it is mostly chance."""
        return None if self.test_loss is None or self.test_accuracy is not None else perplexity(self.test_loss)


class BranchRecord(Record):
    """The longer run whose checkpoint a run began with. Bits and times are those of a run that did every step."""

    fingerprint: str
    step: int


class RunRecord(Record):
    """One run, whatever became of it."""

    schema_version: int = SCHEMA
    numerics: int = NUMERICS
    fingerprint: str
    status: Status
    spec: RunSpec
    environment: EnvironmentRecord
    started: str
    finished: str | None = None
    step: int = 0
    parameters: ParametersRecord | None = None
    cost: CostRecord | None = None
    data: DataRecord | None = None
    seconds: SecondsRecord | None = None
    result: ResultRecord | None = None
    frozen_hashes: dict[str, str] = {}
    """Frozen tensor -> sha256 of its bytes, verified when the run ended."""
    failure: Failure | None = None
    """Of what kind, where the status is `failed`."""
    error: str | None = None
    imported: bool = False
    """Whether another program made the run, so that this one vouches for nothing but having read its files."""
    branched_from: BranchRecord | None = None

    @property
    def is_unscored(self) -> bool:
        """Whether a complete run was not scored on the test split that its data have, because it tunes a study.

        A study that confirms with the same run scores it first.
        """
        measured = self.result is not None and self.result.test_loss is not None
        has_test = self.data is not None and bool(self.data.tokens.get("test"))
        return self.status == "complete" and not self.spec.scores_test and has_test and not measured

    @property
    def last_words(self) -> str:
        """What the error ends with, where tracebacks say what went wrong; empty where nothing did."""
        return (self.error or "").strip().rpartition("\n")[2]


class MetricRecord(Record):
    """One line of metrics.jsonl."""

    kind: Literal["train", "val"]
    step: int
    loss: float
    seconds: float
    """Training seconds so far, without validation and checkpoints."""
    processor_seconds: float | None = None
    """Processor seconds of the leading process so far, in training steps, over its threads; None in older curves."""
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    accuracy: float | None = None
