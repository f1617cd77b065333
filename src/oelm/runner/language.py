"""Language modelling as a task: token files in, a loss per token out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from oelm.data.batches import TrainingBatches, evaluation_batches
from oelm.data.tokens import TokenData
from oelm.errors import BadData
from oelm.models.gpt import GPT
from oelm.spec.data import Split
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec
from oelm.train.evaluate import mean_loss


@dataclass(frozen=True)
class LanguageTask:
    """The windows of a corpus, cut for one run."""

    run: RunSpec
    tokens: TokenData
    context: int
    batches: TrainingBatches
    device: torch.device

    @property
    def units_per_step(self) -> int:
        """Tokens of one step."""
        return self.run.train.batch_size * self.context

    def batch(self, step: int, rows: slice) -> tuple[Tensor, ...]:
        """Return inputs and targets of some rows of a step."""
        return self.batches.batch(step, rows)

    def validate(self, model: nn.Module) -> float:
        """Return the loss on the fixed part of validation that is looked at along the way."""
        return self.loss(model, "val", self.run.train.eval_tokens)

    def loss(self, model: nn.Module, split: Split, limit: int | None = None) -> float:
        """Return the loss on a whole split, or on its first tokens."""
        batches = evaluation_batches(
            self.tokens.split(split),
            context=self.context,
            limit=limit,
            batch_size=max(1, self.run.train.batch_size // self.run.train.accumulation),
        )
        return mean_loss(model, batches, self.device, self.run.train.precision)


def language_task(run: RunSpec, tokens: TokenData, model: GPT, device: torch.device) -> LanguageTask:
    """Cut a corpus into the windows of a run."""
    context = model.spec.context
    batches = TrainingBatches(tokens.split("train"), context=context, batch_size=run.train.batch_size, seed=run.seed)
    return LanguageTask(run, tokens, context, batches, device)


def build_gpt(spec: GPTSpec, tokens: TokenData, seed: int, device: torch.device) -> GPT:
    """Build the run's model with the vocabulary of its data.

    The weights are drawn on the CPU wherever the model lives, so that they are the same there.
    """
    vocab_size = spec.vocab_size or tokens.vocab_size
    if vocab_size < tokens.vocab_size:
        raise BadData(
            f"the tokens in {tokens.directory} come from a vocabulary of {tokens.vocab_size}, and the model has "
            f"model.vocab_size={vocab_size}. Leave that field out, or prepare the data with a smaller one."
        )
    return GPT(spec.model_copy(update={"vocab_size": vocab_size}), seed).to(device)
