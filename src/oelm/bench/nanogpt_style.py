"""A GPT written as nanoGPT writes it, as an opponent for benchmarks.

One fused projection for q, k and v, `scaled_dot_product_attention`, the logits of the whole batch and
`F.cross_entropy` over them. The maps of attention have no bias and the feed-forward has, so that it is our model.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.models.gpt import GPT
from oelm.models.gpt import Block as OurBlock
from oelm.spec.model import GPTSpec


class CausalSelfAttention(nn.Module):
    """Attention from one fused projection."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.heads = spec.num_heads
        self.c_attn = nn.Linear(spec.model_dim, 3 * spec.model_dim, bias=False)
        self.c_proj = nn.Linear(spec.model_dim, spec.model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mix the values of the past into each token."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and feed-forward."""

    def __init__(self, spec: GPTSpec) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(spec.model_dim)
        self.attn = CausalSelfAttention(spec)
        self.ln_2 = nn.LayerNorm(spec.model_dim)
        self.c_fc = nn.Linear(spec.model_dim, spec.hidden_dim)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(spec.hidden_dim, spec.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Refine each token."""
        x = x + self.attn(self.ln_1(x))
        refined: Tensor = x + self.c_proj(self.gelu(self.c_fc(self.ln_2(x))))
        return refined


class NanoGPTStyle(nn.Module):
    """The same function as our GPT with learned positions, from the same weights."""

    def __init__(self, ours: GPT) -> None:
        super().__init__()
        spec = ours.spec
        self.wte = nn.Embedding(cast("int", spec.vocab_size), spec.model_dim)
        self.wpe = nn.Embedding(spec.context, spec.model_dim)
        self.h = nn.ModuleList(Block(spec) for _ in range(spec.num_layers))
        self.ln_f = nn.LayerNorm(spec.model_dim)
        self.lm_head = nn.Linear(spec.model_dim, cast("int", spec.vocab_size), bias=False)
        self.wte.weight = self.lm_head.weight
        self._take(ours)

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss."""
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))

    @torch.no_grad()
    def _take(self, ours: GPT) -> None:
        self.wte.weight.copy_(ours.token_embedding.weight)
        self.wpe.weight.copy_(cast("nn.Embedding", ours.position_embedding).weight)
        self.ln_f.load_state_dict(ours.norm.state_dict())
        mine_and_other = zip(cast("list[Block]", list(self.h)), cast("list[OurBlock]", list(ours.blocks)), strict=True)
        for mine, other in mine_and_other:
            attention = other.attention
            fused = [cast("nn.Linear", part).weight for part in (attention.q, attention.k, attention.v)]
            mine.attn.c_attn.weight.copy_(torch.cat(fused))
            mine.attn.c_proj.weight.copy_(attention.o.weight)
            pairs = ((mine.ln_1, other.attention_norm), (mine.ln_2, other.ffn_norm), (mine.c_fc, other.ffn.up))
            for its, our in (*pairs, (mine.c_proj, other.ffn.down)):
                its.load_state_dict(our.state_dict())
