"""Corpora by name and by path."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.data import sources
from oelm.data.documents import Position, find_cuts, is_title
from oelm.data.sources import HubCorpus, articles, find_files, make_request, open_corpus, open_hub, own_splits, split_of
from oelm.errors import BadData, InvalidSpec, OelmError, UnknownName, UsageError
from oelm.spec.run import DataSpec, Split


def write(folder: Path, *names: str, text: str = "One.\nTwo.\nThree.\n") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("wiki.train.part.tokens", "train"),
        ("wiki.valid.tokens", "val"),
        ("TinyStoriesV2-GPT4-valid.txt", "val"),
        ("train-00000-of-00004.parquet", "train"),
        ("validation/part-1.jsonl", "val"),
        ("train/test.txt", "test"),
        ("test/training-day.txt", "test"),
        ("train/dev-diary.txt", "train"),
        ("corpus/train-v2/dev-diary.txt", "val"),
        ("dev.txt", "val"),
        ("latest.txt", None),
        ("trainer.txt", None),
    ],
)
def test_a_file_says_in_its_name_to_which_split_it_belongs(path: str, split: Split | None) -> None:
    assert split_of(Path(path)) == split


def test_a_folder_with_training_files_keeps_its_splits(tmp_path: Path) -> None:
    write(tmp_path, "train/b.txt", "train/a.txt", "valid/a.txt", "test.txt", ".hidden/train.txt", "README.md")
    groups = own_splits(find_files(tmp_path))
    assert {split: [file.name for file in files] for split, files in groups.items()} == {
        "train": ["a.txt", "b.txt"],
        "val": ["a.txt"],
        "test": ["test.txt"],
    }


def test_splits_that_a_corpus_lacks_are_drawn_from_its_training_documents(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", "valid.txt")
    corpus = open_corpus(make_request(DataSpec(corpus="x", source=tmp_path)))
    assert [section.allocation.own for section in corpus.sections] == ["train", "val"]
    assert [section.allocation.drawn for section in corpus.sections] == [("test",), ()]
    assert (corpus.held_out.own, corpus.held_out.drawn) == (("train", "val"), ("test",))


def test_files_without_a_training_file_among_them_are_one_corpus(tmp_path: Path) -> None:
    write(tmp_path, "valid.txt", "test.txt")
    assert list(own_splits(find_files(tmp_path))) == ["train"]
    assert list(own_splits([tmp_path / "valid.txt"])) == ["train"]


def test_a_file_of_no_split_beside_training_files_is_not_guessed_at(tmp_path: Path) -> None:
    write(tmp_path, "train.txt", "valid.txt", "more.txt")
    with pytest.raises(BadData, match=r"more\.txt does not"):
        make_request(DataSpec(corpus="x", source=tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a.md",), "holds no .txt, .tokens"),
        (("a.txt", "b.jsonl"), "mixes text files with files of rows"),
        ((), "holds no .txt"),
    ],
)
def test_folders_that_cannot_be_read_are_refused(names: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=message):
        make_request(DataSpec(corpus="x", source=write(tmp_path, *names)))


def test_paths_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "empty.txt", text="")
    write(tmp_path, "a.docx")
    for name, message in (("empty.txt", "is empty"), ("a.docx", "unknown format"), ("none.txt", "does not exist")):
        with pytest.raises(BadData, match=message):
            make_request(DataSpec(corpus="x", source=tmp_path / name))


def test_a_file_whose_name_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt"))
    path.write_text("One.\nTwo.\nThree.\n")
    with pytest.raises(InvalidSpec, match="is not valid Unicode, so it cannot be written. Rename it"):
        DataSpec(corpus="x", source=path)
    with pytest.raises(BadData, match="is not UTF-8. Rename the file"):
        make_request(DataSpec(corpus="x", source=tmp_path))


def test_many_text_files_are_documents_unless_they_hold_some(tmp_path: Path) -> None:
    write(tmp_path, *(f"{number}.txt" for number in range(20)))
    assert make_request(DataSpec(corpus="x", source=tmp_path)).documents == "files"
    assert make_request(DataSpec(corpus="x", source=tmp_path), "lines").documents == "lines"
    write(tmp_path, "0.txt", text="One.<|endoftext|>\nTwo.")
    assert make_request(DataSpec(corpus="x", source=tmp_path)).documents == "stories"


def test_rows_and_texts_have_their_own_rules(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.txt")
    with pytest.raises(UsageError, match="is plain text"):
        make_request(DataSpec(corpus="x", source=tmp_path / "b.txt"), "rows")
    with pytest.raises(UsageError, match="are rows"):
        make_request(DataSpec(corpus="x", source=tmp_path / "a.jsonl"), "lines")


def test_an_unknown_name_gets_the_nearest_one() -> None:
    with pytest.raises(UnknownName, match=r"Did you mean 'tinystories'\?.*owner/name.*--from PATH"):
        make_request(DataSpec(corpus="tinystory"))


def test_generated_stories_take_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is generated"):
        make_request(DataSpec(corpus="stories", source=write(tmp_path, "a.txt")))


def test_a_changed_grammar_is_another_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_request(DataSpec())
    made = list(sources.stories.generate_stories(0, 100))
    monkeypatch.setattr(sources.stories, "generate_stories", lambda *_: iter([made[1], *made[1:]]))
    assert make_request(DataSpec()).origin != before.origin


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_cannot_be_reached_is_reported_quickly_with_an_alternative(
    offline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if offline else "0")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port, which is closed
    # `datasets` would ask again and again, for minutes
    monkeypatch.setattr(sources, "_builder", lambda *_: pytest.fail("requested from a hub that is down"))
    with pytest.raises(UsageError, match=r"cannot be reached.*--from PATH.*`stories`"):
        open_corpus(make_request(DataSpec(corpus="tinystories")))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of the hub's form in a local folder, which `datasets` streams by the same code."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "repository"
    folder.mkdir()
    for split, count in (("train", 50), ("validation", 5)):
        rows = [{"text": f"{split} {number}" if number % 10 else "", "id": number} for number in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def test_a_data_set_of_the_hub_is_streamed_with_its_splits(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources.HUB_CORPORA, "tinystories", HubCorpus(str(repository)))
    corpus = open_corpus(make_request(DataSpec(corpus="tinystories")))
    assert corpus.held_out.drawn == ("test",)
    assert corpus.revision
    train = corpus.sections[0].source
    blocks = list(train.blocks(Position(), 60))
    texts = [text.decode() for block in blocks for text in block.texts]
    assert texts == [f"train {number}" for number in range(50) if number % 10]
    assert list(train.blocks(blocks[2].after, 60)) == blocks[3:]


def test_a_data_set_without_text_or_training_split_is_refused(repository: Path) -> None:
    (repository / "train.jsonl").write_text('{"body": "x"}')
    (repository / "validation.jsonl").unlink()
    found, _ = open_hub(HubCorpus(str(repository)))
    with pytest.raises(BadData, match="no column `text`, only body"):
        list(found["train"].blocks(Position(), 10))
    (repository / "train.jsonl").rename(repository / "test.jsonl")
    with pytest.raises(BadData, match="no split `train`, only test"):
        open_hub(HubCorpus(str(repository)))


def test_a_connection_that_breaks_says_how_to_go_on(repository: Path) -> None:
    found, _ = open_hub(HubCorpus(str(repository)))

    class Breaking:
        def __iter__(self) -> None:
            raise ConnectionResetError("peer went away")

    found["train"]._stream = Breaking()
    with pytest.raises(OelmError, match=r"failed: ConnectionResetError.*same command again") as caught:
        list(found["train"].blocks(Position(), 10))
    assert caught.value.exit_code == 1


def test_a_data_set_that_is_a_program_is_read_from_its_copy() -> None:
    class Datasets:
        asked: list[str | None] = []

        def load_dataset_builder(self, _path: str, _name: str | None, revision: str | None) -> str:
            self.asked.append(revision)
            if revision is None:
                raise RuntimeError("Dataset scripts are no longer supported, but found openwebtext.py")
            return "builder"

    datasets = Datasets()
    assert sources._builder(datasets, HubCorpus("a/b"), None) == "builder"
    assert datasets.asked == [None, "refs/convert/parquet"]


LINES = st.lists(
    st.sampled_from([" \n", " \n", " = A = \n", " = = B = = \n", " Text . \n", " = x = y \n"]), max_size=30
)


@given(LINES)
@settings(max_examples=300)
def test_the_rows_of_wikitext_make_the_articles_of_its_file(lines: list[str]) -> None:
    text = "".join(lines).encode()
    places = [0, *find_cuts("articles", text, final=True), len(text)]
    expected = [text[start:end].decode() for start, end in pairwise(places)] if text else []
    rows = ["" if line == " \n" else line for line in lines]
    assert [article for article, _ in articles(rows, 0)] == expected
    if expected and lines:
        _, second = next(articles(rows, 0))
        assert [article for article, _ in articles(rows[second:], second)] == expected[1:]


def test_a_section_is_not_a_title() -> None:
    assert is_title(" = Title = \n")
    assert not is_title(" = = Section = = \n")
    assert not is_title(" Text = x = \n")
