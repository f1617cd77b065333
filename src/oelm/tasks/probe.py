"""Probes: generated text that is measured by the share of right answers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from oelm.data.probes import LENGTH, guess_rate
from oelm.data.probes import answers as answer_places
from oelm.errors import BadData
from oelm.models.gpt import GPT
from oelm.models.loss import token_cross_entropy
from oelm.record.folder import TestLossesRecord
from oelm.record.record import DataRecord
from oelm.spec.run import ProbeSpec, Split, probe_of
from oelm.tasks import SplitResult
from oelm.tasks.language import LanguageTask, as_gpt
from oelm.train.loop import Measured


@dataclass(frozen=True)
class ProbeTask(LanguageTask):
    """Predict the next token of a probe; only its answers count."""

    reports_perplexity = False

    @property
    def probe(self) -> ProbeSpec:
        """The probe that the tokens were made for; a model may be measured on a larger one than it was trained on."""
        corpus = self.run.data.corpus if self.tokens.meta is None else self.tokens.meta.corpus
        probe = probe_of(corpus)
        if probe is None:
            raise BadData(
                f"{self.tokens.directory} holds {corpus!r}, which is not a probe, but the run was trained on the probe "
                f"{self.run.data.corpus!r}. Prepare a probe, for example with `oelm prepare recall:4`."
            )
        return probe

    def _measure_start(self, model: GPT) -> Measured:
        loss, record = self._judge(model, "val", self.run.train.eval_tokens)
        return Measured(loss, record.share)

    def measure(self, model: nn.Module, split: Split) -> SplitResult:
        """Measure a whole split by its answers."""
        loss, record = self._judge(model, split)
        return SplitResult(loss, record.share, losses=record)

    def _judge(self, model: nn.Module, split: Split, limit: int | None = None) -> tuple[float, TestLossesRecord]:
        kept = Answers(as_gpt(model), self.probe)
        return self._mean_loss(kept, split, limit), kept.record()

    def describe(self, result: SplitResult, split: Split) -> dict[str, float | int | None]:
        """Return the share of right answers in addition to what is known of text."""
        return {"accuracy": result.accuracy, **super().describe(result, split)}

    def data_record(self) -> DataRecord:
        """Return the corpus, and the share of right answers that counting alone gives."""
        return super().data_record().model_copy(update={"guess": guess_rate(self.probe)})


class Answers(nn.Module):
    """A GPT that keeps whether its most likely token is the right one. It is called like the GPT."""

    def __init__(self, model: GPT, probe: ProbeSpec) -> None:
        super().__init__()
        self.model, self.probe = model, probe
        self.kept: list[Tensor] = []
        self.train(model.training)

    def forward(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean loss over all tokens, and keep which predictions are right."""
        hidden_BTD, weight_VD = self.model.hidden(ids_BT), self.model.token_embedding.weight
        found_BT = (hidden_BTD @ weight_VD.mT).argmax(-1)
        self.kept.append((found_BT == targets_BT).flatten().cpu())
        return token_cross_entropy(hidden_BTD, weight_VD, targets_BT)[0]

    def record(self) -> TestLossesRecord:
        """Count the right answers by document. The tokens must start with the first of a split, in order."""
        right = torch.cat(self.kept).numpy()
        numbers, places = np.divmod(np.arange(1, len(right) + 1), LENGTH)  # the first token is never predicted
        asked = np.isin(places, answer_places(self.probe))
        counts = np.bincount(numbers[asked])
        correct = np.bincount(numbers[asked], weights=right[asked]).astype(int)
        return TestLossesRecord(kind="answers", correct=tuple(correct.tolist()), tokens=tuple(counts.tolist()))
