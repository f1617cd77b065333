"""`oelm export`: a trained model as a plain Hugging Face GPT-2 directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass
class Arguments:
    """Write a trained model as a GPT-2 directory that transformers, lm_eval and others load as it is."""

    run: tyro.conf.Positional[Path]
    """The folder of a run, or of one checkpoint."""
    out: tyro.conf.Positional[Path]
    """A new folder."""
    checkpoint: Literal["latest", "best"] = "latest"
    """The end of training, or the best of validation on the way: lowest loss, for labels highest accuracy."""


def main(argv: list[str]) -> int:
    """Parse and write."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm export")

    from oelm.interop.export import export
    from oelm.runner.restore import restore

    restored = restore(arguments.run, arguments.checkpoint)
    folder = restored.data_directory
    export(restored.gpt, arguments.out, folder if folder.is_dir() else None)
    print(f"{arguments.out}: load it with transformers' AutoModelForCausalLM.from_pretrained({str(arguments.out)!r})")
    return 0
