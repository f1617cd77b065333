"""What a model consists of, and what of it trains."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from oelm.method.freeze import Applied, named_tensors, sha256
from oelm.method.orthogonal import departure, one_thread
from oelm.method.projection import Projection
from oelm.method.rates import layer_prefixes
from oelm.method.repair import Repair, num_repair_parameters
from oelm.spec.method import Role

_IN_LAYERS = "norms and biases inside the layers"
_REPAIRS = "repairs of the logits"


@dataclass(frozen=True)
class ProjectionAudit:
    """One projection as it stands. The hash is of q, k and whatever is frozen; what trains has none to keep."""

    name: str
    role: Role
    site: str
    layer: int
    shape: tuple[int, int, int]
    frozen: bool
    sha256: str | None
    departure: float | None


@dataclass(frozen=True)
class Audit:
    """What a model consists of, and what of it trains."""

    model: str
    total: int
    trainable: int
    frozen: int
    max_departure: float | None
    projections: tuple[ProjectionAudit, ...]
    architecture: str = ""
    never_frozen: dict[str, int] | None = None
    """Parameters that no method freezes, counted by where they are: embeddings, pooler, classifier, norms, repairs."""
    qk: int = 0
    """Weights of Q and K, frozen or not."""
    repair: int = 0
    """Parameters that repairs of the logits train."""

    @property
    def repair_share(self) -> float:
        """How many parameters repairs train for each weight of Q and K."""
        return self.repair / max(self.qk, 1)

    def as_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        share = 100 * self.trainable / max(self.total, 1)
        return f"trainable params: {self.trainable:,} || all params: {self.total:,} || trainable%: {share:.4f}"


def describe(
    model: nn.Module,
    architecture: str,
    projections: list[Projection],
    state: Applied | None,
    hashes: Mapping[str, str] = MappingProxyType({}),
) -> Audit:
    """Describe every projection and count what trains; `hashes` of tensors that were taken a moment ago are used."""
    gain = state.method.init.gain if state else 1.0
    # Products on several threads wait for one another longer than these small ones take.
    with one_thread():
        rows = tuple(_row(projection, gain, hashes) for projection in projections)
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    total = sum(size for size, _ in counts)
    trainable = sum(size for size, trains in counts if trains)
    departures = [row.departure for row in rows if row.departure is not None]
    return Audit(
        type(model).__name__,
        total,
        trainable,
        total - trainable,
        max(departures, default=None),
        rows,
        architecture,
        _never_frozen(model, projections),
        sum(math.prod(row.shape) for row in rows if row.role in ("q", "k")),
        num_repair_parameters(model),
    )


def _row(projection: Projection, gain: float, hashes: Mapping[str, str]) -> ProjectionAudit:
    frozen = projection.separate and not projection.weight.requires_grad
    is_qk = projection.role in ("q", "k")
    readable = not projection.weight.is_meta and projection.weight.is_floating_point() and projection.weight.numel() > 0
    return ProjectionAudit(
        projection.name, projection.role, projection.site, projection.layer, projection.shape, frozen,
        sha256=hashes.get(f"{projection.name}.weight") or _hash(projection) if readable and (frozen or is_qk) else None,
        departure=departure(projection.read(), gain) if readable and is_qk else None,
    )  # fmt: skip


def _hash(projection: Projection) -> str:
    return sha256(projection.weight if projection.separate else projection.read())


def _never_frozen(model: nn.Module, projections: list[Projection]) -> dict[str, int]:
    """Count what lies outside every projection by the part of the model it is in."""
    within = tuple({f"{projection.module_name}." for projection in projections})
    layers = tuple(f"{prefix}." for prefix in layer_prefixes(projections))
    repairs = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, Repair))
    counts: Counter[str] = Counter()
    for name, parameter in named_tensors(model).items():
        if name.startswith(within):
            continue
        if name.startswith(repairs):
            counts[_REPAIRS] += parameter.numel()
            continue
        place = _IN_LAYERS if name.startswith(layers) else re.sub(r"\.(weight|bias)$", "", name)
        counts[".".join(place.split(".")[:2])] += parameter.numel()
    return dict(counts)
