"""Labelled text as files: one of JSON lines for each split, in a folder that is whole or not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from oelm.data.examples import Examples, local_folder
from oelm.data.tasks import corpus_of
from oelm.errors import UsageError
from oelm.spec.data import ExamplesSpec


def write_examples(examples: Examples, spec: ExamplesSpec, directory: Path) -> bool:
    """Write each split under its name, with the columns of the corpus; return whether there was anything to do.

    There is nothing to do where the folder is the one that was read, whatever its files are called.

    Raises:
        UsageError: the folder holds something else, which is not overwritten.

    """
    read = local_folder(spec)
    if read is not None and read.resolve() == directory.resolve():
        return False
    corpus = corpus_of(spec)
    texts, label = [names[0] for names in corpus.texts], corpus.label[0]
    files = {
        f"{split}.jsonl": "".join(
            json.dumps({**dict(zip(texts, row, strict=True)), label: examples.labels[number]}, ensure_ascii=False)
            + "\n"
            for row, number in zip(rows.texts, rows.labels, strict=True)
        ).encode()
        for split, rows in examples.splits.items()
    }
    if directory.exists():
        found = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
        if found == files:
            return False
        raise UsageError(
            f"{directory} was to hold {examples.corpus}, but holds something else ({', '.join(sorted(found))}), "
            "and nothing is overwritten. Choose another folder with --out, or delete this one."
        )
    aside = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in files.items():
        (aside / name).write_bytes(content)
    aside.rename(directory)
    return True
