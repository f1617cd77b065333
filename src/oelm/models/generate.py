"""Generate text with our GPT, token by token, with a key/value cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from oelm.errors import UsageError
from oelm.models.gpt import GPT
from oelm.spec.seeds import stream


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
