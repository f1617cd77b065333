"""`oelm note`: write a note or tags into the folder of a run, for the results page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from oelm.cli.terminal import parse
from oelm.errors import UsageError


@dataclass
class NoteArguments:
    """Write a note, tags or a mark into the folder of a run. `oelm serve` shows them, and `tag:NAME` filters by them.

    The results page itself only reads, so that a web page in the same browser can never change a run. No result,
    fingerprint or report depends on notes. Without options the notes are printed.

      oelm note runs/demo/baseline-seed0_1f0c --text "the good one" --tag paper
      oelm note runs/old/* --hide
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of runs."""
    text: str | None = None
    """Note that replaces the one before. An empty text removes it."""
    tag: tuple[str, ...] = ()
    """Tags to add."""
    untag: tuple[str, ...] = ()
    """Tags to remove."""
    hide: bool = False
    """Leave the runs out of the results page unless it is asked to show them."""
    unhide: bool = False
    """Show hidden runs again."""


def note_command(argv: list[str]) -> int:
    """Change the notes of some runs, and print them."""
    asked = parse(NoteArguments, argv, "oelm note")

    from oelm.record.folder import RECORD, SPEC, RunFolder

    if asked.hide and asked.unhide:
        raise UsageError("--hide and --unhide contradict each other. Give one of them.")
    if bad := [tag for tag in asked.tag if not tag or any(letter.isspace() for letter in tag)]:
        raise UsageError(f"the tag {bad[0]!r} is empty or has spaces, so no filter could find it. Use one word.")
    strangers = [run for run in asked.runs if not ((run / RECORD).is_file() or (run / SPEC).is_file())]
    if strangers or not asked.runs:
        named = strangers[0] if strangers else "nothing"
        raise UsageError(f"{named} is not the folder of a run. Give folders that contain {RECORD}.")
    for run in asked.runs:
        folder = RunFolder(run)
        before = folder.read_notes()
        kept = [tag for tag in dict.fromkeys((*before.tags, *asked.tag)) if tag not in asked.untag]
        notes = before.model_copy(
            update={
                "text": before.text if asked.text is None else asked.text,
                "tags": tuple(kept),
                "hidden": (before.hidden or asked.hide) and not asked.unhide,
            }
        )
        if notes != before:
            folder.write_notes(notes)
        marks = [*(f"#{tag}" for tag in notes.tags), *(["hidden"] if notes.hidden else [])]
        print(f"{run.name}: {' '.join([*marks, notes.text]).strip() or 'no notes'}")
    return 0
