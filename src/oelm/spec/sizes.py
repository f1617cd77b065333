"""How many parameters a GPT's blocks have and how many steps they ask for, in closed form, for declaring sizes."""

from __future__ import annotations

from oelm.spec.model import GPTSpec


def block_parameters(model: GPTSpec) -> int:
    """Count the parameters of all blocks: attention, feed-forward and their norms; no embeddings, no last norm."""
    queries = model.num_heads * model.qk_size
    keys = model.key_heads * model.qk_size
    values = model.key_heads * model.head_size
    attention = model.model_dim * (queries + keys + values + model.num_heads * model.head_size)
    feed_forward = 2 * model.model_dim * model.hidden_dim + model.hidden_dim + model.model_dim
    norms = 2 * model.model_dim * (2 if model.norm == "layer" else 1)
    return model.num_layers * (attention + feed_forward + norms)


def steps_for(tokens_per_parameter: float, model: GPTSpec, batch_size: int) -> int:
    """Return the steps after which a model has seen so many tokens for each block parameter."""
    tokens = tokens_per_parameter * block_parameters(model)
    return max(1, round(tokens / (batch_size * model.context)))
