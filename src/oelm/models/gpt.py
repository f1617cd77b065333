"""Our GPT, in one readable file.

Pre-norm blocks, exact GELU, tied embeddings, no biases in attention, every matrix N(0, 0.02). Each parameter is
drawn from a stream named after it, so that two models which differ in one place agree everywhere else.

Axes: B batch, T time, H heads, G key heads, K Q/K head size, D model size, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.errors import BadShape, InvalidSpec
from oelm.method.orthogonal import stream
from oelm.method.repair import Fold, KeyMix, KeyShift, PositionBias, QKNorm, Temperature
from oelm.models.gelu import gelu_linear
from oelm.models.loss import chunked_cross_entropy
from oelm.spec.model import INITIAL_DEVIATION, GPTSpec

LayerCache = dict[str, Tensor]
"""Keys (as attention reads them but neither shifted nor mixed) and values of the tokens so far."""


def rotate(x_BHTK: Tensor, first_position: int) -> Tensor:
    """Turn each pair of coordinates (i, i + K/2) by its position times 10000^(-2i/K)."""
    length, size = x_BHTK.shape[-2:]
    device = x_BHTK.device
    rates_K = 10000.0 ** (-torch.arange(0, size, 2, device=device, dtype=torch.float32) / size)
    positions_T = torch.arange(first_position, first_position + length, device=device, dtype=torch.float32)
    angles_TK = torch.outer(positions_T, rates_K)
    cos, sin = angles_TK.cos().to(x_BHTK.dtype), angles_TK.sin().to(x_BHTK.dtype)
    one, two = x_BHTK.chunk(2, dim=-1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1)


def split_heads(x_BTC: Tensor, heads: int) -> Tensor:
    """Cut the last axis into heads: (B, T, H K) to (B, H, T, K)."""
    return x_BTC.view(*x_BTC.shape[:2], heads, -1).transpose(1, 2)


def _folded(x_BTD: Tensor, linear: nn.Module | None, fold: Fold | None) -> Tensor:
    """Apply a projection that is there, through the weight that its repairs make of its own."""
    dense = cast("nn.Linear", linear)
    return dense(x_BTD) if fold is None else F.linear(x_BTD, fold(dense.weight))


class Attention(nn.Module):
    """Causal self-attention. Q and K may be absent: then every token averages the values it may see."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.spec = spec
        self.q: nn.Linear | None = nn.Linear(spec.model_dim, spec.num_heads * spec.qk_size, bias=False)
        self.k: nn.Linear | None = nn.Linear(spec.model_dim, spec.key_heads * spec.qk_size, bias=False)
        self.v = nn.Linear(spec.model_dim, spec.key_heads * spec.head_size, bias=False)
        self.o = nn.Linear(spec.num_heads * spec.head_size, spec.model_dim, bias=False)
        self.query_fold: Fold | None = None
        self.key_fold: Fold | None = None
        self.qk_norm: QKNorm | None = None
        self.key_shift: KeyShift | None = None
        self.key_mix: KeyMix | None = None
        self.temperature: Temperature | None = None
        self.position_bias: PositionBias | None = None

    def forward(self, x_BTD: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Mix the values of the past into each token."""
        values = split_heads(self.v(x_BTD), self.spec.key_heads)
        if self.q is None or self.k is None:
            mixed_BHTK = self._average(self._remember(cache, "values", values), x_BTD.shape[1])
        else:
            mixed_BHTK = self._attend(*self.project(x_BTD), values, cache)
        return self.o(mixed_BHTK.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of each token, positions apart."""
        queries = split_heads(_folded(x_BTD, self.q, self.query_fold), self.spec.num_heads)
        keys = split_heads(_folded(x_BTD, self.k, self.key_fold), self.spec.key_heads)
        return (queries, keys) if self.qk_norm is None else (self.qk_norm(queries), self.qk_norm(keys))

    def queries_and_keys(self, queries: Tensor, keys: Tensor, cache: LayerCache | None) -> tuple[Tensor, Tensor]:
        """Return queries of the new tokens and keys of all tokens, as the logits are taken from them."""
        if self.spec.positions == "rope":
            past = 0 if not cache else cache["keys"].shape[2]
            queries, keys = rotate(queries, past), rotate(keys, past)
        keys = self._remember(cache, "keys", keys)
        if self.key_shift is not None:
            keys = self.key_shift(keys)
        if self.key_mix is not None:
            keys = self.key_mix(keys)
        if self.temperature is not None:
            queries = self.temperature(queries)
        return queries, keys

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, cache: LayerCache | None) -> Tensor:
        queries, keys = self.queries_and_keys(queries, keys, cache)
        values = self._remember(cache, "values", values)
        new, seen = queries.shape[2], keys.shape[2]
        mask = None
        if self.position_bias is not None:  # which hides successors, too
            mask = self.position_bias(new, seen).to(queries.dtype)
        elif 1 < new < seen:  # several new tokens after a past: none of them may see its successors
            mask = torch.ones(new, seen, dtype=torch.bool, device=queries.device).tril(seen - new)
        return self._attend_plainly(queries, keys, values, mask)

    def _attend_plainly(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and queries.shape[2] > 1,
            dropout_p=self.spec.dropout if self.training else 0.0,
            enable_gqa=self.spec.key_heads != self.spec.num_heads,
        )

    def _average(self, values_BGTK: Tensor, new: int) -> Tensor:
        if self.training and self.spec.dropout:
            # All other methods drop attention weights, so this one must: no queries and no keys give equal weights.
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
        """Transform each token by itself."""
        before = self.up(x_BTD)
        if self.training and self.dropout.p:
            return self.down(self.dropout(F.gelu(before)))  # type: ignore[no-any-return]
        return gelu_linear(before, self.down.weight, self.down.bias)


class Block(nn.Module):
    """Attention and feed-forward, each added to what it read."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        norm = nn.LayerNorm if spec.norm == "layer" else nn.RMSNorm
        self.attention_norm = norm(spec.model_dim, eps=1e-5)
        self.attention = Attention(spec)
        self.ffn_norm = norm(spec.model_dim, eps=1e-5)
        self.ffn = FeedForward(spec)
        self.dropout = nn.Dropout(spec.dropout)

    def forward(self, x_BTD: Tensor, cache: LayerCache | None = None) -> Tensor:
        """Refine each token by its past and by itself."""
        x_BTD = x_BTD + self.dropout(self.attention(self.attention_norm(x_BTD), cache))
        refined_BTD: Tensor = x_BTD + self.dropout(self.ffn(self.ffn_norm(x_BTD)))
        return refined_BTD


class GPT(nn.Module):
    """A causal language model; with `labels` also a classifier that reads the last token of a text."""

    def __init__(self, spec: GPTSpec, seed: int = 0, device: str | torch.device = "cpu") -> None:
        super().__init__()
        if spec.vocab_size is None:
            raise InvalidSpec(
                "a GPT needs a vocabulary: model.vocab_size is None, which stands for that of the data. "
                "Give a number, or build the model through a run."
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
        """Draw every parameter from its own stream, so that it depends on its name and on nothing else."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                own = stream(seed, "model", name)
                parameter.copy_(torch.empty(parameter.shape).normal_(0, INITIAL_DEVIATION, generator=own))
            else:
                parameter.fill_(1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, *, lengths_B: Tensor | None = None) -> Tensor:
        """Return the mean loss against `targets`, or logits where there are none.

        With the lengths of the texts these are of their labels, else of every next token.
        """
        if lengths_B is not None:
            return self._classify(ids_BT, lengths_B)
        hidden_BTD = self.hidden(ids_BT)
        if targets_BT is None:
            return hidden_BTD @ self.token_embedding.weight.T
        return chunked_cross_entropy(hidden_BTD, self.token_embedding.weight, targets_BT)

    def _classify(self, ids_BT: Tensor, lengths_B: Tensor) -> Tensor:
        """Return the logits of the labels. Texts are padded at their end, where causal attention does not look."""
        if self.classifier is None:
            raise InvalidSpec("this GPT has no classification head; build it with model.labels.")
        hidden_BTD = self.hidden(ids_BT)
        last_BD = hidden_BTD[torch.arange(len(lengths_B), device=ids_BT.device), lengths_B - 1]
        return self.classifier(last_BD)  # type: ignore[no-any-return]

    def hidden(self, ids_BT: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        """Return the last hidden states. A cache holds the past of `ids` and is brought up to date."""
        past = cache[0]["values"].shape[2] if cache and cache[0] else 0
        length = ids_BT.shape[1]
        if past + length > self.spec.context:
            raise BadShape(
                f"{past + length} tokens do not fit the context of {self.spec.context}. "
                "Shorten the input, or train with a longer model.context."
            )
        x_BTD = self.token_embedding(ids_BT)
        if self.position_embedding is not None:
            x_BTD = x_BTD + self.position_embedding(torch.arange(past, past + length, device=ids_BT.device))
        x_BTD = self.dropout(x_BTD)
        for number, block in enumerate(self.blocks):
            x_BTD = block(x_BTD, cache[number] if cache is not None else None)
        return self.norm(x_BTD)  # type: ignore[no-any-return]

    def empty_cache(self) -> list[LayerCache]:
        """Return the cache of no tokens."""
        return [{} for _ in self.blocks]
