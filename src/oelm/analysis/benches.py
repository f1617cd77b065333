"""Kept results of `oelm bench methods` as evidence: what a frozen arm saves of time and of the peak of memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from oelm.analysis.ablation import is_frozen
from oelm.analysis.pooling import Estimate
from oelm.analysis.statistics import CONFIDENCE
from oelm.errors import UnknownName
from oelm.spec.base import in_words
from oelm.spec.method import InitSpec
from oelm.spec.model import GPT_SIZES
from oelm.spec.named import named_method

PATTERN = "methods-*.json"
"""The names of kept benches, in any folder directly below the folder of results."""
PUBLISHED_STARTS = tuple(InitSpec(shape="orthogonal", source=source) for source in ("fresh", "current"))
"""Both do the same work in every step."""


class BenchArm(BaseModel):
    """One arm of a bench; other fields are not needed here. The savings are None for the reference."""

    model_config = ConfigDict(frozen=True)

    flop_share: float
    seconds: float
    saving: float | None = None
    saving_interval: tuple[float, float] | None = None
    peak_bytes: float
    memory_saving: float | None = None
    """None in benches from before the peak of each block was kept."""
    memory_saving_interval: tuple[float, float] | None = None


class BenchRecord(BaseModel):
    """A file of `oelm bench methods --json`."""

    model_config = ConfigDict(frozen=True)

    size: str
    labels: int | None
    batch: tuple[int, int]
    threads: int
    reference: str
    blocks: int
    steps_per_block: int
    arms: dict[str, BenchArm]


@dataclass(frozen=True)
class Bench:
    """A bench and the file it comes from."""

    path: Path
    record: BenchRecord

    @property
    def is_encoder(self) -> bool:
        """Whether it has a classification head; our GPT has none in benches."""
        return self.record.labels is not None

    @property
    def is_our_gpt(self) -> bool:
        """Whether it times our GPT."""
        return self.record.size in GPT_SIZES

    @property
    def frozen_arms(self) -> Iterator[tuple[str, BenchArm]]:
        """The arms of the published method."""
        for name, arm in self.record.arms.items():
            try:
                method = named_method(name)
            except UnknownName:
                continue
            if is_frozen(method) and method.init in PUBLISHED_STARTS:
                yield name, arm

    @property
    def core_hours(self) -> float:
        """Processor time of one such bench, warm-up and ceilings left out."""
        per_turn = sum(arm.seconds for arm in self.record.arms.values())
        return per_turn * self.record.steps_per_block * self.record.blocks / 3600

    def peak_saving(self, arm: BenchArm) -> float:
        """Return what an arm saves of the highest peak of all blocks."""
        return 1 - arm.peak_bytes / self.record.arms[self.record.reference].peak_bytes

    def estimate(self, mean: float | None, interval: tuple[float, float] | None) -> Estimate | None:
        """Return a saving with its error over blocks; None where the bench has no interval of it."""
        if mean is None or interval is None or self.record.blocks < 2 or interval[0] == interval[1]:
            return None
        unit = Estimate(0.0, 1.0, self.record.blocks - 1).interval(CONFIDENCE)
        return Estimate(mean, (interval[1] - interval[0]) / (unit.high - unit.low), self.record.blocks - 1)


def read_benches(root: Path) -> tuple[list[Bench], list[str]]:
    """Read the kept benches below a folder of results, and say which files could not be read."""
    found: list[Bench] = []
    unreadable: list[str] = []
    for path in sorted(root.glob(f"*/{PATTERN}")):
        try:
            found.append(Bench(path, BenchRecord.model_validate_json(path.read_bytes())))
        except ValidationError as error:
            unreadable.append(f"{path} is not a result of `oelm bench methods --json`: {in_words(error)}")
    return found, unreadable
