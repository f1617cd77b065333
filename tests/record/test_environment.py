from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oelm.record import record as module
from oelm.record.record import (
    checkout_around,
    command_line,
    commit_of,
    cpu_model,
    describe_environment,
    is_dirty,
    is_outside_history,
    source_tree,
)


def git(tree: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "core.hooksPath=/dev/null", *words]
    return subprocess.run(command, cwd=tree, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):  # set while a hook runs the tests
        monkeypatch.delenv(name, raising=False)
    tree = tmp_path / "tree"
    tree.mkdir()
    git(tree, "init", "-q", "-b", "trunk")
    (tree / "file").write_text("one")
    git(tree, "add", "file")
    git(tree, "commit", "-qm", "one")
    return tree


def fake_git(checkout: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of the name before git's own, and ask about `checkout`."""
    (checkout.parent / "git").write_text(f"#!/bin/sh\n{script}\n")
    (checkout.parent / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{checkout.parent}:/usr/bin:/bin")
    monkeypatch.setattr(module, "source_tree", lambda: checkout)


def test_a_run_waits_for_one_question_to_git_and_no_more(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = checkout.parent / "asked"
    fake_git(checkout, monkeypatch, f'echo "$@" >> {asked}')
    assert describe_environment("cpu", "2.13.0").dirty is False
    (question,) = asked.read_text().splitlines()
    assert " status " in question


def test_an_accelerator_keeps_its_name_and_a_command_is_kept_as_given() -> None:
    found = describe_environment("NVIDIA A100", "2.13.0", "oelm run x.py")
    assert (found.device, found.torch, found.command) == ("NVIDIA A100", "2.13.0", "oelm run x.py")


def test_without_a_command_it_is_the_one_of_this_process() -> None:
    code = "from oelm.record.record import describe_environment as describe; print(describe('cpu', '2').command)"
    done = subprocess.run([sys.executable, "-c", code, "a b"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith(f"{Path(sys.executable).name} -c ")
    assert done.stdout.strip().endswith("'a b'")


def test_the_processor_is_named_as_the_kernel_names_it(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Fast 9000 @ 4 GHz\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Fast 9000 @ 4 GHz"
    assert cpu_model(tmp_path / "none")


@pytest.mark.parametrize(
    ("flags", "name"),
    [("fpu sse avx2 avx512f", "Fast (AVX-512)"), ("fpu avx avx2", "Fast (AVX2)"), ("fpu avx", "Fast")],
)
def test_processors_of_one_name_are_told_apart_by_their_vectors(tmp_path: Path, flags: str, name: str) -> None:
    core = f"model name\t: Fast\nflags\t\t: {flags}\n"
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{core}\nprocessor\t: 1\n{core}")
    assert cpu_model(tmp_path / "cpuinfo") == name


def test_the_commit_is_gits(checkout: Path) -> None:
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD")


def test_a_packed_a_detached_and_a_worktrees_commit_are_found(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "worktree", "add", "-q", "-b", "side", "../side")
    git(checkout, "pack-refs", "--all")
    assert commit_of(checkout) == commit
    assert commit_of(checkout.parent / "side") == commit
    git(checkout, "checkout", "-q", "--detach")
    assert commit_of(checkout) == commit


def test_a_changed_file_makes_the_tree_dirty_and_a_new_one_does_not(checkout: Path) -> None:
    (checkout / "new").write_text("untracked: runs, notes")
    assert is_dirty(checkout) is False
    (checkout / "file").write_text("two")
    assert is_dirty(checkout) is True


def test_a_hooks_variables_do_not_lead_to_another_repository(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / "file").write_text("two")
    monkeypatch.setenv("GIT_DIR", str(checkout / "elsewhere"))
    assert is_dirty(checkout) is True


def test_a_folder_that_is_no_checkout_has_neither(tmp_path: Path) -> None:
    assert checkout_around(tmp_path) is None
    assert commit_of(tmp_path) is None
    assert is_dirty(tmp_path) is None


def test_a_folder_that_may_not_be_looked_into_is_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "exists", refuse)
    assert checkout_around(tmp_path) is None


def test_a_repository_without_a_commit_has_neither(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None


def test_a_broken_repository_and_a_missing_git_are_survived(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkout / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(module, "source_tree", lambda: checkout)
    found = describe_environment("cpu", "2.13.0")
    assert (found.commit, found.dirty) == (None, None)


def test_a_slow_git_leaves_the_commit_known(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(checkout, monkeypatch, "exec sleep 600")
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.1)
    found = describe_environment("cpu", "2.13.0")
    assert found.commit is not None
    assert found.dirty is None


def test_an_installed_copy_is_not_taken_for_part_of_the_checkout_around_it(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = checkout / ".venv" / "lib" / "oelm"
    package.mkdir(parents=True)
    monkeypatch.setattr(module.oelm, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert source_tree() is None
    monkeypatch.chdir(checkout)
    assert source_tree() == checkout


def test_the_source_tree_is_found_from_anywhere(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = checkout / "src" / "oelm"
    package.mkdir(parents=True)
    monkeypatch.setattr(module.oelm, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert source_tree() == checkout


def test_a_command_is_written_as_one_would_type_it_in_the_runs_folder(tmp_path: Path) -> None:
    words = [
        "/opt/venv/bin/python",
        "-m",
        "oelm",
        "train",
        "--spec",
        str(tmp_path / "spec.json"),
        "--out",
        str(tmp_path),
    ]
    assert command_line(words, tmp_path) == "oelm train --spec spec.json --out ."
    assert command_line(["/opt/bin/python3", "/opt/bin/oelm", "run", "studies/x y.py"]) == "oelm run 'studies/x y.py'"
    assert command_line(["/usr/bin/python3", "scripts/train_v2.py"]) == "python3 scripts/train_v2.py"
    assert command_line([]) == ""


def test_a_commit_that_did_not_land_is_outside_the_history(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "source_tree", lambda: checkout)
    landed = commit_of(checkout)
    assert not is_outside_history(landed)
    assert is_outside_history("0" * 40)
    assert not is_outside_history(None)
    module.history_of.cache_clear()
    (checkout / ".git" / "shallow").write_text(f"{landed}\n")  # the clone has only a part of the history
    assert not is_outside_history("0" * 40)
    module.history_of.cache_clear()
