"""Preparation: exact, repeatable, never half, never over something else."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from oelm.data import prepare as module
from oelm.data import stories
from oelm.data.meta import WORKSPACE, ProgressReporter, TokenMeta, read_meta
from oelm.data.prepare import Workspace, default_directory, find_or_prepare, prepare
from oelm.data.sources import HUB_CORPORA, HubCorpus
from oelm.data.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from oelm.errors import BadData, OelmError, RunLocked, UsageError
from oelm.spec.run import DataSpec

TEXTS = [f"Story {number}. " + "The cat sat on the mat.\n" * (number % 5 + 1) for number in range(100)]
FILES = ("train.bin", "val.bin", "test.bin")
TRAINED = train_tokenizer(["Another text, with another vocabulary. "] * 20, 280)


def write_stories(path: Path, texts: list[str] = TEXTS) -> Path:
    path.write_text("".join(f"{text}<|endoftext|>\n" for text in texts))
    return path


def spec_for(path: Path, **fields: object) -> DataSpec:
    return DataSpec.model_validate({"corpus": "mine", "source": path, **fields})


def meta_of(directory: Path) -> TokenMeta:
    meta = read_meta(directory)
    assert meta is not None
    return meta


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir() if file.name != ".lock"}


class Listening(ProgressReporter):
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done: list[int] = []
        self.total: int | None = None

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        self.total = total

    def update(self, done: int, tokens: int) -> None:
        self.done.append(done)

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.shared
def test_wikitext_keeps_its_splits_and_has_the_known_number_of_tokens(shared_data: Path, tmp_path: Path) -> None:
    spec = DataSpec(corpus="wikitext-103", source=shared_data / "wikitext-103")
    meta = meta_of(prepare(spec, tmp_path / "out"))
    assert {split: its.text_tokens for split, its in meta.splits.items()} == {
        "train": 635_475,
        "val": 249_735,
        "test": 285_234,
    }
    assert (meta.documents, meta.held_out.drawn) == ("articles", ())
    assert (meta.splits["val"].documents, meta.splits["val"].added_tokens) == (60, 60)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "count", "added"),
    [("wikitext-103/wiki.valid.tokens", 249_735, 60), ("tinystories/train.part.txt", 509_140, 1)],
)
def test_splitting_by_document_changes_no_token_of_a_real_file(
    shared_data: Path, tmp_path: Path, file: str, count: int, added: int
) -> None:
    meta = meta_of(prepare(spec_for(shared_data / file), tmp_path / "out"))
    assert sum(its.text_tokens for its in meta.splits.values()) == count
    assert sum(its.added_tokens for its in meta.splits.values()) == added
    assert all(its.documents for its in meta.splits.values())


def test_the_files_hold_exactly_the_documents(tmp_path: Path, gpt2: Tokenizer) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    directory = prepare(spec_for(rows), tmp_path / "out")
    meta = meta_of(directory)
    found = []
    for file, (split, its) in zip(FILES, meta.splits.items(), strict=True):
        ids = np.fromfile(directory / file, dtype=np.uint16)
        assert file == f"{split}.bin"
        assert len(ids) == its.text_tokens + its.added_tokens
        assert np.count_nonzero(ids == 50256) == its.documents == its.added_tokens
        found += gpt2.decode(ids).split("<|endoftext|>")[:-1]
    assert sorted(found) == sorted(TEXTS)
    assert [meta.splits[split].documents for split in meta.splits] == [90, 5, 5]
    assert sorted(contents(directory)) == ["merges.txt", "meta.json", *sorted(FILES), "vocab.json"]


def test_text_rows_and_parquet_of_the_same_documents_give_the_same_tokens(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "rows.parquet", row_group_size=8)
    first = prepare(spec_for(tmp_path / "rows.jsonl"), tmp_path / "a")
    second = prepare(spec_for(tmp_path / "rows.parquet"), tmp_path / "b")
    assert all((first / file).read_bytes() == (second / file).read_bytes() for file in FILES)
    assert meta_of(first).checksum == meta_of(second).checksum


def test_the_seed_chooses_the_documents_that_are_held_out(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    checksums = {meta_of(prepare(spec_for(source, seed=s), tmp_path / str(s))).checksum for s in (0, 1)}
    assert len(checksums) == 2


def test_a_trained_vocabulary_is_stored_with_its_tokens_and_saw_only_training_documents(tmp_path: Path) -> None:
    directory = prepare(spec_for(write_stories(tmp_path / "a.txt"), vocab_size=280), tmp_path / "out")
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == meta_of(directory).tokenizer.vocab_size == 280
    text = tokenizer.decode(np.fromfile(directory / "val.bin", dtype=np.uint16))
    assert text.count("<|endoftext|>") == 5
    assert text.startswith(("Story", "\nStory"))


def test_a_subset_has_about_the_tokens_asked_for_and_some_of_every_split(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt", TEXTS * 100)
    for tokens in (10, 1_000, 50_000):
        meta = meta_of(prepare(spec_for(source, tokens=tokens), tmp_path / str(tokens)))
        assert tokens <= meta.splits["train"].num_tokens <= 1.05 * tokens + 300
        assert meta.splits["val"].documents >= 1
        assert meta.splits["test"].documents >= 1
    assert meta.splits["val"].num_tokens == pytest.approx(50_000 / 18, rel=0.3)


def test_own_splits_shrink_with_a_subset(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        write_stories(tmp_path / f"{name}.txt", TEXTS * 20)
    meta = meta_of(prepare(spec_for(tmp_path, tokens=20_000), tmp_path / "out"))
    assert {split: round(its.num_tokens / 1000) for split, its in meta.splits.items()} == {
        "train": 20,
        "val": 1,
        "test": 1,
    }


def test_stories_know_the_least_loss_that_can_be_reached(tmp_path: Path) -> None:
    meta = meta_of(prepare(DataSpec(tokens=20_000, seed=3), tmp_path / "out"))
    made = sum(its.documents for its in meta.splits.values())
    chances = -sum(story.log_probability for story in stories.generate_stories(3, made))
    stated = sum((its.floor or 0) * its.num_tokens for its in meta.splits.values())
    assert stated == pytest.approx(chances)
    assert all(its.added_tokens == its.documents for its in meta.splits.values())


def test_the_same_call_again_does_nothing_even_if_the_input_was_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_stories(tmp_path / "a.txt")
    directory = prepare(spec_for(source), tmp_path / "out")
    before = {file: (directory / file).stat().st_mtime_ns for file in contents(directory)}
    monkeypatch.setattr(module, "_prepare", None)
    watcher = Listening()
    assert prepare(spec_for(source), directory, progress=watcher) == directory
    os.utime(source)
    source.rename(tmp_path / "b.txt")
    prepare(spec_for(tmp_path / "b.txt"), directory)
    assert watcher.notes == [f"{directory} is already prepared; nothing to do"]
    assert before == {file: (directory / file).stat().st_mtime_ns for file in contents(directory)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "made with seed 0, not 1"),
        ({"vocab_size": 300}, "made with vocab_size None, not 300"),
        ({"corpus": "yours"}, "made with corpus 'mine', not 'yours'"),
        ({"tokens": 100}, "made with tokens None, not 100"),
        ({"source": "other.txt"}, "made from different input"),
    ],
)
def test_other_inputs_are_never_written_over(change: dict[str, object], message: str, tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    write_stories(tmp_path / "other.txt", [text.replace("cat", "dog") for text in TEXTS])
    directory = prepare(spec_for(source), tmp_path / "out")
    before = contents(directory)
    if "source" in change:
        change = {"source": tmp_path / "other.txt"}
    with pytest.raises(UsageError, match=rf"{message}.*nothing is overwritten.*--out"):
        prepare(DataSpec.model_validate({**spec_for(source).model_dump(), **change}), directory)
    assert contents(directory) == before


def test_files_of_unknown_origin_are_never_written_over(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "val.bin").write_bytes(b"precious")
    with pytest.raises(UsageError, match=r"holds val\.bin of unknown origin"):
        prepare(spec_for(source), tmp_path / "out")
    assert contents(tmp_path / "out") == {"val.bin": b"precious"}


def test_tokens_may_be_written_into_the_folder_of_the_text(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    prepare(spec_for(source), tmp_path)
    assert source.exists()
    assert not (tmp_path / WORKSPACE).exists()


KILLED = """
import sys
from pathlib import Path
from oelm.data import prepare, sources
from oelm.spec.run import DataSpec
prepare.JOURNAL_SECONDS = 0
prepare.block_bytes_for = lambda tokens: 4096
prepare.prepare(DataSpec(corpus="mine", source=Path(sys.argv[1]), vocab_size=300), Path(sys.argv[2]))
"""


@pytest.mark.programs
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_stories(tmp_path / "a.txt", TEXTS * 60)
    whole = prepare(spec_for(source, vocab_size=300), tmp_path / "whole")
    out = tmp_path / "out"
    chance = random.Random(1)
    journal = out / WORKSPACE / "journal.json"
    kills = 0
    while not (out / "meta.json").exists():
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(source), str(out)])
        before = journal.read_bytes() if journal.exists() else b""
        while process.poll() is None:
            if kills < 3 and journal.exists() and journal.read_bytes() != before:
                time.sleep(chance.random() * 0.1)
                process.send_signal(signal.SIGKILL)
                process.wait()
            time.sleep(0.002)
        kills += process.returncode == -signal.SIGKILL
        assert process.returncode in {0, -signal.SIGKILL}
    assert kills == 3
    assert contents(out) == contents(whole)


@pytest.mark.parametrize("seal", [None, 0.2])
def test_a_subset_that_is_interrupted_at_every_block_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seal: float | None
) -> None:
    monkeypatch.setattr(module, "JOURNAL_SECONDS", 0)
    monkeypatch.setattr(module, "block_bytes_for", lambda _: 2000)
    spec = DataSpec(tokens=4_000, vocab_size=300, seal=seal)

    class Impatient(ProgressReporter):
        left = 2

        def update(self, done: int, tokens: int) -> None:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt

    whole = prepare(spec, tmp_path / "whole")
    for _ in range(50):
        try:
            prepare(spec, tmp_path / "out", progress=Impatient())
        except KeyboardInterrupt:
            assert not (tmp_path / "out" / "train.bin").exists()
        else:
            break
    assert contents(tmp_path / "out") == contents(whole)


def test_a_crash_while_the_files_are_moved_out_is_completed_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_stories(tmp_path / "a.txt")
    whole, out = prepare(spec_for(source), tmp_path / "whole"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Workspace, "publish", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(spec_for(source), out)
    (out / WORKSPACE / "train.bin").rename(out / "train.bin")
    with pytest.raises(UsageError, match="made with seed 0, not 1"):
        prepare(spec_for(source, seed=1), out)
    prepare(spec_for(source), out)
    assert contents(out) == contents(whole)


def test_unfinished_work_of_another_request_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = write_stories(tmp_path / "a.txt"), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(spec_for(source), out)
    with pytest.raises(UsageError, match=r"made with seed 0, not 1.*delete"):
        prepare(spec_for(source, seed=1), out)
    watcher = Listening()
    prepare(spec_for(source), out, progress=watcher)
    assert watcher.notes[0].startswith("continuing after")


def flip(file: Path, place: int = 3) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda work: flip(work / "train.bin"), r"train\.bin does not hold the bytes that the journal states"),
        (lambda work: os.truncate(work / "val.bin", 2), r"val\.bin is shorter than the journal states"),
        (TRAINED.save, "the tokenizer is not the one that the journal names"),
        (lambda work: flip(work / "journal.json", 40), r"journal\.json is damaged"),
        (lambda work: (work / "journal.json").write_text("{}"), r"journal\.json is damaged"),
    ],
)
def test_unfinished_work_that_was_damaged_is_not_continued(
    damage: Callable[[Path], None], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = spec_for(write_stories(tmp_path / "a.txt"), vocab_size=280), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(spec, out)
    damage(out / WORKSPACE)
    with pytest.raises(UsageError, match=rf"{message}.*[Dd]elete"):
        prepare(spec, out)
    assert not (out / "meta.json").exists()


def test_unfinished_work_of_a_version_without_checksums_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = spec_for(write_stories(tmp_path / "a.txt")), tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(module, "_finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            prepare(spec, out)
    journal = out / WORKSPACE / "journal.json"
    plain = json.loads(journal.read_text())
    del plain["file_checksum"], plain["tokenizer"]
    for count in plain["counts"].values():
        del count["sha256"]
    journal.write_text(json.dumps(plain))
    prepare(spec, out)
    assert contents(out) == contents(prepare(spec, tmp_path / "whole"))


def test_bytes_that_the_disk_changed_while_they_were_written_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Workspace.close

    def damage(workspace: Workspace) -> None:
        close(workspace)
        if (workspace.path / "train.bin").exists():
            flip(workspace.path / "train.bin")

    monkeypatch.setattr(Workspace, "close", damage)
    with pytest.raises(UsageError, match=r"train\.bin does not hold the bytes that were written"):
        prepare(spec_for(write_stories(tmp_path / "a.txt")), tmp_path / "out")


FULL = """
import resource, signal, sys
from pathlib import Path
from oelm.data.prepare import (prepare)
from oelm.errors import OelmError
from oelm.spec.run import DataSpec
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    prepare(DataSpec(corpus="mine", source=Path(sys.argv[1]), vocab_size=300), Path(sys.argv[2]))
except OelmError as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_full_disk_is_reported_and_continued_when_there_is_room(tmp_path: Path) -> None:
    source, out = write_stories(tmp_path / "a.txt", TEXTS * 30), tmp_path / "out"
    found = subprocess.run(
        [sys.executable, "-c", FULL, str(source), str(out)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (1, "")
    assert "the disk is full" in found.stdout
    assert "Free some space and run the same command again" in found.stdout
    assert not (out / "train.bin").exists()
    prepare(spec_for(source, vocab_size=300), out)
    assert contents(out) == contents(prepare(spec_for(source, vocab_size=300), tmp_path / "whole"))


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_stories(tmp_path / "a.txt")
    with pytest.raises(UsageError, match=r"cannot be written to: Not a directory.*--out"):
        prepare(spec_for(source), source / "out")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "out")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(UsageError, match="cannot be written to: Permission denied"):
        prepare(spec_for(source), tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"Fine.\n<|endoftext|>\n" * 30 + b"caf\xe9 au lait", r"a\.txt, at byte 603, is not UTF-8.*iconv"),
        (b"\xff\xfeO\x00n\x00e\x00", "at byte 0, is not UTF-8"),
        (b"One line only", r"has 1 documents \(lines\).*--documents"),
        (b"One.\nTwo.\n", "has 2 documents"),
        (b"\n \n", "has 1 documents"),
    ],
)
def test_text_that_cannot_be_prepared_leaves_nothing_behind(text: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    with pytest.raises(BadData, match=message):
        prepare(spec_for(tmp_path / "a.txt"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_processes_do_not_prepare_the_same_folder(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    with Workspace(tmp_path / "out").lock(), pytest.raises(RunLocked, match="another process is preparing"):
        prepare(spec_for(source), tmp_path / "out")


def test_a_torn_token_file_is_not_taken_for_done(tmp_path: Path) -> None:
    source = write_stories(tmp_path / "a.txt")
    directory = prepare(spec_for(source), tmp_path / "out")
    os.truncate(directory / "train.bin", 100)
    with pytest.raises(BadData, match=r"train\.bin has 100 bytes, but meta\.json states"):
        prepare(spec_for(source), directory)


def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    watcher = Listening()
    prepare(spec_for(write_stories(tmp_path / "a.txt")), tmp_path / "out", progress=watcher)
    assert watcher.total == watcher.done[-1] == (tmp_path / "a.txt").stat().st_size


def test_a_data_set_of_the_hub_is_prepared_and_then_needs_no_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "repository").mkdir()
    rows = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    (tmp_path / "repository" / "train.jsonl").write_text(rows)
    monkeypatch.setitem(HUB_CORPORA, "tinystories", HubCorpus(str(tmp_path / "repository")))
    directory = prepare(DataSpec(corpus="tinystories"), tmp_path / "out")
    meta = meta_of(directory)
    assert sum(its.documents for its in meta.splits.values()) == 100
    assert meta.revision
    (tmp_path / "repository" / "train.jsonl").unlink()
    assert prepare(DataSpec(corpus="tinystories"), directory) == directory


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"corpus": "tinystories"}, "tinystories"),
        ({"vocab_size": 512, "tokens": 10_000, "seed": 2}, "stories-bpe512-10000-seed2"),
        ({"corpus": "owner/name:config"}, "owner-name-config"),
    ],
)
def test_folders_are_named_by_what_they_hold(fields: dict[str, object], name: str) -> None:
    assert default_directory(DataSpec.model_validate(fields)) == Path("data") / name


def test_a_run_finds_its_corpus_whatever_it_was_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = write_stories(tmp_path / "a.txt")
    prepare(DataSpec(corpus="tinystories", source=source))
    assert find_or_prepare(DataSpec(corpus="tinystories")) == Path("data/tinystories")
    with pytest.raises(UsageError, match="made with seed 0 .*use --data.seed 0"):
        find_or_prepare(DataSpec(corpus="tinystories", seed=1, directory=Path("data/tinystories")))
    Path("data/openwebtext").mkdir()
    Path("data/openwebtext/train.bin").write_bytes(b"\0\0")
    assert find_or_prepare(DataSpec(corpus="openwebtext")) == Path("data/openwebtext")
    assert find_or_prepare(DataSpec(tokens=2_000)) == Path("data/stories-2000")


def test_errors_know_their_exit_codes() -> None:
    assert (BadData("x").exit_code, OelmError("x").exit_code) == (2, 1)
