"""Check that archived results equal the run folders before them: every byte of every file, every cell of every table.

    git worktree add /tmp/before REVISION      # a revision in which docs/results still has run folders
    python scripts/compare_results.py /tmp/before/docs/results docs/results

The present code writes the reports of both sides, in both languages. With `--committed` the left side uses its
committed reports instead.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import tyro

from oelm.record.archive import ARCHIVE, open_archives, read_files
from oelm.record.folder import STUDY, read_study, study_folders
from oelm.report.wording import Language
from oelm.report.write import TEXT, report_folder, shared_name, write_final, write_report

Table = list[list[str]]


@dataclass
class Arguments:
    """Compare two folders of results, the second one archived."""

    before: tyro.conf.Positional[Path]
    """Folder with folders of runs."""
    after: tyro.conf.Positional[Path]
    """The same folder, archived."""
    committed: bool = False
    """Use the committed reports in `before`."""


def main() -> int:
    """Compare, print the counts, and return 1 if anything differs."""
    arguments = tyro.cli(Arguments)
    counts: Counter[str] = Counter()
    differs = list(_compare_files(arguments.before, arguments.after, counts))
    with tempfile.TemporaryDirectory() as folder, open_archives(arguments.after) as readable:
        for lang in get_args(Language):
            for old in [*study_folders(arguments.before), arguments.before]:
                relative = old.relative_to(arguments.before)
                made = _write_report(readable / relative, Path(folder) / "after", lang)
                known = (
                    report_folder(old, lang)
                    if arguments.committed
                    else _write_report(old, Path(folder) / "before", lang)
                )
                where = f"{relative} ({lang})"
                differs += _compare_tables(known, made, where, counts)
                shared = arguments.after / relative / shared_name(TEXT, lang)
                counts["committed Markdown reports"] += 1
                if _tables(shared) != _tables(known / TEXT):
                    differs.append(f"{where}: {shared} differs")
    print("\n".join([*differs, ", ".join(f"{count:,} {what}" for what, count in counts.items())]))
    print(f"{len(differs)} differences")
    return bool(differs)


def _compare_files(before: Path, after: Path, counts: Counter[str]) -> list[str]:
    """Compare every file of every run folder, and the declaration, with the archive."""
    differs = []
    for folder in study_folders(before):
        packed = read_files(after / folder.name / ARCHIVE) | {STUDY: (after / folder.name / STUDY).read_bytes()}
        files = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not path.relative_to(folder).parts[0].startswith("report")
        }
        counts["studies"] += 1
        counts["files"] += len(files)
        counts["bytes"] += sum(map(len, files.values()))
        names = sorted(files.keys() | packed.keys())
        differs += [f"{folder.name}/{name} differs" for name in names if files.get(name) != packed.get(name)]
    return differs


def _write_report(folder: Path, out: Path, lang: Language) -> Path:
    """Write the report of a study, or of all studies in a folder, and return its folder."""
    shutil.rmtree(out, ignore_errors=True)
    if (folder / STUDY).is_file():
        write_report(read_study(folder), folder, out, lang)
    else:
        write_final(folder, out, lang)
    return out


def _compare_tables(before: Path, after: Path, name: str, counts: Counter[str]) -> list[str]:
    old, new = ({path.name: _tables(path) for path in _texts(folder)} for folder in (before, after))
    counts["reports"] += 1
    differs = []
    for file in sorted(old.keys() | new.keys()):
        left, right = old.get(file, []), new.get(file, [])
        kind = "CSV" if file.endswith(".csv") else "Markdown"
        counts[f"{kind} tables"] += len(left)
        counts[f"{kind} cells"] += sum(len(row) for table in left for row in table)
        if left != right:
            differs.append(f"{name}: {file} differs")
    return differs


def _texts(folder: Path) -> list[Path]:
    return [*folder.glob("*.csv"), *folder.glob("*.md")]


def _tables(path: Path) -> list[Table]:
    """Return the tables of a CSV file or of a Markdown report."""
    text = path.read_text()
    if path.suffix == ".csv":
        return [list(csv.reader(io.StringIO(text)))]
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [[re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()] for block in blocks]


if __name__ == "__main__":
    sys.exit(main())
