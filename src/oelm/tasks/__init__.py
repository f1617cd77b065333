"""Tasks: what a run learns. One table maps the kind of a run to its task."""

from __future__ import annotations

import torch

from oelm.spec.data import TaskKind
from oelm.spec.model import HuggingFaceSpec
from oelm.spec.run import RunSpec
from oelm.tasks.classification import ClassificationTask
from oelm.tasks.decoder import DecoderTask
from oelm.tasks.language import LanguageTask
from oelm.tasks.probe import ProbeTask
from oelm.tasks.seq2seq import Seq2SeqTask
from oelm.tasks.task import Data, Task

TASKS: dict[TaskKind, type[Task]] = {
    "language": LanguageTask,
    "probe": ProbeTask,
    "classification": ClassificationTask,
    "seq2seq": Seq2SeqTask,
}


def task_class(run: RunSpec) -> type[Task]:
    """Return the class of a run's task."""
    if run.data.task == "language" and isinstance(run.model, HuggingFaceSpec):
        return DecoderTask
    return TASKS[run.data.task]


def make_task(run: RunSpec, data: Data, device: torch.device) -> Task:
    """Create the task of a resolved run from its data."""
    return task_class(run)(run, data, device)
