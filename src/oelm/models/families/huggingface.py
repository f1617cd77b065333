"""Where Q and K are in the families of `transformers`: a table for the regular ones, a class for each of the others.

To add a regular family, add a line to `REGULAR`. The tests in tests/invariants/ then require a row for it, and
`python scripts/family_table.py` writes it into docs/architectures.md.

Nothing here imports `transformers`, which is slow: a model is recognised by the `model_type` of its configuration, and
its layers by the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from math import gcd
from types import MappingProxyType
from typing import Any, Literal, cast

from torch import nn

from oelm.errors import BadShape, NotCarriedOut
from oelm.method.freeze import refuse_features
from oelm.method.projection import Architecture, Projection
from oelm.method.repair import FoldedRepair, QueryBias
from oelm.method.split import ComputedCoordinates, Fused, SplitModule, narrow_norm
from oelm.models.linear import Coordinates
from oelm.spec.method import POSITION_REPAIRS, MethodSpec, RepairSpec, Role, Site

_ROLES: tuple[Role, ...] = ("q", "k", "v", "o")


@dataclass(frozen=True)
class AttentionLayout:
    """One attention of a layer. Paths are dotted and start at the layer."""

    site: Site
    num_heads: int
    num_key_heads: int | None = None
    """None: the number of query heads."""
    paths: dict[Role, str] = field(default_factory=dict)
    """Paths of the roles that have their own module."""
    fused_path: str | None = None
    fused: Fused | None = None
    transposed: bool = False
    """Whether the modules in `paths` store (input, output)."""

    def heads(self, role: Role) -> int:
        """Return the number of heads of a role."""
        if role in ("k", "v"):
            return self.num_key_heads or self.num_heads
        return self.num_heads if role == "q" else 1


class LayeredFamily(Architecture):
    """A family of `transformers`: subclasses name its types and layers, and describe one layer."""

    models: str = ""
    """Names of its models, for the table in docs/architectures.md."""
    model_types: frozenset[str]
    """Values of `model.config.model_type`."""
    layer_classes: frozenset[str] = frozenset()
    """Class names of its layers. Without any, a layer is a module with the path of the queries."""
    roles: Mapping[Role, str] = MappingProxyType({})
    """Path of each role's module from the layer, for roles that have their own module."""
    fused_path: str | None = None
    """Path of the module that holds q, k and v."""
    interleaved = False
    """Whether the rows of the fused module are ordered by head (q, k and v of head 0, those of head 1, ...)."""
    storage: str = ""
    """How Q and K are stored, in words for the table; "": as the fields above say."""
    ffn: tuple[str, ...] = ()
    """Paths of the feed-forward maps from the layer."""
    ffn_transposed = False
    sites: tuple[Site, ...] = ("self",)
    rotary = False
    """Whether heads have rotary positions, in pairs (i, i + half of the rotated coordinates)."""
    norm_axes: Literal["BTHK", "BHTK", "BTC"] = "BTHK"
    """The axes of what `q_norm` and `k_norm` normalise, if the family has them; C is all heads together."""
    extra_tokens = 1
    """Number of tokens of an image in addition to its patches."""
    # Attention that uses the attention interface of transformers can be repaired there.
    repairs = frozenset(RepairSpec.model_fields) - {"qk_norm"}
    can_remove_qk = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:
        """Describe the attentions of one layer: by default a self-attention with `roles` and perhaps `fused_path`."""
        # A model of several parts (text and image) has a configuration for each, which its attentions know.
        config = getattr(follow_path(layer, self._query_path.rpartition(".")[0]), "config", config)
        heads = config.num_attention_heads
        key_heads = getattr(config, "num_key_value_heads", None) or heads
        fused = None
        if self.fused_path is not None:
            size = getattr(config, "head_dim", None) or config.hidden_size // heads
            rows: tuple[tuple[Role, int], ...] = (("q", heads * size), ("k", key_heads * size), ("v", key_heads * size))
            fused = Fused(rows, groups=heads if self.interleaved else 1)
        yield AttentionLayout("self", heads, key_heads, dict(self.roles), self.fused_path, fused)

    @property
    def _query_path(self) -> str:
        path = self.fused_path or self.roles.get("q")
        if path is None:
            raise NotCarriedOut(f"{type(self).__name__} has no `roles`; name them, or override attentions().")
        return path

    def where(self) -> str:
        """Say how Q and K are stored, for the table of families."""
        if self.storage or self.fused_path is None:
            return self.storage or "modules of their own"
        return "fused, interleaved by head" if self.interleaved else "fused, one after the other"

    def matches(self, model: nn.Module) -> bool:
        """Return whether the model's configuration belongs to this family."""
        return model_type(model) in self.model_types

    def projections(self, model: nn.Module) -> list[Projection]:
        """List the projections of every layer."""
        found: list[Projection] = []
        for name, layer in model.named_modules():
            if not self._is_layer(layer):
                continue
            place = _Layer(layer, name, self.layer_number(name, model.config))
            attentions = list(self.attentions(layer, model.config))
            for attention in attentions:
                found += place.attention(attention)
            found += [
                place.projection("ffn", path, attentions[0].site, transposed=self.ffn_transposed)
                for path in self.ffn
                if has_path(layer, path)
            ]
        return found

    def _is_layer(self, module: nn.Module) -> bool:
        if self.layer_classes:
            return not self.layer_classes.isdisjoint(base.__name__ for base in type(module).__mro__)
        return has_path(module, self._query_path)

    def layer_number(self, name: str, config: Any) -> int:  # noqa: ARG002  (for families that count otherwise)
        """Return the number of a layer from its dotted name."""
        last = name.rpartition(".")[2]
        return int(last) if last.isdigit() else 0

    def num_rotated(self, attention: nn.Module) -> int:
        """Return how many coordinates of a head have rotary positions: all, a part, or none in a layer without."""
        module = cast("Any", attention)
        if not self.rotary or not getattr(module, "use_rope", True):
            return 0
        share = (getattr(module.config, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
        # GPT-NeoX has another name for it
        return int((getattr(module, "head_dim", None) or module.head_size) * share)

    def norms(self, attention: nn.Module, role: Role) -> Iterable[nn.Module]:
        """Return the norms that follow the projection of this role."""
        norm = getattr(attention, f"{role}_norm", None)
        return () if norm is None else (norm,)

    def context(self, model: nn.Module, attention: nn.Module) -> int:
        """Return the largest number of tokens that an attention sees: a text, or the patches of an image."""
        config = getattr(attention, "config", cast("Any", model).config)
        if hasattr(config, "patch_size"):
            return int((config.image_size // config.patch_size) ** 2) + self.extra_tokens
        return int(config.max_position_embeddings)

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse position features, ranks, caches and attention implementations that do not fit together."""
        repair = method.repair
        in_reach = [
            each
            for each in self.projections(model)
            if each.role in ("q", "k") and (method.sites is None or each.site in method.sites)
        ]
        if repair.position_features or method.init.shape == "absent" or method.init.same_heads:
            _refuse_layer_norms(model, in_reach)
        if not repair.active():
            return
        from oelm.models.repaired_attention import refuse_sliding_cache, refuse_unmasked

        if repair.key_shift or repair.key_mix:
            refuse_sliding_cache(cast("Any", model).config)
        if repair.position_bias:
            refuse_unmasked(cast("Any", model).config)
        if POSITION_REPAIRS & set(repair.active()) and all(each.site == "cross" for each in in_reach):
            raise NotCarriedOut(
                "position_features and position_bias need distances between queries and keys, which only "
                "self-attention has, but the method is limited to cross-attention. Add another site, or leave them off."
            )
        for projection in in_reach:
            size = projection.whole_head_size
            if repair.position_features and projection.site != "cross":
                refuse_features(method, size)
                size = self._content(model, projection, repair, absent=method.init.shape == "absent").size
            _refuse_rank(repair.low_rank, projection, size)

    def _content(
        self, model: nn.Module, projection: Projection, repair: RepairSpec, *, absent: bool
    ) -> ComputedCoordinates:
        """Return which coordinates of a head remain for content next to position features."""
        head_size = projection.whole_head_size
        size = head_size - 2 * repair.num_frequencies(head_size)
        if absent:
            return ComputedCoordinates(head_size, 0)
        rotated = self.num_rotated(_attention_of(model, projection))
        if size >= rotated:
            return ComputedCoordinates(head_size, size)
        if rotated < head_size:
            raise BadShape(
                f"Position features would leave {size} coordinates of each head to content, but the first {rotated} of "
                f"{head_size} have rotary positions. Choose position_features of at most {(head_size - rotated) // 2}."
            )
        return ComputedCoordinates(head_size, size, runs=gcd(head_size, size))

    def narrow(self, model: nn.Module, repair: RepairSpec, queries_and_keys: list[Projection]) -> None:
        """Remove the rows of Q and K that position features replace, at sites with distances."""
        for projection in queries_and_keys:
            if projection.site != "cross":
                self._narrow(model, projection, self._content(model, projection, repair, absent=False))

    def _narrow(self, model: nn.Module, projection: Projection, content: ComputedCoordinates) -> None:
        projection.set_apart().narrow(content, projection.num_heads)
        for norm in self.norms(_attention_of(model, projection), projection.role):
            narrow_norm(norm, content)

    def remove_qk(self, model: nn.Module, queries_and_keys: list[Projection]) -> None:
        """Remove all rows of Q and K: no products, no parameters; the logits are zero."""
        for projection in queries_and_keys:
            self._narrow(model, projection, ComputedCoordinates(projection.shape[1], 0))

    def set_apart(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:  # noqa: ARG002
        """Split Q and K from fused tensors if repairs or slices act on their weights."""
        repair = method.repair
        if method.slices_stay or repair.low_rank or repair.diagonal or repair.core or repair.query_bias:
            for projection in queries_and_keys:
                projection.set_apart()

    def install(self, model: nn.Module, method: MethodSpec, queries_and_keys: list[Projection]) -> None:
        """Fold repairs into the weights, and add the others to the attention function of `transformers`."""
        repair, same = method.repair, method.init.same_heads
        turned = [each for each in queries_and_keys if same and self.num_rotated(_attention_of(model, each))]
        if not repair.active() and not turned:
            return
        from oelm.models.repaired_attention import attention_name, install, turn_back

        contents = {}
        for projection in queries_and_keys:
            part = projection.part
            absent = part is not None and part.is_absent
            if part is not None and not absent:
                # One core per pair of query and key head, on the side of the queries, which may have more heads.
                core = repair.core and projection.role == "q"
                fold = FoldedRepair.of(repair, projection.num_heads, part.matrix, core=core)
                part.oelm_fold = None if fold is None else fold.to(part.weight.device)
                if repair.query_bias and projection.role == "q":
                    num_heads, content_size, _ = projection.shape
                    part.oelm_query_bias = QueryBias(num_heads, content_size).to(part.weight.device)
            if repair.position_features and projection.site != "cross":
                content = self._content(model, projection, repair, absent=absent)
                contents[attention_name(projection)] = content
        by_attention: dict[str, dict[str, Projection]] = {}
        for projection in turned:
            by_attention.setdefault(attention_name(projection), {})[projection.role] = projection
        for name, roles in by_attention.items():
            attention = model.get_submodule(name)
            norms = {role: list(self.norms(attention, projection.role)) for role, projection in roles.items()}
            turn_back(attention, roles, same, self.num_rotated(attention), norms, self.norm_axes)
        by_distance = bool(POSITION_REPAIRS & set(repair.active()))
        install(
            model,
            repair,
            queries_and_keys,
            context=(lambda attention: self.context(model, attention)) if by_distance else lambda _: 0,
            contents=contents,
            attentions={attention_name(each) for each in self.projections(model) if each.role in ("q", "k")},
        )

    def specialise(self, model: nn.Module, projection: Projection) -> None:  # noqa: ARG002
        """Read the coordinates of slices instead of multiplying, unless training has changed the rows."""
        part = projection.part
        if part is not None:
            with suppress(ValueError):
                part.reader = Coordinates(part.matrix)


def _attention_of(model: nn.Module, projection: Projection) -> nn.Module:
    return model.get_submodule(projection.module_name.rpartition(".")[0])


def _refuse_rank(rank: int, projection: Projection, content_size: int) -> None:
    full = min(projection.num_heads * content_size, projection.shape[2])
    if rank and rank >= full:
        raise BadShape(
            f"repair.low_rank={rank} was requested on {projection.name}, whose rank is at most {full}. Choose a "
            "smaller one, or train Q and K."
        )


def _refuse_layer_norms(model: nn.Module, queries_and_keys: list[Projection]) -> None:
    """Refuse to change the coordinates of heads that a layer norm with a bias follows."""
    if any(getattr(_attention_of(model, each), "qk_layernorm", False) for each in queries_and_keys):
        raise NotCarriedOut(
            "This model has config.qk_layernorm=True, whose biases add to queries and keys. Position features, heads "
            "that find the same token and attention without Q and K are not implemented with it. Use a method without "
            "them, or a model without these norms."
        )


def model_type(model: nn.Module) -> str | None:
    """Return the `model_type` of a model's configuration, or None."""
    return getattr(getattr(model, "config", None), "model_type", None)


def follow_path(module: Any, path: str) -> Any:
    """Follow a dotted path."""
    return reduce(getattr, path.split("."), module)


def has_path(module: Any, path: str) -> bool:
    """Return whether a dotted path exists."""
    try:
        return follow_path(module, path) is not None
    except AttributeError:
        return False


def without_adapter(module: nn.Module) -> nn.Module:
    """Return the module that PEFT has wrapped, or the module itself."""
    while isinstance(inner := getattr(module, "base_layer", None), nn.Module):
        module = inner
    return module


@dataclass(frozen=True)
class _Layer:
    """One layer, with its name and number in the model."""

    module: nn.Module
    name: str
    number: int

    def attention(self, attention: AttentionLayout) -> Iterator[Projection]:
        """Yield the projections of one attention in the order of roles."""
        fused = attention.fused
        for role in _ROLES:
            heads = attention.heads(role)
            if role in attention.paths:
                path = attention.paths[role]
                yield self.projection(role, path, attention.site, heads, transposed=attention.transposed)
            elif fused is not None and attention.fused_path and role in dict(fused.rows):
                yield self.projection(role, attention.fused_path, attention.site, heads, fused=fused)

    def projection(
        self, role: Role, path: str, site: Site, heads: int = 1, *, transposed: bool = False, fused: Fused | None = None
    ) -> Projection:
        """Return the projection of a role at a path from this layer."""
        module = without_adapter(follow_path(self.module, path))
        if fused is None and isinstance(module, SplitModule):  # the module of a single role has been split
            fused = module.fused
        name = ".".join(filter(None, (self.name, path, role if fused else "")))
        transposed = fused.transposed if fused else transposed
        return Projection(role, self.number, name, module, heads, site, transposed, fused)


_NOT_BY_DISTANCE = LayeredFamily.repairs - POSITION_REPAIRS
_OUTSIDE: dict[str, Any] = {"repairs": frozenset()}
"""Attention that does not use the attention interface of transformers, where repairs act."""
_OWN_BIAS: dict[str, Any] = {"can_remove_qk": False}
"""Logits with terms by position, which would stay without Q and K."""
_GATED = "mlp.gate_proj mlp.up_proj mlp.down_proj"
_FC = "mlp.fc1 mlp.fc2"


class Regular(LayeredFamily):
    """A family in one line: its name, its models, their types, the paths of its roles and feed-forward, and facts.

    `roles` are four paths in the order q, k, v, o, or one fused path and that of o. Facts are attributes of
    `LayeredFamily`.
    """

    def __init__(self, name: str, models: str, types: str, roles: str, ffn: str = "", **facts: Any) -> None:
        self.name, self.models, self.model_types = name, models, frozenset(types.split())
        prefix, _, paths = roles.rpartition(":")
        *mapped, output = (".".join(filter(None, (prefix, path))) for path in paths.split())
        if len(mapped) == 1:
            self.fused_path, self.roles = mapped[0], {"o": output}
        else:
            names: tuple[Role, ...] = ("q", "k", "v", "o")
            self.roles = dict(zip(names, (*mapped, output), strict=True))
        self.ffn = tuple(ffn.split())
        for fact, value in facts.items():
            setattr(self, fact, value)


# Qwen3, Gemma 3 and OLMo 2 normalise queries and keys after the projection; their norms train, as all norms do.
# DeBERTa has other maps for positions (`pos_key_proj`, `pos_query_proj`), which train unless the model shares them
# with the content (`share_att_key`): then they are the same tensors and frozen together.
# Gemma 2 may cap its logits; position features are capped with them and a bias is not.
# fmt: off
REGULAR: tuple[LayeredFamily, ...] = (
    Regular("distilbert", "DistilBERT", "distilbert", "attention:q_lin k_lin v_lin out_lin", "ffn.lin1 ffn.lin2"),
    Regular("deberta-v2", "DeBERTa-v2, v3 (content only)", "deberta-v2",
            "attention:self.query_proj self.key_proj self.value_proj output.dense", "intermediate.dense output.dense",
            **_OUTSIDE, **_OWN_BIAS),
    Regular("mpnet", "MPNet", "mpnet", "attention:attn.q attn.k attn.v attn.o", "intermediate.dense output.dense",
            **_OUTSIDE, **_OWN_BIAS),
    Regular("modernbert", "ModernBERT", "modernbert", "attn:Wqkv Wo", "mlp.Wi mlp.Wo", rotary=True),
    Regular("opt", "OPT", "opt", "self_attn:q_proj k_proj v_proj out_proj", "fc1 fc2"),
    Regular("llama", "Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, SmolLM3, Granite, StableLM",
            "llama mistral qwen2 qwen3 gemma gemma2 smollm3 granite stablelm",
            "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True),
    Regular("gemma3", "Gemma 3 (text)", "gemma3_text", "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True,
            norm_axes="BHTK"),
    Regular("olmo2", "OLMo 2", "olmo2", "self_attn:q_proj k_proj v_proj o_proj", _GATED, rotary=True, norm_axes="BTC"),
    # The experts of Mixtral are tensors of three dimensions, which are not a role.
    Regular("mixtral", "Mixtral", "mixtral", "self_attn:q_proj k_proj v_proj o_proj", rotary=True),
    Regular("phi", "Phi", "phi", "self_attn:q_proj k_proj v_proj dense", _FC, rotary=True),
    Regular("phi3", "Phi-3, Phi-4", "phi3", "self_attn:qkv_proj o_proj", "mlp.gate_up_proj mlp.down_proj", rotary=True),
    Regular("gpt-neox", "GPT-NeoX, Pythia", "gpt_neox", "attention:query_key_value dense",
            "mlp.dense_h_to_4h mlp.dense_4h_to_h", rotary=True, interleaved=True),
    Regular("gpt-neo", "GPT-Neo", "gpt_neo", "attn.attention:q_proj k_proj v_proj out_proj", "mlp.c_fc mlp.c_proj",
            **_OUTSIDE),
    Regular("gpt-j", "GPT-J", "gptj", "attn:q_proj k_proj v_proj out_proj", "mlp.fc_in mlp.fc_out", **_OUTSIDE),
    Regular("bloom", "Bloom", "bloom", "self_attention:query_key_value dense", "mlp.dense_h_to_4h mlp.dense_4h_to_h",
            interleaved=True, **_OUTSIDE, **_OWN_BIAS),
    Regular("mpt", "MPT", "mpt", "attn:Wqkv out_proj", "ffn.up_proj ffn.down_proj", **_OUTSIDE, **_OWN_BIAS),
    Regular("vit", "ViT", "vit", "attention:q_proj k_proj v_proj o_proj", _FC),
    Regular("deit", "DeiT", "deit", "attention:q_proj k_proj v_proj o_proj", _FC, extra_tokens=2),
    Regular("clip", "CLIP (text and image)", "clip clip_text_model clip_vision_model",
            "self_attn:q_proj k_proj v_proj out_proj", _FC),
    Regular("siglip", "SigLIP (text and image)", "siglip siglip_text_model siglip_vision_model",
            "self_attn:q_proj k_proj v_proj out_proj", _FC, extra_tokens=0),
    # Sounds have no greatest length, which repairs by distance need.
    Regular("wav2vec2", "wav2vec 2.0, HuBERT", "wav2vec2 hubert", "attention:q_proj k_proj v_proj out_proj",
            "feed_forward.intermediate_dense feed_forward.output_dense", repairs=_NOT_BY_DISTANCE),
)
# fmt: on


class Albert(LayeredFamily):
    """ALBERT, whose layers share their weights: a layer here is a set of weights, however often it is used."""

    name = "albert"
    models = "ALBERT (shared layers count once)"
    model_types = frozenset({"albert"})
    roles = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "attention.dense"}
    ffn = ("ffn", "ffn_output")

    def layer_number(self, name: str, config: Any) -> int:
        """Count the layers of the groups before, from a name like `albert_layer_groups.1.albert_layers.0`."""
        group, inner = (int(part) for part in name.split(".") if part.isdigit())
        return group * int(config.inner_group_num) + inner


class Falcon(LayeredFamily):
    """Falcon, with one map in three layouts: by group (40B), one key head for all (7B), or by head (RW)."""

    name = "falcon"
    models = "Falcon"
    storage = "fused; interleaved by head or group, or with one key head"
    model_types = frozenset({"falcon"})
    fused_path = "self_attention.query_key_value"
    roles = {"o": "self_attention.dense"}
    ffn = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    repairs = frozenset()

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return the self-attention."""
        heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        is_one = config.multi_query and not config.new_decoder_architecture
        key_heads = 1 if is_one else config.num_kv_heads if config.new_decoder_architecture else heads
        fused = _fuse(heads * size, key_heads * size, groups=1 if is_one else key_heads)
        yield AttentionLayout("self", heads, key_heads, dict(self.roles), self.fused_path, fused)

    def refuse(self, model: nn.Module, method: MethodSpec) -> None:
        """Refuse attention without Q and K if the model adds ALiBi, a term by distance, to the logits."""
        super().refuse(model, method)
        if method.init.shape == "absent" and cast("Any", model).config.alibi:
            raise NotCarriedOut(
                "Without Q and K, attention in a Falcon with alibi=True is not uniform, because its logits have other "
                "terms. Use a Falcon with rotary positions, or another family for this control."
            )


class GPT2Family(LayeredFamily):
    """Linear maps are `Conv1D`, stored as (input, output); `c_attn` holds queries, keys and values."""

    name = "gpt2"
    models = "GPT-2"
    storage = "fused and transposed"
    sites = ("self", "cross")
    model_types = frozenset({"gpt2"})
    fused_path = "attn.c_attn"
    ffn = ("mlp.c_fc", "mlp.c_proj")
    ffn_transposed = True

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:
        """Return the self-attention, and a cross-attention, whose queries have their own module."""
        heads, size = config.num_attention_heads, config.hidden_size
        qkv, kv = _fuse(size, size, transposed=True), Fused((("k", size), ("v", size)), transposed=True)
        yield AttentionLayout(
            "self", heads, paths={"o": "attn.c_proj"}, fused_path="attn.c_attn", fused=qkv, transposed=True
        )
        if has_path(layer, "crossattention"):
            yield AttentionLayout(
                "cross",
                heads,
                paths={"q": "crossattention.q_attn", "o": "crossattention.c_proj"},
                fused_path="crossattention.c_attn",
                fused=kv,
                transposed=True,
            )


class Bert(LayeredFamily):
    """BERT, RoBERTa, ELECTRA and others with its layers: query, key and value are modules with biases."""

    name = "bert"
    models = "BERT, RoBERTa, XLM-R, CamemBERT, ELECTRA"
    sites = ("self", "cross")
    model_types = frozenset({"bert", "roberta", "electra", "xlm-roberta", "camembert"})
    layer_classes = frozenset({"BertLayer", "RobertaLayer", "ElectraLayer", "XLMRobertaLayer", "CamembertLayer"})
    ffn = ("intermediate.dense", "output.dense")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return the self-attention, and the cross-attention of a decoder."""
        sites: dict[Site, str] = {"self": "attention", "cross": "crossattention"}
        for site, path in sites.items():
            if has_path(layer, path):
                names = {"q": "self.query", "k": "self.key", "v": "self.value", "o": "output.dense"}
                yield _attention(layer, site, path, "self.num_attention_heads", names)


class Bart(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, with biases."""

    name = "bart"
    models = "BART, mBART"
    sites = ("encoder", "decoder", "cross")
    model_types = frozenset({"bart", "mbart"})
    layer_classes = frozenset({"BartEncoderLayer", "BartDecoderLayer", "MBartEncoderLayer", "MBartDecoderLayer"})
    ffn = ("fc1", "fc2")

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return one attention of an encoder layer, two of a decoder layer."""
        names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}
        is_decoder = has_path(layer, "encoder_attn")
        yield _attention(layer, "decoder" if is_decoder else "encoder", "self_attn", "num_heads", names)
        if is_decoder:
            yield _attention(layer, "cross", "encoder_attn", "num_heads", names)


class Whisper(Bart):
    """Whisper, with the layers of BART. Keys have no bias; sounds and texts have their own greatest length."""

    name = "whisper"
    models = "Whisper"
    model_types = frozenset({"whisper"})
    layer_classes = frozenset({"WhisperEncoderLayer", "WhisperDecoderLayer"})

    def context(self, model: nn.Module, attention: nn.Module) -> int:
        """Return the greatest length of the encoder or of the decoder."""
        config = cast("Any", model).config
        return int(config.max_target_positions if attention.is_decoder else config.max_source_positions)


class T5(LayeredFamily):
    """Encoder-self, decoder-self and cross attention, without biases and without the scale 1/sqrt(K).

    The logits have a trained term by distance, which is not a part of Q and K. It always trains, so attention is not
    uniform without Q and K. Without the scale, orthogonal heads start with logits that are sqrt(K) times larger.
    """

    name = "t5"
    models = "T5, mT5"
    sites = ("encoder", "decoder", "cross")
    model_types = frozenset({"t5", "mt5"})
    layer_classes = frozenset({"T5Block", "MT5Block"})
    ffn = tuple(f"layer.{place}.DenseReluDense.{name}" for place in (1, 2) for name in ("wi", "wi_0", "wi_1", "wo"))
    can_remove_qk = False
    repairs = _NOT_BY_DISTANCE  # it already has a trained bias by distance

    def attentions(self, layer: nn.Module, config: Any) -> Iterable[AttentionLayout]:  # noqa: ARG002
        """Return one attention of an encoder block, two of a decoder block."""
        names = {role: role for role in ("q", "k", "v", "o")}
        yield _attention(layer, "decoder" if layer.is_decoder else "encoder", "layer.0.SelfAttention", "n_heads", names)
        if layer.is_decoder:
            yield _attention(layer, "cross", "layer.1.EncDecAttention", "n_heads", names)


FAMILIES: tuple[LayeredFamily, ...] = (
    Bert(), *REGULAR[:2], Albert(), *REGULAR[2:], GPT2Family(), Falcon(), T5(), Bart(), Whisper(),
)  # fmt: skip

REFUSED = {
    "longformer": "Each layer has a second Q and K for tokens with global attention, and freezing one pair is not the "
    "method. Name the pair that you want: q='query', k='key' freezes the local one.",
    "led": "Each encoder layer has a second Q and K for tokens with global attention, and freezing one pair is not the "
    "method. Name the pair that you want: q='query', k='key' freezes the local one.",
    "deepseek_v2": "Keys and values come from one compressed map, so that K has no weights of its own.",
    "deepseek_v3": "Keys and values come from one compressed map, so that K has no weights of its own.",
    "fnet": "It mixes tokens by a Fourier transform and has no attention.",
    "mamba": "It is a state-space model and has no attention.",
    "mamba2": "It is a state-space model and has no attention.",
    "openai-gpt": "Q, K and V are one module without a row here. Write an oelm.Architecture with oelm.Fused.",
    "reformer": "Queries and keys are one map, so that neither can be drawn or frozen alone.",
    "rwkv": "It has no queries and keys.",
    "squeezebert": "Q and K are grouped convolutions, of which a head is not a block of rows.",
    "xlnet": "Q and K are tensors of three dimensions in the attention, not linear maps.",
}
"""Why a method cannot be applied to a type of model."""


def _attention(layer: nn.Module, site: Site, path: str, heads: str, names: dict[Any, str]) -> AttentionLayout:
    """Describe an attention whose roles have their own modules, with `names` below its `path`."""
    paths = {role: f"{path}.{name}" for role, name in names.items()}
    return AttentionLayout(site, follow_path(layer, f"{path}.{heads}"), paths=paths)


def _fuse(query_rows: int, key_rows: int, **layout: Any) -> Fused:
    """Describe one tensor with q, k and v."""
    return Fused((("q", query_rows), ("k", key_rows), ("v", key_rows)), **layout)
