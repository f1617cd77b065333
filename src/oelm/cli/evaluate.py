"""`oelm evaluate`: the loss of a trained model on a split."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from oelm.spec.data import Split


@dataclass
class Arguments:
    """Measure a trained model on every token of a split."""

    run: tyro.conf.Positional[Path]
    """The folder of a run, or of one checkpoint."""
    split: Split = "test"
    """Which split."""
    data: Path | None = None
    """Token files to measure on; by default those the run was trained on."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The end of training, or the lowest validation loss on the way."""
    threads: int | None = None
    """CPU threads; by default the run's."""
    json: bool = False
    """Print JSON."""


def main(argv: list[str]) -> int:
    """Parse, measure, print."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm evaluate")

    import torch

    from oelm.data.tokens import open_tokens
    from oelm.runner.language import language_task
    from oelm.runner.restore import restore
    from oelm.runner.run import bound

    restored = restore(arguments.run, arguments.checkpoint)
    torch.set_num_threads(arguments.threads or restored.run.train.threads)
    tokens = open_tokens(arguments.data) if arguments.data else bound(restored.run)[1]
    task = language_task(restored.run, tokens, restored.model, torch.device("cpu"))
    loss = task.loss(restored.model, arguments.split)
    result = {
        "split": arguments.split,
        "loss": loss,
        "perplexity": math.exp(loss),
        "tokens": tokens.num_tokens(arguments.split) - 1,
        "step": restored.state["progress"]["step"],
        "checksum": tokens.checksum,
    }
    print(json.dumps(result) if arguments.json else "\n".join(f"{name:10}  {value}" for name, value in result.items()))
    return 0
