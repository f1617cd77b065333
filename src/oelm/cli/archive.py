"""`oelm archive`, `oelm unpack`, `oelm show` and `oelm verify`: keep the runs of a study, read them, check them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from oelm.cli import say
from oelm.cli.terminal import parse
from oelm.errors import UsageError

if TYPE_CHECKING:
    from oelm.runs.verify import Finding


_T = TypeVar("_T")


@dataclass
class ArchiveArguments:
    """Pack the records, curves and other small files of a study into OUT/runs.tar.xz, next to its declaration.

    Weights, checkpoints, logs, unfinished runs and paths of this machine are left out. The study may be unfinished:
    `oelm unpack` and `oelm run` continue it on another machine. `oelm report OUT --markdown` adds the report.

      oelm archive runs/demo --out docs/results/demo
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Folder with the study's runs, or the Python file that declares the study (its runs are then in runs/)."""
    out: Path
    """Folder to write, for example docs/results/fair-imdb."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    alone: bool = False
    """Store every file, also those that the archive of a neighbouring folder already stores."""


def archive_command(argv: list[str]) -> int:
    """Pack a study."""
    arguments = parse(ArchiveArguments, argv, "oelm archive")

    from oelm.analysis.compare import find_study
    from oelm.cli.report import find_members
    from oelm.record.archive import ARCHIVE, open_archives
    from oelm.record.keep import keep_archived

    study, root = find_study(arguments.study, Path("runs"), arguments.scale)
    with open_archives(root) as readable:
        members = find_members(study, readable)
        ended = [(path, record) for path, record in members if record.status in ("complete", "failed")]
        index = keep_archived(study, readable, ended, arguments.out, alone=arguments.alone)
    if len(ended) < len(members):
        say(f"{len(members) - len(ended)} runs have not ended and are left out")
    places = sorted({entry.stored_in for entry in index.files if entry.stored_in})
    shared = sum(entry.stored_in is not None for entry in index.files)
    where = f", {shared} of them stored by {', '.join(places)}" if shared else ""
    path = arguments.out / ARCHIVE
    say(f"{path}: {len(ended)} runs, {len(index.files)} files{where}; {path.stat().st_size / 1e6:.2f} MB")
    return 0


@dataclass
class UnpackArguments:
    """Unpack the runs of an archived study, for example to continue it on another machine.

    Runs that are already there are not touched.

      oelm unpack docs/results/fair-imdb
      oelm run studies/fair.py --scale core-imdb
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """Folder with a runs.tar.xz."""
    out: Path = Path("runs")
    """Folder to write. The runs go into a folder inside it that has the study's name, as those of `oelm run` do."""


def unpack_command(argv: list[str]) -> int:
    """Unpack a study."""
    arguments = parse(UnpackArguments, argv, "oelm unpack")

    from oelm.record.archive import ARCHIVE, add_runs
    from oelm.record.folder import read_study

    folder = arguments.folder.parent if arguments.folder.name == ARCHIVE else arguments.folder
    if not (folder / ARCHIVE).is_file():
        raise UsageError(f"{folder} has no {ARCHIVE}. Give the folder of an archived study.")
    target = arguments.out / read_study(folder).name
    added, present = add_runs(folder, target)
    say(f"{target}: {added} runs unpacked" + (f", {present} were there already" if present else ""))
    return 0


FIRST = ("status", "failure", "error", "step", "started", "finished", "result", "parameters", "seconds")
"""Fields that readers look for first. The long spec follows with the rest."""


@dataclass
class ShowArguments:
    """Print the record of a run: its spec, where it ran and its results. Archives are searched, too.

    For example:

      oelm show oelm-freeze-seed0
      oelm show 3f2a91 --json
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a part of its name or fingerprint that no other run has."""
    runs: tuple[Path, ...] = (Path("runs"), Path("docs/results"))
    """Folders to search. A run that several studies share is read from the first of them."""
    json: bool = False
    """Print the record as JSON."""


def show_command(argv: list[str]) -> int:
    """Find a run and print its record."""
    arguments = parse(ShowArguments, argv, "oelm show")

    from oelm.record.archive import open_archives
    from oelm.record.folder import RECORD, read_record

    if (Path(arguments.run) / RECORD).is_file():
        path = Path(arguments.run).resolve()
        folder, name = path.parent, path.name
    else:
        first = dict(reversed([(name, (folder, name)) for folder, name in _list_runs(arguments.runs)]))
        folder, name = choose_run(arguments.run, list(first.items()), arguments.runs)
    with open_archives(folder) as root:
        directory = root / name
        record = read_record(directory)
        if arguments.json:
            say((directory / RECORD).read_text(), end="")
            return 0
        files = ", ".join(sorted(path.name for path in directory.iterdir() if path.is_file()))
        say(f"{name}\nin {folder}: {files}\n")
        plain = record.model_dump(mode="json")
        ordered = {key: plain.pop(key) for key in FIRST} | plain
        say("\n".join(_format_lines(ordered)))
    return 0


def choose_run(words: str, known: Sequence[tuple[str, _T]], roots: Sequence[Path]) -> _T:
    """Return the one run (its name and a value) whose fingerprint starts with, or whose name contains, some words."""
    by_print = [run for run in known if run[0].rpartition("_")[2].startswith(words)]
    found = by_print or [run for run in known if words in run[0]]
    if len(found) == 1:
        return found[0][1]
    names = ", ".join(sorted({name for name, _ in found or known})[:12]) or "there are none"
    count = f"{len(found)} runs" if found else "no run"
    places = " and ".join(map(str, roots))
    raise UsageError(f"{words!r} matches {count} in {places}. Give a folder or a longer part of a name: {names}.")


def _list_runs(roots: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the folder that holds a run, unpacked or in its archive, and the name of the run's own folder."""
    from oelm.record.archive import archives_below, read_index
    from oelm.record.folder import RECORD

    for root in roots:
        for path in sorted(root.glob(f"**/{RECORD}")):
            yield path.parent.parent, path.parent.name
        for archive in archives_below(root):
            for entry in read_index(archive).files:
                name, _, file = entry.name.rpartition("/")
                if file == RECORD:
                    yield archive.parent, name


def _format_lines(value: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Write nested values as indented lines; leave out empty ones."""
    for key, item in value.items():
        if isinstance(item, dict):
            lines = list(_format_lines(item, f"{indent}  "))
            yield from [f"{indent}{key}:", *lines] if lines else []
        elif item not in (None, [], ""):
            first, *more = (", ".join(map(str, item)) if isinstance(item, list) else str(item)).split("\n")
            yield f"{indent}{key}: {first}"
            yield from (f"{indent}  {line}" for line in more)


@dataclass
class VerifyArguments:
    """Check every file of a run, a study, prepared data or an archive against its checksum.

    Files that an earlier version wrote without a checksum are counted as unprotected. The exit code is 1 if a file is
    damaged or missing. With --repair a repaired copy is written, the original is not touched, and the exit code says
    whether the copy is intact.

      oelm verify runs/demo
      oelm verify runs/demo --repair runs/demo-repaired
    """

    path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    """Folder of a run, of a study, of several studies or of prepared data; or a runs.tar.xz."""
    repair: Path | None = None
    """New folder for a copy in which everything that can be repaired is repaired."""
    json: bool = False
    """Print the state of every file as JSON."""


def verify_command(argv: list[str]) -> int:
    """Check files, and print what is damaged and what can be repaired."""
    arguments = parse(VerifyArguments, argv, "oelm verify")

    from oelm.runs.verify import repair, verify

    findings = verify(arguments.path)
    left = None if arguments.repair is None else repair(arguments.path, findings, arguments.repair)
    if arguments.json:
        print(json.dumps(_findings_as_data(arguments, findings, left), indent=1))
    else:
        _print_findings(arguments, findings, left)
    return int(any(each.is_bad for each in findings) if left is None else bool(left))


def _findings_as_data(
    arguments: VerifyArguments, findings: list[Finding], left: list[Finding] | None
) -> dict[str, object]:
    def plain(items: list[Finding]) -> list[dict[str, object]]:
        return [
            {"path": str(each.path), "state": each.state, "detail": each.detail, "repair": each.repair}
            for each in items
        ]

    counts = dict.fromkeys(("intact", "unprotected", "damaged", "missing"), 0) | Counter(
        each.state for each in findings
    )
    data: dict[str, object] = {"path": str(arguments.path), **counts, "files": plain(findings)}
    return data if left is None else {**data, "repaired": str(arguments.repair), "left": plain(left)}


def _print_findings(arguments: VerifyArguments, findings: list[Finding], left: list[Finding] | None) -> None:
    from oelm.runs.verify import REPAIRS

    for each in findings:
        if each.is_bad:
            print(f"{each.state}: {each.path}: {each.detail}")
            help_ = REPAIRS[each.repair] if each.repair else "none; restore it from a copy, or make it again"
            print(f"  repair: {help_}")
    counts = Counter(each.state for each in findings)
    print(
        f"{arguments.path}: {counts['intact']} files intact, {counts['unprotected']} without a checksum (written by an "
        f"earlier version), {counts['damaged']} damaged, {counts['missing']} missing"
    )
    if left is not None:
        print(f"{arguments.repair}: a repaired copy; {len(left) or 'no'} files in it are still damaged or missing")
