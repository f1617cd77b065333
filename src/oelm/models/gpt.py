"""Our GPT, how it generates text, and what its heads attend to, in one readable file.

Pre-norm blocks, exact GELU, tied embeddings, no biases in attention. Every matrix is drawn from N(0, 0.02) unless
`GPTSpec.initial_deviation` changes it. Each parameter has its own random stream, named after the parameter, so two
models that differ in one place agree everywhere else.

Axes: B batch, T time, H heads, G key heads, K Q/K head size, D model size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape, InvalidSpec, UsageError
from oelm.method.repair import (
    FoldedRepair,
    KeyMix,
    KeyShift,
    PositionBias,
    PositionFeatures,
    QKNorm,
    QueryBias,
    Temperature,
    append_features,
)
from oelm.models.linear import attend, cast_for_product, gelu_linear, is_sliced
from oelm.models.loss import chunked_cross_entropy, embed_tied
from oelm.spec.run import GPTSpec, stream

LayerCache = dict[str, Tensor]
"""Keys (with positions, but before key shift and key mix) and values of the tokens so far."""


def rotate(x_BHTK: Tensor, first_position: int) -> Tensor:
    """Rotate each pair of coordinates (i, i + K/2) by the position times 10000^(-2i/K)."""
    length, size = x_BHTK.shape[-2:]
    device = x_BHTK.device
    rates_K = 10000.0 ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    positions_T = torch.arange(first_position, first_position + length, device=device, dtype=torch.float32)
    angles_TK = torch.outer(positions_T, rates_K)
    cos, sin = angles_TK.cos().to(x_BHTK.dtype), angles_TK.sin().to(x_BHTK.dtype)
    one, two = x_BHTK.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


def _rotate_from(head: int, x_BHTK: Tensor, first_position: int) -> Tensor:
    """Rotate the heads from number `head` on; the heads before it stay as they are."""
    if head == 0:
        return rotate(x_BHTK, first_position)
    return torch.cat((x_BHTK[:, :head], rotate(x_BHTK[:, head:], first_position)), dim=1)


def split_heads(x_BTC: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H K) to (B, H, T, K)."""
    return x_BTC.view(*x_BTC.shape[:2], heads, -1).transpose(1, 2)


def _project(x_BTD: Tensor, linear: nn.Module | None, fold: FoldedRepair | None) -> Tensor:
    """Apply a projection, with its repairs folded into the weight."""
    dense = cast("nn.Linear", linear)
    if fold is None:
        return cast("Tensor", dense(x_BTD))
    return fold.around(x_BTD, dense) if is_sliced(dense) else F.linear(x_BTD, fold(dense.weight))


class Attention(nn.Module):
    """Causal self-attention. Q and K may be absent: attention then depends on positions only, or is uniform."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.q: nn.Linear | None = nn.Linear(spec.model_dim, spec.num_heads * spec.qk_size, bias=False)
        self.k: nn.Linear | None = nn.Linear(spec.model_dim, spec.key_heads * spec.qk_size, bias=False)
        self.v = nn.Linear(spec.model_dim, spec.key_heads * spec.head_size, bias=False)
        self.o = nn.Linear(spec.num_heads * spec.head_size, spec.model_dim, bias=False)
        self.query_fold: FoldedRepair | None = None
        self.key_fold: FoldedRepair | None = None
        self.query_bias: QueryBias | None = None
        self.qk_norm: QKNorm | None = None
        self.key_shift: KeyShift | None = None
        self.key_mix: KeyMix | None = None
        self.temperature: Temperature | None = None
        self.position_bias: PositionBias | None = None
        self.position_features: PositionFeatures | None = None
        self.content_size = spec.qk_size
        self.unrotated_key_heads = 0
        """Number of key heads, counted from the first, that compare content without rotary positions."""

    def narrow(self, content_size: int) -> None:
        """Keep the first coordinates of each head in Q and K; position features replace the others."""
        self.content_size = content_size
        for role, heads in (("q", self.spec.num_heads), ("k", self.spec.key_heads)):
            dense: nn.Linear = getattr(self, role)
            rows_CI = dense.weight.detach().view(heads, -1, dense.in_features)[:, :content_size].flatten(0, 1)
            narrow = nn.Linear(dense.in_features, heads * content_size, bias=False, device="meta")
            narrow.weight = nn.Parameter(rows_CI.clone(), requires_grad=dense.weight.requires_grad)
            setattr(self, role, narrow)

    @property
    def has_logits(self) -> bool:
        """Whether attention depends on content or position; otherwise it is uniform."""
        return any(each is not None for each in (self.q, self.position_features, self.position_bias))

    @property
    def logit_scale(self) -> float:
        """The factor on the dot product: 1/sqrt of the number of content coordinates."""
        return float(self.content_size) ** -0.5 if self.content_size else 1.0

    def forward(self, x_BTD: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Return for each token a mixture of the values up to it."""
        values = self._remember(cache, "values", split_heads(self.v(x_BTD), self.spec.key_heads))
        if self.has_logits:
            mixed_BHTK = self._attend(*self.queries_and_keys(x_BTD, cache), values)
        else:
            mixed_BHTK = self._average(values, x_BTD.shape[1])
        return self.o(mixed_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of each token, without positions."""
        queries = split_heads(_project(x_BTD, self.q, self.query_fold), self.spec.num_heads)
        keys = split_heads(_project(x_BTD, self.k, self.key_fold), self.spec.key_heads)
        if self.query_bias is not None:
            queries = self.query_bias(queries)
        return (queries, keys) if self.qk_norm is None else (self.qk_norm(queries), self.qk_norm(keys))

    def queries_and_keys(self, x_BTD: Tensor, cache: LayerCache | None = None) -> tuple[Tensor, Tensor]:
        """Return queries of the new tokens and keys of all tokens, ready for the dot product.

        A cache must already contain the values of all tokens.
        """
        batch, new = x_BTD.shape[:2]
        seen = cache["values"].shape[2] if cache else new
        if self.q is None:
            content = (
                x_BTD.new_zeros(batch, self.spec.num_heads, new, 0),
                x_BTD.new_zeros(batch, self.spec.key_heads, seen, 0),
            )
        else:
            content = self._content(x_BTD, seen - new, cache)
        if self.position_features is None:
            return content
        features = self.position_features(new, seen, self.logit_scale)
        queries, keys = (append_features(own, each) for own, each in zip(content, features, strict=True))
        return queries, keys

    def _content(self, x_BTD: Tensor, past: int, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        queries, keys = self.project(x_BTD)
        if self.spec.positions == "rope":
            plain = self.unrotated_key_heads
            queries = _rotate_from(plain * self.spec.num_heads // self.spec.key_heads, queries, past)
            keys = _rotate_from(plain, keys, past)
        keys = self._remember(cache, "keys", keys)
        if self.key_shift is not None:
            keys = self.key_shift(keys)
        if self.key_mix is not None:
            keys = self.key_mix(keys)
        if self.temperature is not None:
            queries = self.temperature(queries)
        return queries, keys

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        new, seen = queries.shape[2], keys.shape[2]
        mask = None
        if self.position_bias is not None:  # it also masks later tokens
            mask = self.position_bias(new, seen).to(queries.dtype)
        elif 1 < new < seen:  # several new tokens after cached ones: none of them may see later tokens
            mask = torch.ones(new, seen, dtype=torch.bool, device=queries.device).tril(seen - new)
        return self._attend_plainly(queries, keys, values, mask)

    def _attend_plainly(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        return attend(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and queries.shape[2] > 1,
            dropout_p=self.spec.dropout if self.training else 0.0,
            scale=self.logit_scale,
            enable_gqa=self.spec.key_heads != self.spec.num_heads,
        )

    def _average(self, values_BGTK: Tensor, new: int) -> Tensor:
        if self.training and self.spec.dropout:
            # Dropout acts on attention weights in all methods: zero queries and keys give equal weights to drop.
            keys_BGTK = torch.zeros_like(values_BGTK)
            queries_BHTK = keys_BGTK.repeat_interleave(self.spec.num_heads // self.spec.key_heads, dim=1)
            return self._attend_plainly(queries_BHTK, keys_BGTK, values_BGTK, None)[:, :, -new:]
        seen = values_BGTK.shape[2]
        counts_T1 = torch.arange(1, seen + 1, device=values_BGTK.device, dtype=values_BGTK.dtype)[:, None]
        means_BGTK = (values_BGTK.cumsum(2) / counts_T1)[:, :, seen - new :]
        return means_BGTK.repeat_interleave(self.spec.num_heads // self.spec.key_heads, dim=1)

    @staticmethod
    def _remember(cache: LayerCache | None, name: str, new_BGTK: Tensor) -> Tensor:
        if cache is None:
            return new_BGTK
        cache[name] = torch.cat((cache[name], new_BGTK), dim=2) if name in cache else new_BGTK
        return cache[name]


class FeedForward(nn.Module):
    """Two linear maps with an exact GELU between them."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.up = nn.Linear(spec.model_dim, spec.hidden_dim)
        self.down = nn.Linear(spec.hidden_dim, spec.model_dim)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform each token separately."""
        before = self.up(x_BTD)
        if self.training and self.dropout.p:
            return self.down(self.dropout(F.gelu(before)))  # type: ignore[no-any-return]
        return gelu_linear(before, self.down.weight, self.down.bias)


class Block(nn.Module):
    """Attention and feed-forward with residual connections."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        norm = nn.LayerNorm if spec.norm == "layer" else nn.RMSNorm
        self.attention_norm = norm(spec.model_dim, eps=1e-5)
        self.attention = Attention(spec)
        self.ffn_norm = norm(spec.model_dim, eps=1e-5)
        self.ffn = FeedForward(spec)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x_BTD: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Apply attention, then the feed-forward map."""
        x_BTD = x_BTD + self.dropout(self.attention(cast_for_product(self.attention_norm(x_BTD)), cache))
        refined_BTD: Tensor = x_BTD + self.dropout(self.ffn(self.ffn_norm(x_BTD)))
        return refined_BTD


class GPT(nn.Module):
    """A causal language model; with `labels` also a classifier that reads the last token of a text."""

    def __init__(self, spec: GPTSpec, seed: int = 0, device: str | torch.device = "cpu") -> None:
        super().__init__()
        if spec.vocab_size is None:
            raise InvalidSpec(
                "A GPT needs a vocabulary, but model.vocab_size is None (that of the data). "
                "Set it, or build the model in a run."
            )
        self.spec = spec
        with torch.device(device):
            self.token_embedding = nn.Embedding(spec.vocab_size, spec.model_dim)
            self.position_embedding = (
                nn.Embedding(spec.context, spec.model_dim) if spec.positions == "learned" else None
            )
            self.blocks = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
            self.norm = (nn.LayerNorm if spec.norm == "layer" else nn.RMSNorm)(spec.model_dim, eps=1e-5)
            self.dropout = nn.Dropout(spec.dropout)
            self.classifier = nn.Linear(spec.model_dim, spec.labels) if spec.labels else None
        if torch.device(device).type != "meta":
            self.initialise(seed)

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Draw every parameter from its own stream, so that it depends only on the seed and its name."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                own = stream(seed, "model", name)
                parameter.copy_(
                    torch.empty(parameter.shape).normal_(0, self._deviation(name, parameter), generator=own)
                )
            else:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def _deviation(self, name: str, parameter: Tensor) -> float:
        """Return the standard deviation of a matrix's initial weights.

        With the rule "width", each of D inputs of about unit size adds a variance of 1/D, so queries, keys, values,
        hidden units and the logits of the tied head have about unit size at every width. The 2 L outputs that are added
        to the residual stream share one unit of variance.
        """
        rule = self.spec.initial_deviation
        if rule != "width":
            return rule
        deviation = 1 / math.sqrt(parameter.shape[-1])  # the last axis of an embedding is the width, too
        is_added = name.endswith(("attention.o.weight", "ffn.down.weight"))
        return deviation / math.sqrt(2 * self.spec.num_layers) if is_added else deviation

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, *, lengths_B: Tensor | None = None) -> Tensor:
        """Return the mean loss against `targets`; without targets, the logits of every next token.

        With the lengths of the texts, return the logits of their labels.
        """
        if lengths_B is not None:
            return self._classify(ids_BT, lengths_B)
        weight_VD = self.token_embedding.weight
        if targets_BT is None:
            return self.hidden(ids_BT) @ weight_VD.T
        if _is_plain(self.token_embedding):
            embedded_BTD, tied = embed_tied(ids_BT, weight_VD)
        else:
            embedded_BTD, tied = self.token_embedding(ids_BT), None
        return chunked_cross_entropy(self._refine(embedded_BTD), weight_VD, targets_BT, tied)

    def _classify(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the logits of the labels. Padding follows the text, so causal attention never sees it."""
        if self.classifier is None:
            raise InvalidSpec("This GPT has no classification head. Build it with model.labels.")
        hidden_BTD = self.hidden(ids_BT)
        last_BD = hidden_BTD[torch.arange(len(lengths_B), device=ids_BT.device), lengths_B - 1]
        return self.classifier(last_BD)  # type: ignore[no-any-return]

    def hidden(self, ids_BT: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        """Return the last hidden states. A cache has the keys and values of earlier tokens and is updated."""
        return self._refine(self.token_embedding(ids_BT), cache)

    def _refine(self, x_BTD: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        """Pass embedded tokens through all blocks."""
        past = cache[0]["values"].shape[2] if cache and cache[0] else 0
        length = x_BTD.shape[1]
        if past + length > self.spec.context and self._is_bound_to_context:
            raise BadShape(
                f"{past + length} tokens do not fit the context of {self.spec.context}. "
                "Shorten the input, or train with a longer model.context."
            )
        if self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(torch.arange(past, past + length, device=x_BTD.device))
        x_BTD = self.dropout(x_BTD)
        for number, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, cache[number] if cache is not None else None)
        return self.norm(x_BTD)  # type: ignore[no-any-return]

    @property
    def _is_bound_to_context(self) -> bool:
        """Whether positions come from a table with `context` entries."""
        attention = cast("Block", self.blocks[0]).attention
        return self.position_embedding is not None or attention.position_bias is not None

    def empty_cache(self) -> list[LayerCache]:
        """Return a cache without tokens."""
        return [{} for _ in self.blocks]


def _is_plain(embedding: nn.Embedding) -> bool:
    """Return whether calling a module is only a lookup: other code has not replaced it or added hooks."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    is_changed = "forward" in embedding.__dict__ or any(embedding.__dict__[each] for each in hooks)
    return type(embedding) is nn.Embedding and not is_changed


# Generation, token by token, with a key/value cache.


@torch.no_grad()
def generate_tokens(
    model: GPT,
    prompt: list[int],
    *,
    new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Yield new tokens one by one; temperature 0 takes the most likely token.

    When the context is full, generation continues from the last half of it, because positions end with the context.
    """
    if not prompt:
        raise UsageError("Generation needs at least one token to start from. Give a prompt, or the end-of-text token.")
    was_training = model.training
    model.eval()
    generator = stream(seed, "generate")
    device = model.token_embedding.weight.device
    seen = prompt[-model.spec.context :]
    fresh, cache = seen, model.empty_cache()
    try:
        for _ in range(new_tokens):
            if len(seen) > model.spec.context:
                seen = seen[-(model.spec.context // 2 + 1) :]
                fresh, cache = seen, model.empty_cache()
            hidden = model.hidden(torch.tensor([fresh], device=device), cache)[0, -1]
            logits_V = (hidden @ model.token_embedding.weight.T).float().cpu()
            token = choose_token(logits_V, temperature, top_k, top_p, generator)
            yield token
            if token == stop:
                return
            fresh = [token]
            seen = [*seen, token]
    finally:
        model.train(was_training)


def choose_token(
    logits_V: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> int:
    """Draw a token, restricted to the k most likely ones and to the smallest set with total probability p."""
    if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise UsageError(
            f"temperature={temperature}, top_k={top_k} and top_p={top_p} were given, but temperature must be at least "
            "0, top_k at least 1, and top_p above 0 and at most 1."
        )
    if temperature == 0:
        return int(logits_V.argmax())
    scaled, order = (logits_V / temperature).sort(descending=True)
    if top_k is not None:
        scaled = scaled[:top_k]
    probabilities = scaled.softmax(-1)
    if top_p is not None:
        # Keep a token if those before it have less than p in total; the first one is always kept.
        probabilities = probabilities.where(probabilities.cumsum(-1) - probabilities < top_p, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])


# What heads attend to: entropy, mean distance, and the variance of logits by content and by position.


@dataclass(frozen=True)
class AttentionSummary:
    """Means over the tokens of some text, by layer and head."""

    entropy: list[list[float]]
    """In nats: 0 attends to one token, log(T) to all tokens equally."""
    distance: list[list[float]]
    """In tokens."""


@dataclass(frozen=True)
class LogitVariances:
    """Variance of the logits of a query over its visible keys, by source, by layer and head; means over queries."""

    content: list[list[float]]
    """Of the product of queries and keys; rotary and learned positions act within it."""
    position: list[list[float]]
    """Of position features and the position bias; zero without them."""


@torch.no_grad()
def attention_summary(model: GPT, ids_BT: Tensor) -> AttentionSummary:
    """Measure the attention of every head on some text."""
    entropies: list[list[float]] = []
    distances: list[list[float]] = []

    def look(attention: Attention, x_BTD: Tensor) -> None:
        weights_BHTT = _weights(attention, x_BTD)
        positions = torch.arange(weights_BHTT.shape[-1], device=weights_BHTT.device)
        back_TT = (positions[:, None] - positions[None, :]).clamp(min=0)
        logs = weights_BHTT.clamp(min=torch.finfo(weights_BHTT.dtype).tiny).log()
        entropies.append((-(weights_BHTT * logs).sum(-1)).mean((0, 2)).tolist())
        distances.append((weights_BHTT * back_TT).sum(-1).mean((0, 2)).tolist())

    _look_at_each_layer(model, ids_BT, look)
    return AttentionSummary(entropies, distances)


@torch.no_grad()
def logit_variances(model: GPT, ids_BT: Tensor) -> LogitVariances:
    """Measure on some text how much the logits of every head vary by content and by position.

    The weights of a query depend only on differences between its logits. So the variance is taken over the keys of each
    query, and averaged over the queries that see more than one key.
    """
    found: tuple[list[list[float]], list[list[float]]] = ([], [])

    def look(attention: Attention, x_BTD: Tensor) -> None:
        # One window at a time, so that this does not set the peak memory of a run.
        by_window = [
            map(_variance_over_keys, _logits_by_source(attention, x_BTD[n : n + 1])) for n in range(len(x_BTD))
        ]
        for kept, windows in zip(found, zip(*by_window, strict=True), strict=True):
            kept.append(torch.cat(windows).mean((0, 2)).tolist())

    _look_at_each_layer(model, ids_BT, look)
    return LogitVariances(*found)


def _look_at_each_layer(model: GPT, ids_BT: Tensor, look: Callable[[Attention, Tensor], None]) -> None:
    """Call `look` with each layer's attention and its input on some text."""
    was_training = model.training
    model.eval()

    def hook(module: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        look(cast("Attention", module), inputs[0])

    hooks = [cast("Block", block).attention.register_forward_hook(hook) for block in model.blocks]
    try:
        model.hidden(ids_BT)
    finally:
        for each in hooks:
            each.remove()
        model.train(was_training)


def _logits_by_source(attention: Attention, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits of content and of position for all pairs of tokens; softmax takes their sum."""
    spec, length, size = attention.spec, x_BTD.shape[1], attention.content_size if attention.q is not None else 0
    queries, keys = attention.queries_and_keys(x_BTD)
    keys = keys.repeat_interleave(spec.num_heads // spec.key_heads, dim=1)
    content_BHTT = queries[..., :size] @ keys[..., :size].mT * attention.logit_scale
    position_BHTT = queries[..., size:] @ keys[..., size:].mT * attention.logit_scale
    if attention.position_bias is not None:
        position_BHTT = position_BHTT + attention.position_bias(length, length)
    return content_BHTT, position_BHTT


def _variance_over_keys(scores_BHTT: Tensor) -> Tensor:
    """Return the variance of each query's logits over the keys up to it, (B, H, T - 1); the first has only one key."""
    length = scores_BHTT.shape[-1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=scores_BHTT.device).tril()
    scores_BHTT = scores_BHTT.float().masked_fill(~causal_TT, 0.0)  # a position bias hides successors by -inf
    counts_T1 = torch.arange(1, length + 1, device=scores_BHTT.device)[:, None]
    means_BHT1 = scores_BHTT.sum(-1, keepdim=True) / counts_T1
    squares_BHTT = (scores_BHTT - means_BHT1).square_().masked_fill_(~causal_TT, 0.0)
    return (squares_BHTT.sum(-1, keepdim=True) / counts_T1)[:, :, 1:, 0]


def _weights(attention: Attention, x_BTD: Tensor) -> Tensor:
    spec, length = attention.spec, x_BTD.shape[1]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=x_BTD.device).tril()
    queries, keys = attention.queries_and_keys(x_BTD)
    keys = keys.repeat_interleave(spec.num_heads // spec.key_heads, dim=1)
    scores_BHTT: Tensor = queries @ keys.mT * attention.logit_scale
    if attention.position_bias is not None:
        scores_BHTT = scores_BHTT + attention.position_bias(length, length)
    return scores_BHTT.masked_fill(~causal_TT, float("-inf")).float().softmax(-1)
