"""Import runs of the published programs (timing_stats.json and training.log) as records that are marked imported.

`timing_stats.json` has four forms: that of the GPT program, its short form for runs of up to 101 steps, the excerpts
that are printed in the reports, and that of the BERT program. The published BERT results are such files alone, under
other names. Settings come from the flags of a checkpoint next to it, then from the caller, then from the published
defaults. What is assumed is listed in the record (in the command of its environment), and figures that would rest on
it, tokens and their speed, are left at 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oelm.errors import BadRecord, InvalidSpec, UnknownName, UsageError
from oelm.files import parse_json, write_atomically
from oelm.record.folder import LOG, METRICS, RECORD, TIMING, run_directory, write_record
from oelm.record.record import EnvironmentRecord, MetricRecord, ResultRecord, RunRecord, SecondsRecord
from oelm.spec import explain_validation
from oelm.spec.method import named_method
from oelm.spec.run import GPT_SIZES, DataSpec, ExamplesSpec, GPTSpec, HuggingFaceSpec, RunSpec, TrainSpec, fingerprint

# Names of the published study, and our names for the same things.
PUBLISHED_METHODS = {"baseline": "baseline", "oelm_v2": "oelm-freeze", "oelm_random": "oelm-random"}
PUBLISHED_CORPORA = {"tinystories": "tinystories", "openwebtext": "openwebtext", "wikitext103": "wikitext-103"}
BERT_MODES = {"baseline": (False, "normal"), "oelm": (True, "orthogonal")}
"""The mode of a BERT timing file -> --freeze_mode, and the --init_method that is assumed without flags."""
BERT_METHODS = {
    (True, "orthogonal"): "oelm-from-current",
    (True, "normal"): "oelm-random",
    (False, "orthogonal"): "orthogonal-from-current-trained",
    (False, "normal"): "random-trained",
}
"""--freeze_mode and --init_method -> our method."""

UNKNOWN = "unknown"
LOGS = (LOG, "training_restart.log")
"""Logs of a run in their order. XNLI-02 was started again from its first step and kept the log of its first try."""
_VALIDATION = re.compile(r"\[Step (\d+)\] Validation - Loss: ([-+.\w]+)")
_BERT_STEP = re.compile(r"Step (\d+): Running validation")
_BERT_VALIDATION = re.compile(r"Validation - Loss: ([-+.\w]+), Accuracy: ([.\d]+)")


class PublishedTiming(BaseModel):
    """A timing_stats.json in any of its forms. Fields of the BERT program have their GPT names as aliases."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    model_type: str | None = None
    mode: str | None = None
    """Only the BERT program writes it."""
    dataset: str | None = None
    total_wall_time: float
    num_steps_measured: int | None = None
    warmup_steps: int = 100
    mean_step_time: float | None = None
    mean_time_per_step: float | None = None
    pure_training_time: float | None = None
    total_validation_time: float = 0.0
    final_perplexity: float | None = Field(default=None, gt=0)
    best_val_loss: float | None = None

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step, as recorded."""
        return self.mean_step_time if self.mode is None else self.mean_time_per_step

    @property
    def best_loss(self) -> float | None:
        """The best validation loss; an excerpt has only its exponential."""
        if self.best_val_loss is None and self.final_perplexity is not None:
            return math.log(self.final_perplexity)
        return self.best_val_loss


@dataclass(frozen=True)
class Settings:
    """Settings that the published files lack, given by the caller, and the flags of a checkpoint next to them."""

    learning_rate: float | None = None
    seed: int | None = None
    steps: int | None = None
    """None: that of the flags, or the last step that the log or the timing mentions."""
    dataset: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ImportedRun:
    """Where a run was imported to, and which of its settings are assumed."""

    directory: Path
    assumed: tuple[str, ...]


def import_run(source: Path, settings: Settings, out: Path) -> ImportedRun:
    """Write a published run as a record below `out`. The published files are not changed.

    `source` is the folder of the run, or a timing file alone, which then names the run.
    """
    if (source / RECORD).exists():
        raise UsageError(f"{source} has a {RECORD}: it is already a run of this program. Use it as it is.")
    file = source if source.is_file() else source / TIMING
    timing = read_timing(file)
    points = list(read_log(source))
    assumed: list[str] = []
    name = source.resolve().name.removesuffix(".json")
    try:
        run = (_bert_run if timing.mode else _gpt_run)(name, timing, points, settings, assumed)
    except ValidationError as error:
        raise InvalidSpec(f"{name} does not describe a valid run: {explain_validation(error)}.") from error
    record = _build_record(run, timing, points, assumed)
    directory = run_directory(out, record.spec)
    if (directory / RECORD).exists():
        raise UsageError(f"{directory} exists: this run has been imported. Remove the folder to import it again.")
    mean = timing.step_seconds or 0.0
    placed = (point.model_copy(update={"seconds": mean * point.step}) for point in points)
    write_atomically(directory / METRICS, "".join(point.model_dump_json(exclude_none=True) + "\n" for point in placed))
    write_atomically(directory / TIMING, file.read_bytes())
    write_record(directory, record)
    return ImportedRun(directory, tuple(assumed))


def read_timing(path: Path) -> PublishedTiming:
    """Read a published timing_stats.json, and explain what is wrong if it cannot be read."""
    try:
        found = PublishedTiming.model_validate(parse_json(path.read_text()))
    except FileNotFoundError:
        raise UsageError(
            f"{path.parent} cannot be imported: it has no {path.name}. Give the --out_dir of a published run, with "
            f"{TIMING} and {LOG} in it, or a timing file."
        ) from None
    except OSError as error:
        raise BadRecord(f"{path} cannot be read: {error.strerror}.") from error
    except ValidationError as error:
        raise BadRecord(f"{path} is not what the published program writes: {explain_validation(error)}.") from error
    except ValueError as error:
        raise BadRecord(f"{path} is not valid JSON ({error}). Copy it again from its original place.") from error
    if found.model_type is None and found.mode is None:
        raise BadRecord(f"{path} is not what the published program writes: it has neither model_type nor mode.")
    return found


def read_log(folder: Path) -> Iterator[MetricRecord]:
    """Yield the validations in the published logs of either program; nothing without a log.

    A resumed or restarted run logs some steps twice, and the last value counts.
    """
    seen: dict[int, MetricRecord] = {}
    for path in (folder / name for name in LOGS):
        if path.exists():
            seen |= {point.step: point for point in _read_validations(path)}
    yield from (seen[step] for step in sorted(seen))


def _read_validations(path: Path) -> Iterator[MetricRecord]:
    step = 0
    for line in path.read_text(errors="replace").splitlines():
        if match := _VALIDATION.search(line):
            step, accuracy = int(match[1]), None
            loss = match[2]
        elif match := _BERT_STEP.search(line):
            step = int(match[1])
            continue
        elif step and (match := _BERT_VALIDATION.search(line)):
            loss, accuracy = match[1], float(match[2])
        else:
            continue
        try:
            yield MetricRecord(kind="val", step=step, loss=float(loss), seconds=0.0, accuracy=accuracy)
        except ValueError:
            raise BadRecord(f"{path} has {loss!r} for the validation loss of step {step}.") from None


@dataclass
class _Reader:
    """Reads settings from the flags, then from the caller, then from the published defaults, which are noted."""

    settings: Settings
    assumed: list[str]

    def get(self, name: str, default: Any, given: Any = None) -> Any:
        """Return a setting by its published name."""
        if given is not None:
            return given
        if self.settings.flags.get(name) is not None:
            return self.settings.flags[name]
        self.assumed.append(f"{name} {default}")
        return default

    def rate(self, name: str, chosen: float | None = None) -> float:
        """Return the learning rate, which has no default that could be assumed.

        `chosen` is the rate that the program uses if its flags are known and say None.
        """
        rate = self.settings.learning_rate or self.settings.flags.get(name)
        if rate is None and name in self.settings.flags:
            rate = chosen
        if rate is None:
            raise UsageError(
                "the learning rate is in none of the files: there is no best.pt with its flags next to them. Give it "
                "with --learning-rate."
            )
        return float(rate)

    def steps(self, timing: PublishedTiming, points: list[MetricRecord]) -> int:
        """Return the number of steps: stated, or the last that is known. It has no default that could be assumed."""
        stated = self.settings.steps or self.settings.flags.get("max_steps")
        if stated is not None and int(stated) > 0:
            return int(stated)
        known = [point.step for point in points]
        if timing.num_steps_measured is not None:
            # The GPT program counts steps from 0, so that it leaves out one step more than it says.
            known.append(timing.num_steps_measured + timing.warmup_steps + (timing.mode is None))
        if not known:
            raise UsageError(
                "the number of steps is in none of the files: the timing is an excerpt or of a short run, and there is "
                "no log. Give it with --steps."
            )
        last = max(known)
        self.assumed.append(f"max_steps {last}, the last step that the files mention")
        return last


def _gpt_run(
    name: str, timing: PublishedTiming, points: list[MetricRecord], settings: Settings, assumed: list[str]
) -> RunSpec:
    if timing.model_type not in PUBLISHED_METHODS:
        raise UnknownName("published model_type", str(timing.model_type), PUBLISHED_METHODS)
    read = _Reader(settings, assumed)
    method = PUBLISHED_METHODS[timing.model_type]
    dataset = str(timing.dataset or read.get("dataset", UNKNOWN, settings.dataset))
    size = GPT_SIZES["medium-512"]
    if settings.flags:
        size = GPTSpec(
            vocab_size=read.get("vocab_size", 50257), context=read.get("seq_len", 512),
            model_dim=read.get("d_model", 512), num_layers=read.get("num_layers", 6),
            num_heads=read.get("num_heads", 8), ffn_dim=read.get("d_ff", 2048), dropout=read.get("dropout", 0.1),
        )  # fmt: skip
    else:
        assumed.append("model medium-512")
    return RunSpec(
        arm=method,
        label=name,
        method=named_method(method),
        model=size,
        data=DataSpec(corpus=PUBLISHED_CORPORA.get(dataset, dataset)),
        train=TrainSpec(
            steps=read.steps(timing, points),
            batch_size=read.get("batch_size", 8),
            learning_rate=read.rate("max_lr"),
            min_learning_rate=read.get("min_lr", 0.0),
            warmup_steps=read.get("warmup_steps", 1000),
            betas=(read.get("beta1", 0.9), read.get("beta2", 0.999)),
            weight_decay=read.get("weight_decay", 0.01),
            grad_clip=read.get("grad_clip", 1.0),
            eval_every=read.get("val_interval", 1000),
            eval_tokens=None,
            precision="fp16" if read.get("use_amp", default=False) else "fp32",
        ),
        seed=read.get("seed", 42, settings.seed),
    )


def _bert_run(
    name: str, timing: PublishedTiming, points: list[MetricRecord], settings: Settings, assumed: list[str]
) -> RunSpec:
    if timing.mode not in BERT_MODES:
        raise UnknownName("published mode", str(timing.mode), BERT_MODES)
    read = _Reader(settings, assumed)
    frozen, init = BERT_MODES[timing.mode]
    method = BERT_METHODS[frozen, str(read.get("init_method", init))]
    parts = int(read.get("gradient_accumulation_steps", 1))
    return RunSpec(
        arm=method,
        label=name,
        method=named_method(method),
        model=HuggingFaceSpec(name=str(read.get("model_name", "bert-base-uncased"))),
        data=ExamplesSpec(
            corpus=str(read.get("dataset", UNKNOWN, settings.dataset)), padding="max_length", token_types=False,
            holds_out=False, max_length=read.get("max_length", 128),
        ),
        train=TrainSpec(
            steps=read.steps(timing, points),
            batch_size=parts * int(read.get("batch_size", 32)),
            accumulation=parts,
            # The published program counts micro-batches for the length of its schedule, unless --max_steps is given.
            schedule_over="parts" if parts > 1 and int(settings.flags.get("max_steps", -1)) <= 0 else "steps",
            learning_rate=read.rate("lr", chosen=1e-4 if frozen else 2e-5),
            weight_decay=read.get("weight_decay", 0.01),
            grad_clip=max(0.0, read.get("max_grad_norm", 1.0)),
            warmup_fraction=read.get("warmup_ratio", 0.1),
            warmup_from_zero=True,
            decay="linear",
            eval_every=read.get("validate_steps", 500),
            eval_tokens=None,
        ),
        seed=read.get("seed", 42, settings.seed),
    )  # fmt: skip


def _build_record(run: RunSpec, timing: PublishedTiming, points: list[MetricRecord], assumed: list[str]) -> RunRecord:
    """Build the record. By the published rule, its result is the best validation."""
    finite = [point for point in points if math.isfinite(point.loss)]
    best = min(finite, key=_badness, default=None)
    loss = best.loss if best and best.accuracy is not None else timing.best_loss
    loss = loss if loss is not None else (best.loss if best else None)
    is_sure = not assumed
    if loss is not None and best is None:
        assumed.append(f"best step {run.train.steps}, because no log has a finite validation loss")
    notes = f"; assumed: {', '.join(assumed)}" if assumed else ""
    return RunRecord(
        fingerprint=fingerprint(run),
        status="complete" if loss is not None else "interrupted",
        spec=run,
        environment=EnvironmentRecord(
            oelm=UNKNOWN, python=UNKNOWN, torch=UNKNOWN, platform=UNKNOWN, device=UNKNOWN, cores=0, commit=None,
            dirty=None, command=f"imported from {run.label}{notes}",
        ),
        started=UNKNOWN,
        step=run.train.steps,
        seconds=SecondsRecord(
            total=timing.total_wall_time,
            train=timing.pure_training_time or (timing.step_seconds or 0.0) * run.train.steps,
            validation=timing.total_validation_time, checkpoint=0.0,
        ),
        result=None if loss is None else _build_result(run, timing, loss, best, is_sure=is_sure),
        error=None if loss is not None else "its files have no validation loss",
        imported=True,
    )  # fmt: skip


def _badness(point: MetricRecord) -> float:
    """Return what the published programs minimise: the loss, or for BERT the share of wrong answers."""
    return point.loss if point.accuracy is None else -point.accuracy


def _build_result(
    run: RunSpec, timing: PublishedTiming, loss: float, best: MetricRecord | None, *, is_sure: bool
) -> ResultRecord:
    # Tokens are known only if batch, sequence length and steps are; 0 means that they are not.
    tokens = run.train.batch_size * run.model.context if is_sure and isinstance(run.model, GPTSpec) else 0
    accuracy = best.accuracy if best else None
    return ResultRecord(
        val_loss=loss, test_loss=None, best_val_loss=loss, best_step=best.step if best else run.train.steps,
        train_tokens=tokens * run.train.steps,
        tokens_per_second=tokens / timing.step_seconds if timing.step_seconds else 0.0,
        peak_memory_bytes=0, val_accuracy=accuracy, best_val_accuracy=accuracy,
    )  # fmt: skip
