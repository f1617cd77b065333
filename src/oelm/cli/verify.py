"""`oelm verify`: check the files of a run, a study, prepared data or an archive, and repair a copy."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from oelm.cli.terminal import parse

if TYPE_CHECKING:
    from oelm.runs.verify import Finding


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
        print(json.dumps(_as_data(arguments, findings, left), indent=1))
    else:
        _print(arguments, findings, left)
    return int(any(each.is_bad for each in findings) if left is None else bool(left))


def _as_data(arguments: VerifyArguments, findings: list[Finding], left: list[Finding] | None) -> dict[str, object]:
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


def _print(arguments: VerifyArguments, findings: list[Finding], left: list[Finding] | None) -> None:
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
