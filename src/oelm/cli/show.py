"""`oelm show`: the record of a run, from its folder or from an archive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from oelm.errors import UsageError

FIRST = ("status", "failure", "error", "step", "started", "finished", "result", "parameters", "seconds")
"""What a reader looks for first; the long spec follows with the rest."""


@dataclass
class Arguments:
    """Print the record of a run: what was declared, where it ran, what came out. Archives are looked into as well."""

    run: tyro.conf.Positional[str]
    """A run's folder, or enough of its name or fingerprint to tell it from the others below --out."""
    out: tuple[Path, ...] = (Path("runs"), Path("docs/results"))
    """Folders to look for it in. A run that several studies share is taken from the first."""
    json: bool = False
    """Print the record as it is stored, for a machine."""


def main(argv: list[str]) -> int:
    """Parse, find, print."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm show")

    from oelm.record.archive import opened
    from oelm.record.store import RECORD, read_record

    folder, name = _found(arguments.run, arguments.out)
    with opened(folder) as root:
        directory = root / name
        record = read_record(directory)
        if arguments.json:
            print((directory / RECORD).read_text(), end="")
            return 0
        files = ", ".join(sorted(path.name for path in directory.iterdir() if path.is_file()))
        print(f"{name}\nin {folder}: {files}\n")
        plain = record.model_dump(mode="json")
        ordered = {key: plain.pop(key) for key in FIRST} | plain
        print("\n".join(_lines(ordered)))
    return 0


def _found(run: str, out: tuple[Path, ...]) -> tuple[Path, str]:
    """Return the folder that holds a run, unpacked or in its archive, and the name of the run's own folder."""
    from oelm.record.store import RECORD

    if (Path(run) / RECORD).is_file():
        path = Path(run).resolve()
        return path.parent, path.name
    known = dict(reversed([(name, folder) for folder, name in _runs(out)]))
    prints = sorted(name for name in known if name.rpartition("_")[2].startswith(run))
    found = prints or sorted(name for name in known if run in name)
    if len(found) == 1:
        return known[found[0]], found[0]
    names = ", ".join((found or sorted(known))[:12]) or "there are none"
    count = f"{len(found)} runs" if found else "no run"
    places = " and ".join(map(str, out))
    raise UsageError(f"{run} fits {count} below {places}. Give a folder, or enough of its name: {names}.")


def _runs(out: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    from oelm.record.archive import archives_below, read_index
    from oelm.record.store import RECORD

    for folder in out:
        for path in sorted(folder.glob(f"**/{RECORD}")):
            yield path.parent.parent, path.parent.name
        for archive in archives_below(folder):
            for entry in read_index(archive).files:
                name, _, file = entry.name.rpartition("/")
                if file == RECORD:
                    yield archive.parent, name


def _lines(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Set nested values as indented lines, without those that are absent or empty."""
    for key, item in value.items():
        if isinstance(item, dict):
            lines = list(_lines(item, f"{indent}  "))
            yield from [f"{indent}{key}:", *lines] if lines else []
        elif item not in (None, [], ""):
            first, *more = (", ".join(map(str, item)) if isinstance(item, list) else str(item)).split("\n")
            yield f"{indent}{key}: {first}"
            yield from (f"{indent}  {line}" for line in more)
