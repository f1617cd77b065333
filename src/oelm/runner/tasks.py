"""Which task a run is: by the kind of its data."""

from __future__ import annotations

import torch
from torch import nn

from oelm.data.encoded import EncodedExamples
from oelm.models.gpt import GPT
from oelm.runner.bind import Data
from oelm.runner.classification import ClassificationTask, build_for, classification_task
from oelm.runner.language import LanguageTask, build_gpt, language_task
from oelm.spec.model import GPTSpec
from oelm.spec.run import RunSpec

AnyTask = LanguageTask | ClassificationTask


def build_model(run: RunSpec, data: Data, device: torch.device) -> nn.Module:
    """Build the model of a bound run, before its method."""
    if isinstance(data, EncodedExamples):
        return build_for(run, data, device)
    assert isinstance(run.model, GPTSpec)  # noqa: S101  (binding has refused all others)
    return build_gpt(run.model, data, run.seed_of("init"), device)


def task_of(run: RunSpec, data: Data, model: nn.Module, device: torch.device) -> AnyTask:
    """Batch the data of a bound run for its model."""
    if isinstance(data, EncodedExamples):
        return classification_task(run, data, device)
    assert isinstance(model, GPT)  # noqa: S101  (as built above)
    return language_task(run, data, model, device)
