"""Text from our GPT, token by token, with a key/value cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from oelm.errors import UsageError
from oelm.method.orthogonal import stream
from oelm.models.gpt import GPT


@torch.no_grad()
def generate(
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
    """Yield new tokens one by one; temperature 0 takes the likeliest.

    When the context is full, the last half of the text becomes the new past: positions are learned for that many
    tokens and no more.
    """
    if not prompt:
        raise UsageError("generation needs at least one token to start from; give a prompt, or the end-of-text token.")
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
            token = choose(logits_V, temperature, top_k, top_p, generator)
            yield token
            if token == stop:
                return
            fresh = [token]
            seen = [*seen, token]
    finally:
        model.train(was_training)


def choose(
    logits_V: Tensor, temperature: float, top_k: int | None, top_p: float | None, generator: torch.Generator
) -> int:
    """Draw a token from the logits, restricted to the k likeliest and to the smallest set of mass p."""
    if temperature < 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
        raise UsageError(
            f"temperature={temperature}, top_k={top_k}, top_p={top_p}: they must be at least 0, at least "
            "1, and above 0 up to 1."
        )
    if temperature == 0:
        return int(logits_V.argmax())
    scaled, order = (logits_V / temperature).sort(descending=True)
    if top_k is not None:
        scaled = scaled[:top_k]
    probabilities = scaled.softmax(-1)
    if top_p is not None:
        # Keep every token before which less than p is gathered: always at least one.
        probabilities = probabilities.where(probabilities.cumsum(-1) - probabilities < top_p, 0.0)
    return int(order[torch.multinomial(probabilities, 1, generator=generator)])
