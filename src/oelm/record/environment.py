"""Where a number was born: machine, versions, commit, command.

Asked once at the start of every run: so it is quick, and what cannot be found out is None, not an error.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import oelm
from oelm.record.schema import EnvironmentRecord

STATUS_SECONDS = 5.0
"""How long git may look for changes; a busy machine takes a while. After that `dirty` is None: not known."""

_VECTORS = {"avx512f": "AVX-512", "avx2": "AVX2"}


def environment(device: str, torch_version: str, command: str | None = None) -> EnvironmentRecord:
    """Describe this process. `device` is "cpu" (its model is looked up) or the name of the accelerator."""
    tree = source_tree()
    commit = commit_of(tree) if tree else None
    return EnvironmentRecord(
        oelm=oelm.__version__,
        python=platform.python_version(),
        torch=torch_version,
        platform=platform.platform(),
        device=cpu_model() if device == "cpu" else device,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        commit=commit,
        dirty=is_dirty(tree) if tree and commit else None,
        command=command if command is not None else command_line(sys.orig_argv),
    )


def command_line(words: Sequence[str], directory: Path | None = None) -> str:
    """Write a command as one would type it, in the run's own `directory` if one is given.

    The interpreter's place is of this machine; so are paths into the run's folder and into the working directory.
    """
    rest = list(words[1:])
    program = [Path(words[0]).name] if words else []
    if rest[:2] == ["-m", "oelm"]:
        program, rest = ["oelm"], rest[2:]
    elif rest and Path(rest[0]).name == "oelm":
        program, rest = ["oelm"], rest[1:]
    return shlex.join([*program, *(_near(word, directory) for word in rest)])


def _near(word: str, directory: Path | None) -> str:
    path = Path(word)
    if not path.is_absolute():
        return word
    for folder in (directory.absolute() if directory else None, Path.cwd()):
        if folder and path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return word


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's model as the kernel names it, with its widest vectors, else its architecture.

    One name may stand for several generations, and sums are rounded as wide as the vectors are.
    """
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text(errors="replace").splitlines()]
    except OSError:
        lines = []
    told = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    model = told.get("model name") or platform.machine() or "cpu"
    flags = told.get("flags", "").split()
    return next((f"{model} ({vectors})" for flag, vectors in _VECTORS.items() if flag in flags), model)


def source_tree() -> Path | None:
    """Return the checkout that this program's code comes from, else the one around the working directory.

    An installed copy may lie in a virtual environment inside some checkout; that one is not its source.
    """
    package = Path(oelm.__file__).resolve().parent
    own = checkout_around(package)
    if own and package == own / "src" / package.name:
        return own
    try:
        return checkout_around(Path.cwd())
    except OSError:  # the working directory has been removed
        return None


def checkout_around(path: Path) -> Path | None:
    """Return the nearest folder at or above `path` that git works in."""
    try:
        return next((folder for folder in (path, *path.parents) if (folder / ".git").exists()), None)
    except OSError:  # a folder on the way that may not be looked into
        return None


def commit_of(tree: Path) -> str | None:
    """Read the commit from git's files: sure and quick, where starting git on a busy machine is neither."""
    try:
        git = tree / ".git"
        if git.is_file():  # a worktree or submodule points to its directory
            git = tree / git.read_text().strip().removeprefix("gitdir: ")
        common = git / (git / "commondir").read_text().strip() if (git / "commondir").exists() else git
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head or None
        name = head.removeprefix("ref: ")
        for folder in (git, common):
            if (folder / name).is_file():
                return (folder / name).read_text().strip()
        packed = (common / "packed-refs").read_text().splitlines()
        return next((line.split()[0] for line in packed if line.endswith(f" {name}")), None)
    except (OSError, UnicodeDecodeError):
        return None


@cache
def history_of(tree: Path) -> frozenset[str] | None:
    """Return every commit that led to the checked-out one; None if git cannot say, or has only a part (shallow)."""
    if (tree / ".git" / "shallow").exists():
        return None
    listed = _git(tree, "rev-list", "HEAD")
    return frozenset(listed.split()) if listed else None


def is_outside_history(commit: str | None) -> bool:
    """Whether a commit is known not to be one that the present source has grown from, so nobody can look it up."""
    tree = source_tree()
    known = history_of(tree) if tree and commit else None
    return known is not None and commit not in known


def is_dirty(tree: Path) -> bool | None:
    """Ask git whether tracked files have changed; None if it cannot say in time."""
    changes = _git(tree, "status", "--porcelain", "--untracked-files=no")
    return None if changes is None else bool(changes.strip())


def _git(tree: Path, *arguments: str) -> str | None:
    """Return what git prints; None if it cannot say in time."""
    command = ["git", "--no-optional-locks", "-C", str(tree), *arguments]
    # Inside a hook GIT_DIR and its kin point to another repository than the one asked about.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(command, env=clean, capture_output=True, timeout=STATUS_SECONDS, check=True)  # noqa: S603  (arguments of our own)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")
