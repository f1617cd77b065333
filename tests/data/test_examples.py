"""Labelled text: which split is which, what is left out, what is refused, and that nothing leaks."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.labelled import LABELLED_CORPORA, find_part, local_folder, open_examples, open_split, roles_of
from oelm.data.sources import HubCorpus
from oelm.data.tokenizer import from_backend, gpt2_encoder, trained_encoder
from oelm.errors import BadData, UnknownName, UsageError
from oelm.spec.run import ExamplesSpec
from oelm.tasks.classification import encode_examples


def folder(tmp_path, **tables):
    """Write tables of (text, label) as TSV files."""
    for name, rows in tables.items():
        lines = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def opened(source, **fields):
    return open_examples(ExamplesSpec(**{"corpus": "sst2", "source": source} | fields))


def many(word, count=20):
    return [(f"{word} number {n}", n % 2) for n in range(count)]


def test_held_out_training_rows_tune_and_glues_dev_set_is_reported(tmp_path):
    found = opened(folder(tmp_path, train=many("t"), heldout=many("h", 5), dev=many("d", 3)))
    assert {split: rows.texts[0][0][0] for split, rows in found.splits.items()} == {
        "train": "t",
        "val": "h",
        "test": "d",
    }
    assert found.labels == ("negative", "positive")


def test_a_test_split_with_hidden_labels_is_left_out_and_said(tmp_path):
    hidden = [(text, -1) for text, _ in many("x")]
    found = opened(folder(tmp_path, train=many("t"), dev=many("d", 3), test=hidden))
    assert len(found.splits["test"]) == 3
    assert len(found.splits["val"]) == 4
    assert len(found.splits["train"]) == 16
    assert "the 20 rows of the test part have no labels and are left out." in found.notes


@pytest.mark.parametrize(
    ("parts", "roles"),
    [
        ({"train"}, {"train": "train"}),
        ({"test"}, {"train": "test"}),
        ({"train", "val", "test"}, {"train": "train", "val": "val", "test": "test"}),
        ({"train", "val"}, {"train": "train", "test": "val"}),
        ({"train", "test"}, {"train": "train", "test": "test"}),
        ({"train", "heldout", "val"}, {"train": "train", "val": "heldout", "test": "val"}),
        ({"train", "heldout"}, {"train": "train", "val": "heldout"}),
    ],
)
def test_the_parts_of_a_corpus_serve_as_its_splits(parts, roles):
    assert roles_of(parts) == roles


def test_parts_are_known_by_their_names():
    names = ("train.tsv", "validation_matched", "dev.tsv", "my-test.csv", "heldout.tsv", "unsupervised", "train_dev")
    assert [find_part(name) for name in names] == ["train", "val", "val", "test", "heldout", None, "val"]


def pairs(tmp_path, premises=30):
    rows = ["premise\thypothesis\tlabel"]
    for number in range(premises):
        rows += [f"premise {number}\thypothesis {label} {number}\t{label}" for label in LABELLED_CORPORA["xnli"].labels]
    (tmp_path / "dev.tsv").write_text("\n".join(rows) + "\n")
    return tmp_path / "dev.tsv"


@given(seed=st.integers(0, 1000))
def test_one_file_is_split_by_premise_so_that_none_leaks(tmp_path_factory, seed):
    path = pairs(tmp_path_factory.mktemp("pairs"))
    found = open_examples(ExamplesSpec(corpus="xnli", source=path, seed=seed))
    premises = [{texts[0] for texts in rows.texts} for rows in found.splits.values()]
    assert not premises[0] & premises[1] and not premises[0] & premises[2] and not premises[1] & premises[2]  # noqa: PT018
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 54, "val": 18, "test": 18}
    assert found.labels == ("entailment", "neutral", "contradiction")


def test_rows_are_drawn_by_the_seed_alone_and_keep_their_order(tmp_path):
    source = folder(tmp_path, train=many("t", 100), heldout=many("h", 5), dev=many("d", 3))
    drawn = [opened(source, rows=10, seed=seed).splits["train"].texts for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 10
    everything = opened(source).splits["train"].texts
    assert [text for text in everything if text in set(drawn[0])] == drawn[0]


def test_matched_and_mismatched_are_two_tasks_of_one_folder(tmp_path):
    for name in ("train", "dev_matched", "dev_mismatched"):
        rows = [f"{name} {n}\tb\t{label}" for n in range(10) for label in ("neutral", "entailment")]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["sentence1\tsentence2\tgold_label", *rows]) + "\n")
    for task, expected in (("mnli", "dev_matched"), ("mnli-mismatched", "dev_mismatched")):
        found = opened(tmp_path, corpus=task)
        assert {texts[0].split()[0] for texts in found.splits["test"].texts} == {expected}
    other = open_split(
        ExamplesSpec(corpus="mnli", source=tmp_path / "dev_mismatched.tsv"), "test", LABELLED_CORPORA["mnli"].labels
    )
    assert len(other.splits["test"]) == 20


def languages(path, *codes, premises=10):
    rows = ["language\tpremise\thypothesis\tlabel"]
    rows += [f"{code}\t{code} {n}\th {n}\tneutral" for n in range(premises) for code in codes]
    path.write_text("\n".join(rows) + "\n")
    return path


def test_rows_of_other_languages_are_left_out_and_counted(tmp_path):
    path = languages(tmp_path / "xnli.dev.tsv", "en", "de", "fr")
    found = open_examples(ExamplesSpec(corpus="xnli", language="de", source=path))
    assert {texts[0][:2] for rows in found.splits.values() for texts in rows.texts} == {"de"}
    assert "20 of 30 rows of xnli.dev.tsv have another language than 'de' and are left out." in found.notes
    with pytest.raises(BadData, match="none of the 30 rows of .* has the language 'zh', only de, en"):
        open_examples(ExamplesSpec(corpus="xnli", language="zh", source=path))


def test_a_column_called_language_in_a_own_table_is_left_alone(tmp_path):
    path = languages(tmp_path / "mine.tsv", "de", "fr")
    found = open_examples(ExamplesSpec(corpus="mine", source=path, texts=("premise",)))
    assert sum(len(rows) for rows in found.splits.values()) == 20


def test_each_language_but_english_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, code in (("xnli", "en"), ("xnli-de", "de")):
        (tmp_path / "data" / name).mkdir(parents=True)
        pairs(tmp_path / "data" / name, premises={"en": 10, "de": 20}[code])
    for code, count in (("en", 30), ("de", 60)):
        found = open_examples(ExamplesSpec(corpus="xnli", language=code))
        assert sum(len(rows) for rows in found.splits.values()) == count


def test_any_table_with_named_columns_and_labels_by_name_will_do(tmp_path):
    rows = [{"title": f"t{n}", "body": "b", "kind": ("spam", "ham")[n % 2]} for n in range(20)]
    (tmp_path / "mail.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = opened(tmp_path / "mail.jsonl", corpus="mail", texts=("title", "body"), label="kind")
    assert found.labels == ("ham", "spam")
    texts = {each for rows in found.splits.values() for each in rows.texts}
    assert texts == {(f"t{number}", "b") for number in range(20)}


def table(tmp_path, labels, count=30):
    """Write a table of one's own whose rows say in words which label they have."""
    lines = [f'{{"text": "{n} of {label}", "label": "{label}"}}' for n in range(count) for label in labels]
    (tmp_path / "own.jsonl").write_text("\n".join(lines) + "\n")
    return ExamplesSpec(corpus="own", source=tmp_path / "own.jsonl", texts=("text",))


@given(labels=st.lists(st.from_regex(r"[0-3](\.[05])?|n/a", fullmatch=True), min_size=2, max_size=5, unique=True))
def test_a_label_that_looks_like_a_number_is_taken_by_its_name_and_not_by_its_place(tmp_path_factory, labels):
    found = open_examples(table(tmp_path_factory.mktemp("own"), labels))
    for rows in found.splits.values():
        for (text,), number in zip(rows.texts, rows.labels, strict=True):
            assert text.endswith(f" of {found.labels[number]}")


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ((1, 2, 3), ("1", "2", "3")),
        ((2020, 2019), ("2019", "2020")),
        ((-1, 0, 1), ("-1", "0", "1")),
        ((10, 9, 0), ("0", "9", "10")),
        ((0, 1, 2), ("0", "1", "2")),
        (("None", "some", "-"), ("-", "None", "some")),
    ],
)
def test_every_label_that_is_found_in_a_own_table_is_a_class_and_nothing_else_is(tmp_path, labels, names):
    found = open_examples(table(tmp_path, labels))
    assert found.labels == names
    assert sum(len(rows) for rows in found.splits.values()) == 30 * len(labels)


def test_a_class_that_is_called_like_a_missing_label_is_noted(tmp_path):
    (note,) = (note for note in open_examples(table(tmp_path, ("-", "yes"))).notes if "'-'" in note)
    assert note.startswith("30 rows have the label '-', which is read as a class")


def test_rows_without_a_label_are_left_out_of_any_table(tmp_path):
    rows = [{"text": f"t{n}", "label": ("a", "b", None, " ")[n % 4]} for n in range(80)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = open_examples(ExamplesSpec(corpus="own", source=tmp_path / "own.jsonl", texts=("text",)))
    assert found.labels == ("a", "b")
    assert "40 of 80 train rows have no label and are left out." in found.notes


def test_a_part_with_nothing_but_minus_one_hides_its_labels_and_a_file_of_a_part_does_not(tmp_path):
    texts = {"texts": ("sentence",), "corpus": "own"}
    shards = {f"train_{n}": [(text, label) for text, _ in many(label)] for n, label in enumerate((-1, 1))}
    found = opened(folder(tmp_path, **shards, test=[("c", -1)] * 3), **texts)
    assert found.labels == ("-1", "1")
    assert "the 3 rows of the test part have no labels and are left out." in found.notes


def test_rows_in_two_splits_and_empty_ones_are_counted_and_noted(tmp_path):
    source = folder(
        tmp_path,
        train=[*many("t"), ("  ", 1)],
        heldout=[*many("h", 4), ("T  Number 3", 1)],
        dev=[*many("d", 3), ("H number 2", 0)],
    )
    notes = opened(source).notes
    assert "1 of 21 train rows have an empty text and are left out." in notes
    assert "1 val rows (20.0%) are also in the training split; they are kept." in notes
    assert "1 test rows (25.0%) are also in the validation split; they are kept." in notes


@pytest.mark.parametrize(
    ("tables", "fields", "words"),
    [
        ({"train": many("t")}, {"label": "gold"}, "no column 'gold', only 'sentence', 'label'"),
        ({"train": many("t")}, {"texts": ("text",)}, "no column 'text'"),
        (
            {"train": [*many("t"), ("x", 2)]},
            {},
            "row 21 of the train part has the label '2', which is not one of negative",
        ),
        ({"train": [("x", -1)]}, {}, "none of the 1 rows of the train part has both text and label"),
        ({"train": [("a", 1), ("b", 0)]}, {}, "2 rows are too few to draw"),
        ({"heldout": many("t"), "dev": many("d")}, {}, "none to train on"),
        ({"train": many("t"), "notes": many("n")}, {}, "the name of notes.tsv does not say which split it is"),
    ],
)
def test_bad_tables_are_refused_in_words(tmp_path, tables, fields, words):
    with pytest.raises(BadData, match=words):
        opened(folder(tmp_path, **tables), **fields)


def test_a_folder_without_tables_is_refused(tmp_path):
    with pytest.raises(BadData, match="no labelled text at .*: no .tsv"):
        opened(tmp_path)


def test_unknown_corpora_and_languages_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'sst2'"):
        open_examples(ExamplesSpec(corpus="sst"))
    with pytest.raises(UsageError, match="has only one language"):
        open_examples(ExamplesSpec(corpus="sst2", language="fr"))
    with pytest.raises(UsageError, match="no folder data/mine"):
        open_examples(ExamplesSpec(corpus="mine", texts=("a",)))
    with pytest.raises(UsageError, match="Name one or two"):
        open_examples(ExamplesSpec(corpus="mine", texts=("a", "b", "c")))


def test_the_folder_data_is_read_without_being_named(tmp_path, monkeypatch):
    (tmp_path / "data" / "sst2").mkdir(parents=True)
    folder(tmp_path / "data" / "sst2", train=many("t"), heldout=many("h", 5), dev=many("d", 3))
    monkeypatch.chdir(tmp_path)
    assert len(open_examples(ExamplesSpec()).splits["val"]) == 5


def test_a_data_set_in_the_hubs_layout_is_read_through_datasets(tmp_path, monkeypatch):
    for name in ("train", "validation", "test"):
        label = -1 if name == "test" else 1
        rows = [json.dumps({"sentence": f"{name} {n}", "label": label}) for n in range(10)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path.parent)
    monkeypatch.setattr("oelm.data.labelled.LABELLED_CORPORA", {
        "sst2": LABELLED_CORPORA["sst2"].__class__(HubCorpus(str(tmp_path)), (("sentence",),), labels=("n", "p")),
    })  # fmt: skip
    found = open_examples(ExamplesSpec())
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 8, "test": 10, "val": 2}


def test_minus_one_is_not_a_class_of_a_data_set_of_the_hub_that_names_its_classes(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    kinds = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"text": [f"t{n}" for n in range(30)], "label": [n % 3 - 1 for n in range(30)]}
    datasets.Dataset.from_dict(rows, features=kinds).to_parquet(tmp_path / "own" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    own = HubCorpus(str(tmp_path / "own"))
    monkeypatch.setattr(HubCorpus, "named", classmethod(lambda _class, _name: own))
    found = open_examples(ExamplesSpec(corpus="some/own", texts=("text",)))
    assert found.labels == ("0", "1")
    assert "10 of 30 train rows have no label and are left out." in found.notes


def test_pairs_are_closed_distinguished_and_cut_to_the_limit(tmp_path):
    found = open_examples(ExamplesSpec(corpus="xnli", source=pairs(tmp_path)))
    encoder = trained_encoder((text for row in found.splits["train"].texts for text in row), 300)
    encoded = encode_examples(found, encoder, 128).splits["train"]
    end = encoder.vocab_size - 1
    ids, kinds = encoded.ids[: encoded.offsets[1]], encoded.kinds[: encoded.offsets[1]]
    assert np.flatnonzero(ids == end).tolist() == [np.flatnonzero(kinds)[0] - 1, len(ids) - 1]
    assert encoder.tokenizer.decode(ids[: np.flatnonzero(kinds)[0]]) == found.splits["train"].texts[0][0]
    cut = encode_examples(found, encoder, 6)
    assert cut.splits["train"].lengths.max() == 6
    assert any("are cut to 6 tokens" in note for note in cut.notes)


def test_the_checksum_follows_texts_labels_and_vocabulary(tmp_path):
    source = folder(tmp_path, train=many("t"), heldout=many("h", 5), dev=many("d", 3))
    found = opened(source)
    words = [text for row in found.splits["train"].texts for text in row]
    small, large = trained_encoder(words, 260), trained_encoder(words, 262)
    sums = [encode_examples(found, each, 32).checksum for each in (small, small, large)]
    assert sums[0] == sums[1] != sums[2]
    folder(tmp_path, dev=[(text, 1 - label) for text, label in many("d", 3)])
    assert encode_examples(opened(source), small, 32).checksum != sums[0]


def test_gpt2s_vocabulary_is_tiktokens_with_an_end():
    from oelm.data.tokenizer import gpt2_tokenizer

    text = "It's a  charming journey, 'tis.\n"
    (encoding,) = gpt2_encoder().encode([(text,)], 128)
    assert encoding.ids == [*gpt2_tokenizer().encode_batch([text])[0].tolist(), 50256]


def test_a_first_text_with_more_than_a_fifth_of_the_rows_is_not_drawn(tmp_path):
    rows = [("the same", n % 2) for n in range(30)] + many("other", 20)
    found = opened(folder(tmp_path, train=rows))
    assert all(len(found.splits[split]) <= 10 for split in ("val", "test"))
    assert ("the same",) in found.splits["train"].texts


def test_rows_that_cannot_be_parted_are_refused(tmp_path):
    with pytest.raises(BadData, match="different first texts has more than a fifth"):
        opened(folder(tmp_path, train=[("the same", n % 2) for n in range(30)]))


def test_a_folder_of_tokens_is_not_labelled_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/imdb").mkdir(parents=True)
    Path("data/imdb/train.bin").write_bytes(b"00")
    assert local_folder(ExamplesSpec(corpus="imdb")) is None
    Path("data/imdb/train.tsv").write_text("text\tlabel\n")
    assert local_folder(ExamplesSpec(corpus="imdb")) == Path("data/imdb")


def test_a_tokenizer_without_a_token_for_padding_pads_with_none_that_texts_have():
    tokenizers = pytest.importorskip("tokenizers")
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel({"!": 0, "fine": 1}, unk_token="fine"))  # noqa: S106
    plain.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    assert from_backend(plain, "llama").pad == 2


AG_NEWS = "".join(
    f'"{n % 4 + 1}","Title {n}, with a comma","Text ""{n}"" of the news, as distributed"\n' for n in range(40)
)
NLI = "".join(
    f"A man inspects uniform number {n}.\tHe sleeps {n}\t{('entailment', 'neutral', 'contradiction')[n % 3]}\n"
    for n in range(30)
)


@pytest.mark.parametrize(
    ("corpus", "name", "content", "columns"),
    [
        ("ag_news", "train.csv", '"1","Title and text in one"\n"2","A"\n' * 20, "text, label"),
        ("mnli", "train.tsv", NLI, "premise, hypothesis, label"),
        ("xnli", "dev.tsv", NLI, "premise, hypothesis, label"),
        ("sst2", "train.tsv", "good\tpositive\nbad\tnegative\n" * 20, "sentence, label"),
        ("sst2", "train.tsv", "good film\t1\nbad film\t0\n" * 20, "sentence, label"),
    ],
)
@pytest.mark.parametrize("other", [None, "test"])
def test_a_missing_header_line_is_recognised_and_the_flags_are_named(tmp_path, corpus, name, content, columns, other):
    (tmp_path / name).write_text(content)
    if other is not None:
        (tmp_path / name.replace("train", other).replace("dev", other)).write_text(content)
    words = f"seems to have no header line: its first line is .* {columns} are read.*--texts and --label"
    with pytest.raises(BadData, match=words):
        opened(tmp_path, corpus=corpus)


def test_columns_that_do_not_look_like_data_still_get_the_hint_in_a_separated_file(tmp_path):
    (tmp_path / "train.tsv").write_text("fine\tpos\nbad\tneg\n" * 20)
    with pytest.raises(BadData, match="no column 'sentence', only 'fine', 'pos'.*If the file has no header line, add"):
        opened(tmp_path)
    (tmp_path / "train.tsv").unlink()
    (tmp_path / "train.jsonl").write_text('{"body": "x", "label": 1}\n' * 9)
    with pytest.raises(BadData, match=r"in a spec\)\.$"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("header", "fields", "text"),
    [
        ("label,title,text", {}, ('Text "0" of the news, as distributed',)),
        (
            '"Class Index","Title","Description"',
            {"texts": ("Title", "Description"), "label": "Class Index"},
            ("Title 0, with a comma", 'Text "0" of the news, as distributed'),
        ),
    ],
)
def test_ag_news_as_distributed_is_read_with_its_quotes_and_its_labels_from_1_to_4(tmp_path, header, fields, text):
    (tmp_path / "train.csv").write_text(f"{header}\n{AG_NEWS}")
    found = opened(tmp_path, corpus="ag_news", **fields)
    rows = {texts: label for its in found.splits.values() for texts, label in zip(its.texts, its.labels, strict=True)}
    assert len(rows) == 40
    assert rows[text] == 0  # "1" is World
    assert sorted(rows.values()) == sorted(list(range(4)) * 10)
    assert any("read from 1: 1 is World, 2 is Sports" in note for note in found.notes)
    spec = ExamplesSpec(corpus="ag_news", source=tmp_path / "train.csv", **fields)
    alone = open_split(spec, "test", LABELLED_CORPORA["ag_news"].labels).splits["test"]
    assert dict(zip(alone.texts, alone.labels, strict=True)) == rows


def test_labels_count_from_0_unless_the_last_place_occurs(tmp_path):
    for labels, first in ((range(4), 0), (range(1, 4), 0), (range(1, 5), 1)):
        rows = [{"text": f"{n} {label}", "label": label} for n in range(20) for label in labels]
        (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        train = opened(tmp_path, corpus="ag_news").splits["train"]
        assert {int(text[0].split()[1]) - label for text, label in zip(train.texts, train.labels, strict=True)} == {
            first
        }


LONE = "half of a pair: \ud83d"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": LONE, "label": 1}, "row 11 of the train part has a text that is not valid"),
        ({"text": 5, "label": 1}, "row 11 of the train part has a text that is not valid: '5'"),
        ({"text": ["a"], "label": 1}, "has a text that is not valid"),
        ({"text": {"a": "b"}, "label": 1}, "has a text that is not valid"),
        ({"text": True, "label": 1}, "has a text that is not valid"),
        ({"text": "fine", "label": LONE}, "row 11 has the label .* not valid text or a number"),
        ({"text": "fine", "label": ["a"]}, "row 11 has the label"),
        ({"text": "fine", "label": {"a": 1}}, "row 11 has the label"),
    ],
)
def test_texts_and_labels_that_are_not_valid_are_refused_by_row(tmp_path, row, words):
    rows = [*({"text": f"t{n}", "label": n % 2} for n in range(10)), row]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    with pytest.raises(BadData, match=words):
        opened(tmp_path / "own.jsonl", corpus="own", texts=("text",))


@pytest.mark.parametrize("texts", [list(range(10)), [b"a"] * 10, [1.5] * 10, [["a"]] * 10])
def test_a_parquet_column_that_does_not_hold_strings_is_refused(tmp_path, texts):
    pq.write_table(pa.table({"text": texts, "label": [0, 1] * 5}), tmp_path / "own.parquet")
    with pytest.raises(BadData, match="row 1 of the train part has a text that is not valid"):
        opened(tmp_path / "own.parquet", corpus="own", texts=("text",))
    pq.write_table(pa.table({"text": ["a"] * 10, "label": [b"x", b"y"] * 5}), tmp_path / "own.parquet")
    with pytest.raises(BadData, match="row 1 has the label b'x'"):
        opened(tmp_path / "own.parquet", corpus="own", texts=("text",))


def test_nan_is_not_a_label(tmp_path):
    rows = {"text": [f"t{n}" for n in range(40)], "label": [float("nan") if n % 2 else float(n % 4) for n in range(40)]}
    pq.write_table(pa.table(rows), tmp_path / "own.parquet")
    found = opened(tmp_path / "own.parquet", corpus="own", texts=("text",))
    assert found.labels == ("0.0", "2.0")
    assert "20 of 40 train rows have no label and are left out." in found.notes


def test_one_split_of_several_numbers_its_labels_as_all_of_them_do(tmp_path):
    (tmp_path / "train.csv").write_text(f"label,title,text\n{AG_NEWS}")
    few = "".join(line for line in AG_NEWS.splitlines(keepends=True) if line[1] in "12")
    (tmp_path / "test.csv").write_text(f"label,title,text\n{few}")
    spec = ExamplesSpec(corpus="ag_news", source=tmp_path)
    assert open_split(spec, "test", LABELLED_CORPORA["ag_news"].labels).splits == {
        "test": open_examples(spec).splits["test"]
    }


def test_ag_news_is_read_as_distributed_without_a_header_and_with_labels_from_1(tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"{name}.csv").write_text(AG_NEWS)
    found = opened(tmp_path, corpus="ag_news")
    first = found.splits["test"].texts[0], found.labels[found.splits["test"].labels[0]]
    assert first == (('Title 0, with a comma Text "0" of the news, as distributed',), "World")
    assert len(found.splits["test"]) == 40
    assert {found.labels[number] for number in found.splits["test"].labels} == set(found.labels)
    named = "label,text\n" + "".join(f"{n % 4 + 1},text {n}\n" for n in range(20))
    (tmp_path / "train.csv").write_text(named)
    assert len(opened(tmp_path, corpus="ag_news").splits["train"]) == 16  # a header is read as one


def test_mnli_without_a_header_is_refused_with_the_flags_and_the_reason(tmp_path):
    row = "I like the concept a lot.\tI am a fan of the concept.\tentailment"
    (tmp_path / "train.tsv").write_text("\n".join([row] * 9) + "\n")
    with pytest.raises(BadData, match="seems to have no header line") as error:
        opened(tmp_path, corpus="mnli")
    assert "--texts and --label" in str(error.value)


def test_mnli_as_distributed_without_its_header_is_refused_with_the_flags_and_the_reason(tmp_path):
    """Its rows repeat the label of the first annotator, so the first of them looks like two columns of one name."""
    columns = ["1", "63735n", "slate", "( a )", "( b )", "(A)", "(B)", "Cream skims.", "Cream has two dimensions."]
    (tmp_path / "train.tsv").write_text("\n".join(["\t".join([*columns, "neutral", "neutral"])] * 9) + "\n")
    with pytest.raises(BadData, match="If the file has no header line, add one.*--texts and --label"):
        opened(tmp_path, corpus="mnli")


def test_the_reported_rows_validate_where_nothing_is_held_out(tmp_path):
    found = opened(folder(tmp_path, train=many("t"), dev=many("d", 3)), holds_out=False)
    assert {split: len(rows) for split, rows in found.splits.items()} == {"train": 20, "val": 3, "test": 3}
    assert any("best validation figure is optimistic" in note for note in found.notes)
