"""Where Q and K are in the attention of torch."""

from __future__ import annotations

from collections import Counter

from torch import nn

from oelm.errors import NotCarriedOut
from oelm.method.projection import Architecture, Projection
from oelm.method.split import Fused
from oelm.spec.method import Role, Site


class TorchAttention(Architecture):
    """Any model with `nn.MultiheadAttention`, also inside nn.TransformerEncoder, -Decoder and Transformer.

    `in_proj_weight` packs queries, keys and values. Layers are numbered by site in the order of the model. The fast
    path of nn.TransformerEncoderLayer reads the same packed tensor, which a split module still has.
    """

    name = "torch"
    models = "`nn.MultiheadAttention`, `nn.TransformerEncoder`, ..."
    sites: tuple[Site, ...] = ("self", "encoder", "decoder", "cross")
    can_remove_qk = True

    def where(self) -> str:
        """Say how Q and K are stored, for the table of families."""
        return "packed"

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model contains torch's attention."""
        return any(isinstance(module, nn.MultiheadAttention) for module in model.modules())

    def projections(self, model: nn.Module) -> list[Projection]:
        """List q, k, v, o of every attention, and the feed-forward maps of torch's layers."""
        found: list[Projection] = []
        seen: Counter[Site] = Counter()
        modules = dict(model.named_modules())
        whole = any(isinstance(module, nn.Transformer) for module in modules.values())
        for name, module in modules.items():
            if not isinstance(module, nn.MultiheadAttention):
                continue
            parent_name, _, own_name = name.rpartition(".")
            parent = modules[parent_name]
            site = _site(parent, own_name, whole=whole)
            found += _attention(name, module, seen[site], site)
            if own_name == "self_attn" and isinstance(parent, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                found += [
                    Projection("ffn", seen[site], _join(parent_name, linear), getattr(parent, linear), site=site)
                    for linear in ("linear1", "linear2")
                ]
            seen[site] += 1
        return found


def _attention(name: str, module: nn.MultiheadAttention, layer: int, site: Site) -> list[Projection]:
    if module.in_proj_weight is None:
        raise NotCarriedOut(
            f"{name or 'This nn.MultiheadAttention'} was made with kdim or vdim, which torch stores unpacked. "
            "Give keys and values the size of the queries, or register an architecture."
        )
    size = module.embed_dim
    fused = Fused((("q", size), ("k", size), ("v", size)), weight="in_proj_weight", bias="in_proj_bias")
    roles: tuple[Role, ...] = ("q", "k", "v")
    found = [Projection(role, layer, _join(name, role), module, module.num_heads, site, fused=fused) for role in roles]
    return [*found, Projection("o", layer, _join(name, "out_proj"), module.out_proj, site=site)]


def _site(parent: nn.Module, name: str, *, whole: bool) -> Site:
    if isinstance(parent, nn.TransformerDecoderLayer):
        return "cross" if name == "multihead_attn" else "decoder"
    return "encoder" if whole and isinstance(parent, nn.TransformerEncoderLayer) else "self"


def _join(*names: str) -> str:
    return ".".join(filter(None, names))
