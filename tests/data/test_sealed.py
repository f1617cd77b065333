"""A sealed split: set aside by document, refused to every reader, opened once."""

import multiprocessing

import numpy as np
import pytest

from oelm.cli import dispatch
from oelm.data.documents import SPLIT_FILES, Allocation
from oelm.data.meta import read_meta
from oelm.data.prepare import default_directory, find_or_prepare, prepare
from oelm.data.tokens import (
    OPENED,
    SEALED_FILE,
    Opening,
    open_seal,
    open_tokens,
    read_opening,
    sealed_split,
    with_sealed_as_test,
)
from oelm.errors import BadData, Sealed, UsageError
from oelm.spec.run import GPT_SIZES, DataSpec, RunSpec, fingerprint

PLAIN = DataSpec(corpus="stories", vocab_size=300, tokens=20_000)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("sealed")
    return prepare(PLAIN, root / "plain"), prepare(PLAIN.model_copy(update={"seal": 0.2}), root / "sealed")


def opening(**fields):
    plain = {
        "study": "one",
        "digest": "d",
        "opened": "2026-01-01",
        "commit": None,
        "sha256": "s",
        "weights": {"a": "b"},
    }
    return Opening(**plain | fields)


def test_sealed_documents_come_from_training_and_leave_the_other_splits_as_they_were():
    plain = Allocation("train", ("val", "test"), 20, 7).places(0, 20_000)
    sealed = Allocation("train", ("val", "test"), 20, 7, 0.1).places(0, 20_000)
    moved = plain != sealed
    assert set(plain[moved]) == {SPLIT_FILES.index("train")}
    assert set(sealed[moved]) == {SPLIT_FILES.index("sealed")}
    assert moved.sum() / (plain == 0).sum() == pytest.approx(0.1, abs=0.01)
    rest = Allocation("train", ("val", "test"), 20, 7, 0.1).places(5_000, 100)
    assert np.array_equal(rest, sealed[5_000:5_100])  # a document's place follows from its number


def test_data_without_a_seal_are_what_they_were(folders, tiny_data):
    plain, _ = folders
    assert not (plain / SEALED_FILE).exists()
    assert read_meta(plain).checksum == read_meta(tiny_data).checksum
    # The checksum that oelm 0.1.0 gave this corpus before sealed splits existed.
    assert read_meta(plain).checksum == "b1ee331335f355b832e1a8365efced917abe2e792025debc1fc00f0de14fb1a2"
    assert "seal" not in PLAIN.meaning()
    assert default_directory(PLAIN).name == "stories-bpe300-20000"


def test_a_sealed_corpus_is_another_corpus_in_a_folder_of_its_own(folders):
    spec = PLAIN.model_copy(update={"seal": 0.2})
    runs = [RunSpec(model=GPT_SIZES["nano"], data=data) for data in (PLAIN, spec)]
    assert fingerprint(runs[0]) != fingerprint(runs[1])
    assert default_directory(spec).name == "stories-bpe300-20000-sealed0.2"
    with pytest.raises(UsageError, match="seal"):
        prepare(PLAIN, folders[1])
    assert find_or_prepare(spec.model_copy(update={"directory": folders[1]})) == folders[1]


def test_prepare_states_the_sealed_split(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["prepare", "stories", "--tokens", "20000", "--vocab-size", "300", "--seal", "0.2"]) == 0
    assert "sealed" in capsys.readouterr().out
    meta = read_meta(tmp_path / "data" / "stories-bpe300-20000-sealed0.2")
    assert meta.sealed.documents > 0
    assert "sealed" not in meta.splits
    assert dispatch(["prepare", "stories", "--seal", "0.9"]) == 2
    assert "--seal must be less than or equal to 0.5, found 0.9" in capsys.readouterr().err


def test_no_reader_of_tokens_takes_a_sealed_file(folders, tmp_path):
    _, sealed = folders
    data = open_tokens(sealed)
    assert data.splits == ("train", "val", "test")
    assert SEALED_FILE not in {path.name for path in data.files.values()}
    with pytest.raises(BadData):
        data.split("sealed")
    train = tmp_path / "train"
    train.mkdir()
    (train / SEALED_FILE).write_bytes((sealed / SEALED_FILE).read_bytes())
    for path in (sealed / SEALED_FILE, train / SEALED_FILE):
        with pytest.raises(Sealed, match="no run may read it"):
            open_tokens(path)
    with pytest.raises(Sealed, match="has not been opened"):
        with_sealed_as_test(data, opening())


def test_a_changed_or_missing_sealed_file_is_refused(folders, tmp_path):
    plain, sealed = folders
    with pytest.raises(Sealed, match="no sealed split"):
        sealed_split(plain)
    for name in ("meta.json", SEALED_FILE):
        (tmp_path / name).write_bytes((sealed / name).read_bytes())
    assert sealed_split(tmp_path) == sealed_split(sealed)
    (tmp_path / SEALED_FILE).write_bytes(b"xx")
    with pytest.raises(BadData, match="not the file"):
        sealed_split(tmp_path)


def test_a_seal_is_opened_once_and_only_the_same_study_with_the_same_weights_may_finish(tmp_path):
    first = open_seal(tmp_path, opening())
    assert open_seal(tmp_path, opening(opened="2026-02-02", commit="c")) == first
    for other in ({"study": "two"}, {"digest": "e"}, {"weights": {"a": "c"}}):
        with pytest.raises(Sealed, match="opened only once"):
            open_seal(tmp_path, opening(**other))
    assert read_opening(tmp_path) == first
    (tmp_path / OPENED).write_text("{")
    with pytest.raises(Sealed, match="is damaged"):
        open_seal(tmp_path, opening())


def _open(folder, name, barrier, answers):
    barrier.wait()
    try:
        answers.put(open_seal(folder, opening(study=name)).study)
    except Sealed:
        answers.put(None)


def test_of_studies_that_open_a_seal_at_once_one_wins(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier, answers = context.Barrier(4), context.Queue()
    rivals = [context.Process(target=_open, args=(tmp_path, f"study-{n}", barrier, answers)) for n in range(4)]
    for rival in rivals:
        rival.start()
    said = [answers.get(timeout=60) for _ in rivals]
    for rival in rivals:
        rival.join()
    assert sorted(map(bool, said)) == [False, False, False, True]
    assert read_opening(tmp_path).study in said
