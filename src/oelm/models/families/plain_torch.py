"""Where Q and K are in models of plain torch: our own GPT, and any model with the attention of torch."""

from __future__ import annotations

from collections import Counter
from typing import cast

from torch import nn

from oelm.errors import BadShape, NotCarriedOut
from oelm.method.freeze import refuse_features
from oelm.method.projection import Architecture, Projection
from oelm.method.repair import (
    FoldedRepair,
    KeyMix,
    KeyShift,
    PositionBias,
    PositionFeatures,
    QKNorm,
    QueryBias,
    Temperature,
)
from oelm.method.split import Fused
from oelm.models.gpt import GPT, Attention, Block
from oelm.models.linear import SlicedLinear
from oelm.spec.method import MethodSpec, RepairSpec, Role, Site, heads_of


class OwnGPT(Architecture):
    """Our GPT. Each role has its own module, so nothing is split."""

    name = "gpt"
    repairs = frozenset(RepairSpec.model_fields)
    can_remove_qk = True

    def matches(self, model: nn.Module) -> bool:
        """Return whether `model` is our GPT."""
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

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse position features that leave no content, and a low-rank repair of full rank."""
        spec, rank = cast("GPT", model).spec, method.repair.low_rank
        content_size = refuse_features(method, spec.qk_size)
        full = min(spec.model_dim, spec.key_heads * content_size)
        if rank and rank >= full:
            raise BadShape(
                f"repair.low_rank={rank} was requested, but Q and K have a rank of at most {full}. Choose a smaller "
                "one, or train Q and K."
            )

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Narrow Q and K of every block."""
        for block in _blocks(model):
            attention = block.attention
            attention.narrow(attention.spec.qk_size - 2 * repair.num_frequencies(attention.spec.qk_size))

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Add the repairs to every attention."""
        for block in _blocks(model):
            attention = block.attention
            _add_repairs(attention, method.repair)
            # A head that looks for the same token must find it at any distance, so it has no rotary positions.
            attention.unrotated_key_heads = heads_of(method.init.same_heads, attention.spec.key_heads)
            attention.to(attention.v.weight.device)

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Remove Q and K; attention is then uniform."""
        for block in _blocks(model):
            block.attention.q = block.attention.k = None
            block.attention.content_size = 0

    def specialise(self, model: nn.Module, projection: Projection) -> None:
        """Replace a frozen map that reads coordinates by one without a matrix product."""
        attention = cast("Block", cast("GPT", model).blocks[projection.layer]).attention
        setattr(attention, projection.role, SlicedLinear(cast("nn.Linear", projection.module)))


def _add_repairs(attention: Attention, repair: RepairSpec) -> None:
    spec, q, k = attention.spec, attention.q, attention.k
    if repair.position_features:
        number = repair.num_frequencies(spec.qk_size)
        attention.position_features = PositionFeatures(spec.num_heads, spec.key_heads, number, spec.context)
    if repair.position_bias:
        attention.position_bias = PositionBias(spec.num_heads, spec.context)
    if q is None or k is None:
        return
    # There is one core per pair of query and key head, on the side of the queries, which may have more heads.
    attention.query_fold = FoldedRepair.of(repair, spec.num_heads, q.weight, core=repair.core)
    attention.key_fold = FoldedRepair.of(repair, spec.key_heads, k.weight, core=False)
    if repair.query_bias:
        attention.query_bias = QueryBias(spec.num_heads, attention.content_size)
    if repair.qk_norm:
        attention.qk_norm = QKNorm()
    if repair.key_shift:
        attention.key_shift = KeyShift(repair.key_shift, spec.key_heads)
    if repair.key_mix:
        attention.key_mix = KeyMix(spec.key_heads)
    if repair.temperature or repair.qk_norm:
        attention.temperature = Temperature(spec.num_heads)


def _blocks(model: nn.Module) -> list[Block]:
    return cast("list[Block]", list(cast("GPT", model).blocks))


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
