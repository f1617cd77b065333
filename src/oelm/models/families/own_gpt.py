"""Where Q and K live in our own GPT."""

from __future__ import annotations

from typing import cast

from torch import nn

from oelm.method.projection import Architecture, Projection
from oelm.method.repair import KeyShift, Temperature
from oelm.models.gpt import GPT, Block
from oelm.models.sliced import SlicedLinear
from oelm.spec.method import RepairSpec, Role


class OwnGPT(Architecture):
    """Each role is a module of its own: nothing to split."""

    name = "gpt"
    repairs = frozenset({"key_shift", "temperature"})
    can_remove_qk = True

    def matches(self, model: nn.Module) -> bool:
        """Tell whether `model` is our GPT."""
        return isinstance(model, GPT)

    def projections(self, model: nn.Module) -> list[Projection]:
        """List q, k, v, o and the two feed-forward maps of every block; q and k may be absent."""
        spec = cast("GPT", model).spec
        heads: dict[Role, int] = {"q": spec.num_heads, "k": spec.key_heads, "v": spec.key_heads, "o": 1}
        found = []
        for layer, block in enumerate(_blocks(model)):
            for role, num_heads in heads.items():
                module = getattr(block.attention, role)
                if module is not None:
                    found.append(Projection(role, layer, f"blocks.{layer}.attention.{role}", module, num_heads))
            found += [
                Projection("ffn", layer, f"blocks.{layer}.ffn.{name}", module)
                for name, module in block.ffn.named_children()
                if isinstance(module, nn.Linear)
            ]
        return found

    def install(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Hang the repairs into every attention."""
        spec = cast("GPT", model).spec
        for block in _blocks(model):
            device = block.attention.v.weight.device
            if repair.key_shift:
                block.attention.key_shift = KeyShift(repair.key_shift, spec.key_heads)
            if repair.temperature:
                block.attention.temperature = Temperature(spec.num_heads).to(device)

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Drop both maps; attention then averages."""
        for block in _blocks(model):
            block.attention.q = block.attention.k = None

    def specialise(self, model: nn.Module, projection: Projection) -> None:
        """Replace a frozen map that reads coordinates by one that does so without a product."""
        attention = cast("Block", cast("GPT", model).blocks[projection.layer]).attention
        setattr(attention, projection.role, SlicedLinear(cast("nn.Linear", projection.module)))


def _blocks(model: nn.Module) -> list[Block]:
    return cast("list[Block]", list(cast("GPT", model).blocks))
