from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oelm.analysis.compare import by_data, find_runs, gather
from oelm.errors import BadRecord, IncomparableRuns, UsageError
from oelm.spec.run import DataSpec, ExamplesSpec
from oelm.spec.study import Study, replace_fields


def test_runs_of_one_corpus_are_compared_without_a_study(study: Study, make_record: Any) -> None:
    found = [(Path(str(n)), make_record(run)) for n, run in enumerate(study.runs())]
    (comparison,) = gather(found).comparisons
    assert comparison.study.reference == "baseline"
    assert [len(row.evidence) for row in comparison.rows] == [3, 3]


def test_an_undeclared_difference_is_refused_and_reported_when_forced(study: Study, make_record: Any) -> None:
    found = [
        (
            Path(str(n)),
            make_record(replace_fields(run, {"train.learning_rate": 1e-3}) if run.arm != "baseline" else run),
        )
        for n, run in enumerate(study.runs())
    ]
    with pytest.raises(IncomparableRuns) as caught:
        gather(found)
    unfair = (
        "'oelm-freeze' and 'baseline' differ in train.learning_rate (0.001, 0.0003), which no study declares. Give "
        "runs that agree in it, or the file of a study that has it in tuned= with a shared grid."
    )
    assert str(caught.value) == f"{unfair} `oelm compare --force` compares them anyway, and says what is unfair."
    (comparison,) = gather(found, force=True).comparisons
    assert comparison.unfair == (unfair,)


def test_arms_that_share_a_name_and_not_a_method_are_separated(study: Study, make_record: Any) -> None:
    found = [
        (Path(str(n)), make_record(run.model_copy(update={"arm": "x"}))) for n, run in enumerate(study.runs())
    ]  # fmt: skip
    (comparison,) = gather(found).comparisons
    assert [row.arm for row in comparison.rows] == ["x", "x (2)"]
    assert comparison.rows[0].evidence[0].spec.method == study.arms[0].method


def test_runs_from_different_corpora_have_nothing_to_be_compared_with(study: Study, make_record: Any) -> None:
    one, other = study.runs()[:2]
    found = [
        (Path("a"), make_record(one)),
        (Path("b"), make_record(replace_fields(other, {"data.corpus": "speeches"}))),
    ]
    with pytest.raises(IncomparableRuns, match=r"only arm on data\.corpus stories.*speeches"):
        gather(found)


def test_two_draws_of_one_corpus_are_two_comparisons(study: Study, make_record: Any) -> None:
    runs = [*study.runs(), *(replace_fields(run, {"data.seed": 1}) for run in study.runs())]
    found = [(Path(f"{n:02}"), make_record(run)) for n, run in enumerate(runs)]
    assert [item.study.name for item in gather(found).comparisons] == ["stories (as it is)", "stories (seed 1)"]


def test_text_and_labelled_text_of_one_name_are_two_groups(study: Study, make_record: Any) -> None:
    text, labelled = (
        replace_fields(study.runs()[0], {"data": data})
        for data in (DataSpec(corpus="imdb"), ExamplesSpec(corpus="imdb"))
    )
    groups = by_data([(Path("a"), make_record(text)), (Path("b"), make_record(labelled))])
    assert [path for members in groups.values() for path, _ in members] == [Path("a"), Path("b")]


def test_a_sweep_that_is_forced_keeps_one_run_per_seed_and_names_what_the_others_differ_in(
    study: Study, make_record: Any
) -> None:
    runs = [*study.runs(), *(replace_fields(run, {"train.learning_rate": 1e-3}) for run in study.runs())]
    found = [(Path(f"{n:02}"), make_record(run)) for n, run in enumerate(runs)]
    (comparison,) = gather(found, force=True).comparisons
    assert len(comparison.ignored) == 6
    assert all("train.learning_rate" in item.differs for item in comparison.ignored)


def test_folders_without_runs_are_refused_with_a_reason_and_damaged_records_are_reported(
    study: Study, write_run: Any, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        find_runs([tmp_path / "typo"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no record\.json in it"):
        find_runs([tmp_path / "empty"])
    directory = write_run(study.runs()[0])
    (tmp_path / "runs" / "torn").mkdir()
    (tmp_path / "runs" / "torn" / "record.json").write_text("{")
    found, unreadable = find_runs([tmp_path / "runs", directory])
    assert len(found) == 1
    assert "torn" in unreadable[0]
    with pytest.raises(BadRecord, match="is not whole JSON"):
        find_runs([tmp_path / "runs" / "torn"])


def test_runs_on_a_corpus_of_the_hub_are_compared_under_its_name_though_no_folder_could_have_it(
    study: Study, make_record: Any
) -> None:
    runs = [replace_fields(run, {"data.corpus": "owner/name"}) for run in study.runs()]
    (comparison,) = gather([(Path(str(n)), make_record(run)) for n, run in enumerate(runs)]).comparisons
    assert comparison.study.name == "owner/name"
