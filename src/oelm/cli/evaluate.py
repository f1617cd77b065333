"""`oelm evaluate`: what a split says of a trained model."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from oelm.record.looks import note_look
from oelm.record.schema import perplexity
from oelm.spec.data import ExamplesSpec, Split

if TYPE_CHECKING:
    from oelm.runner.bind import Data
    from oelm.runner.restore import Restored


@dataclass
class Arguments:
    """Measure a trained model on every token, or every labelled text, of a split."""

    run: tyro.conf.Positional[Path]
    """The folder of a run, or of one checkpoint."""
    split: Split = "test"
    """Which split. Every look at test is written to test_looks.jsonl in the run's folder, and reports count it."""
    data: Path | None = None
    """Token files, or labelled texts, to measure on; by default the run's own. A table of texts is read with the run's
    columns, labels and vocabulary: one file is the split that is asked for, a folder has files by its name."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The end of training, or the best of validation on the way: lowest loss, for labels highest accuracy."""
    threads: int | None = None
    """CPU threads; by default the run's."""
    json: bool = False
    """Print JSON."""


def main(argv: list[str]) -> int:
    """Parse, measure, print."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm evaluate")

    import torch

    from oelm.data.tokens import TokenData
    from oelm.models.gpt import GPT
    from oelm.runner.bind import bound
    from oelm.runner.language import refuse_larger_vocabulary
    from oelm.runner.restore import restore
    from oelm.runner.tasks import task_of

    restored = restore(arguments.run, arguments.checkpoint)
    torch.set_num_threads(arguments.threads or restored.run.train.threads)
    data = _other_data(restored, arguments.data, arguments.split) if arguments.data else bound(restored.run)[1]
    if isinstance(data, TokenData) and isinstance(restored.model, GPT):
        refuse_larger_vocabulary(data, restored.model.token_embedding.num_embeddings)
    task = task_of(restored.run, data, restored.model, torch.device("cpu"))
    if arguments.split == "test" and "test" in task.splits:
        note_look(arguments.run, data.checksum, arguments.checkpoint)
    measured = task.measure(restored.model, arguments.split)
    record = task.data_record()
    judged: dict[str, float | int | None] = (
        {"macro_f1": measured.macro_f1, "rows": record.rows[arguments.split]}
        if isinstance(restored.run.data, ExamplesSpec)
        else {"perplexity": perplexity(measured.loss), "tokens": record.tokens[arguments.split] - 1}
    )
    if measured.accuracy is not None:  # of labels, or of a probe's answers
        judged = {"accuracy": measured.accuracy, **judged}
    result = {
        "split": arguments.split,
        "loss": measured.loss,
        **judged,
        "step": restored.state["progress"]["step"],
        "checksum": data.checksum,
    }
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:10}  {value}" for name, value in result.items()))
    return 0


def _other_data(restored: Restored, path: Path, split: Split) -> Data:
    """Open other data than the run's own, as the run reads its own."""
    from oelm.data.tokens import open_tokens
    from oelm.models.classifier import refuse_longer
    from oelm.runner.bind import on_files

    if not isinstance(restored.run.data, ExamplesSpec):
        restored.refuse_other_vocabulary(path)
        return open_tokens(path)
    data = on_files(restored.run, path, split)
    refuse_longer(restored.model, int(data.splits[split].lengths.max()))
    for note in data.notes:
        print(note, file=sys.stderr)
    return data
