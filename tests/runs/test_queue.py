"""Where the runs of a study stand, from their folders alone."""

import io
import json
import math
import time

import pytest
from rich.console import Console

from oelm.analysis.compare import compare_folder
from oelm.errors import BadData, UnknownName
from oelm.files import parse_checked
from oelm.record.folder import METRICS, RECORD
from oelm.record.record import MetricRecord
from oelm.record.registration import read_registration
from oelm.record.stages import CHOICE, stage_of
from oelm.runs.board import Board
from oelm.runs.display import as_json, describe_entry, render_board
from oelm.runs.lock import hold_lock
from oelm.spec.run import TrainSpec, fingerprint
from oelm.spec.study import Listing, Study


def states(board):
    return {(entry.run.arm, entry.run.seed): entry.state for entry in board.entries}


def test_nothing_begun_is_waiting(study, tmp_path):
    board = Board(study, tmp_path / "runs")
    assert set(states(board).values()) == {"waiting"}
    assert board.progress == "0/6, 0 %"
    assert not (tmp_path / "runs").exists()


def test_every_end_has_its_state(study, tmp_path, write_run):
    first, second, third, fourth, fifth, _ = study.runs()
    write_run(first)
    write_run(second, status="failed", failure="diverged", error="Diverged: nan", result=None)
    write_run(third, status="failed", failure="out-of-memory", error="torch.OutOfMemoryError: no room", result=None)
    write_run(fourth, status="interrupted", result=None)
    write_run(fifth, status="running", result=None)  # and no process: it was killed
    board = Board(study, tmp_path / "runs")
    assert [entry.state for entry in board.entries] == [
        "complete", "diverged", "failed", "interrupted", "interrupted", "waiting",
    ]  # fmt: skip
    assert board.progress == "2/6, 33 %"
    assert describe_entry(board.entries[2])["failure"].startswith("out-of-memory: ")


def test_a_live_claim_makes_a_run_running_and_its_end_is_seen(study, tmp_path, write_run):
    directory = write_run(study.runs()[0], status="running", result=None)
    with hold_lock(directory, device="cuda:3"):
        board = Board(study, tmp_path / "runs")
        assert board.entries[0].state == "running"
        assert describe_entry(board.entries[0])["device"] == "cuda:3"
        write_run(study.runs()[0])
    assert board.refresh(board.entries[0]).state == "complete"


@pytest.mark.parametrize("edit", [lambda text: text[:100], lambda text: text.replace('"seed": 0', '"seed": 7')])
def test_a_record_edited_by_hand_is_reported_and_never_run_over(study, tmp_path, write_run, edit):
    directory = write_run(study.runs()[0])
    bound = parse_checked((directory / RECORD).read_bytes())["spec"]["data"]["checksum"]
    (directory / RECORD).write_text(edit((directory / RECORD).read_text()))
    board = Board(
        study,
        tmp_path / "runs",
        bind=lambda run: run.model_copy(update={"data": run.data.model_copy(update={"checksum": bound})}),
    )
    assert board.entries[0].state == "failed"
    assert str(directory) in board.entries[0].trouble
    assert board.troubles


def test_only_takes_ids_arms_and_patterns_and_knows_the_nearest(study, tmp_path):
    listed = Listing(
        name="l",
        question="?",
        listed=tuple(
            run.model_copy(update={"label": f"GPT-{number:02}_{run.arm}"}) for number, run in enumerate(study.runs())
        ),
    )
    named = lambda *only: [entry.run.label for entry in Board(listed, tmp_path, only=only).entries]  # noqa: E731
    assert named("GPT-03") == ["GPT-03_oelm-freeze"]
    assert named("GPT-0[01]") == ["GPT-00_baseline", "GPT-01_oelm-freeze"]
    assert len(named("baseline")) == 3
    with pytest.raises(UnknownName, match="GPT-03"):
        named("GPT-3")


def test_the_board_moves_to_the_second_stage_when_tuning_has_ended(tuned_study, tmp_path, write_run):
    study = tuned_study((1e-3, 2e-3, 4e-3))
    root = tmp_path / "runs"
    for run in Board(study, root).stage.tune:
        write_run(run, loss=2 + abs(run.train.learning_rate - 2e-3))
    looked_at = Board(study, root)
    assert looked_at.stage.name == "confirm"
    assert looked_at.progress == "confirm stage: 6/12, 50 %"
    assert not (root / CHOICE).exists(), "who only looks writes nothing"
    Board(study, root, bind=coffee("c0ffee"))
    assert parse_checked((root / CHOICE).read_bytes())["cells"][0]["arms"][0]["values"] == {"train.learning_rate": 2e-3}


def test_what_machines_read_is_json_and_what_people_read_is_a_table(study, tmp_path, write_run):
    write_run(study.runs()[0])
    board = Board(study, tmp_path / "runs")
    plain = json.loads(as_json(board))
    assert (plain["done"], plain["total"]) == (1, 6)
    assert plain["runs"][0]["test_perplexity"] == pytest.approx(4.4817, abs=1e-3)
    assert len(render_board(board.entries, every=True).rows) == 6
    assert len(render_board(board.entries).rows) == 0


LONG = "oelm-random-matched+low-rank=3+bias"


def drawn(shown, width):
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(shown)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def named_long(study):
    arms = (study.arms[0], study.arms[1].model_copy(update={"name": LONG}))
    return study.model_copy(update={"arms": arms, "seeds": (0,)})


@pytest.mark.parametrize("width", [70, 80, 100, 140])
def test_every_run_has_one_line_and_its_whole_name_at_any_usual_width(study, tmp_path, write_run, width):
    study = named_long(study)
    for run in study.runs():
        curve(write_run(run), step=100, loss=1.25)
    heading, *lines = drawn(render_board(Board(study, tmp_path / "runs").entries, every=True), width)
    assert [line.partition("  ")[0] for line in lines[:2]] == ["baseline, seed 0", f"{LONG}, seed 0"]
    assert all("complete" in line and "4.48" in line for line in lines[:2])
    assert max(map(len, (heading, *lines))) <= width
    assert "…" not in "".join(lines)


def test_what_the_width_does_not_hold_is_left_out_in_order_and_named_below(study, tmp_path, write_run):
    study = named_long(study)
    for run in study.runs():
        curve(write_run(run), step=100, loss=1.25)
    shown = render_board(Board(study, tmp_path / "runs").entries, every=True)
    assert drawn(shown, 140)[0].split() == [*shown.headings]
    assert len(drawn(shown, 140)) == 3, "nothing is left out, nothing is said"
    heading, _, _, said, *_ = drawn(shown, 80)
    assert heading.split() == ["run", "state", "step", "loss", "perplexity"]
    assert said == "left out: tokens/s (a wider terminal or oelm status --json shows them)"
    heading, _, _, *said = drawn(shown, 70)
    assert heading.split() == ["run", "state", "perplexity"]
    assert " ".join(said).startswith("left out: step, loss, tokens/s (")


def test_columns_without_a_word_in_them_go_first_and_nobody_misses_them(study, tmp_path):
    shown = render_board(Board(named_long(study), tmp_path / "runs").entries, every=True)
    heading, *lines = drawn(shown, 80)
    assert "tokens/s" not in heading
    assert len(lines) == 2, "of nothing that was left out there was anything to say"


@pytest.mark.parametrize("width", [30, 13])
def test_a_name_wider_than_the_terminal_is_broken_and_no_letter_of_it_lost(study, tmp_path, width):
    shown = render_board(Board(named_long(study), tmp_path / "runs").entries[1:], every=True)
    _, *lines = drawn(shown, width)
    assert max(map(len, lines)) <= width
    assert lines[0].endswith("  waiting"), "a state is not broken"
    assert "".join("".join(lines).replace("waiting", "").split()).startswith(f"{LONG},seed0left")


def test_a_finished_run_shows_its_loss_and_the_speed_of_its_record(study, tmp_path, write_run):
    curve(write_run(study.runs()[0]), step=100, loss=1.25)
    entry = Board(study, tmp_path / "runs").entries[0]
    assert describe_entry(entry)["tokens_per_second"] == 12_345.6, "the curve's is that of its last steps"
    assert drawn(render_board([entry], every=True), 100)[1].split() == [
        "baseline,", "seed", "0", "complete", "100", "1.250", "4.48", "12,346",
    ]  # fmt: skip


def test_a_run_that_stopped_halfway_shows_how_far_it_came_and_no_test_perplexity(study, tmp_path, write_run):
    curve(write_run(study.runs()[0], status="interrupted", result=None), step=40, loss=2.5)
    shown = render_board(Board(study, tmp_path / "runs").entries[:1])
    assert drawn(shown, 100)[1].split()[3:] == ["interrupted", "40/100", "2.500", "9,000"]


def test_a_live_table_follows_the_width_of_its_terminal(study, tmp_path, write_run):
    study = named_long(study)
    for run in study.runs():
        curve(write_run(run, status="interrupted", result=None), step=40, loss=2.5)
    shown = render_board(Board(study, tmp_path / "runs").entries)
    assert len(drawn(shown, 60)[0]) <= 60 < len(drawn(shown, 120)[0])


def curve(directory, step, loss):
    """Let a run's curve end with a step of training."""
    point = MetricRecord(kind="train", step=step, loss=loss, seconds=1.0, tokens_per_second=9_000.0)
    with (directory / METRICS).open("a") as file:
        file.write(point.model_dump_json() + "\n")


def test_a_thousand_runs_are_looked_up_in_about_the_time_it_takes_to_read_them(study, tmp_path, write_run):
    # A ratio, not a time: machines differ. The board may cost a few times what parsing the records costs.
    from oelm.record.folder import find_records

    large = Study(**{**study.__dict__, "seeds": tuple(range(100))})
    for run in large.runs():
        write_run(run)
    began = time.perf_counter()
    find_records(tmp_path / "runs")
    reading = time.perf_counter() - began
    began = time.perf_counter()
    assert Board(large, tmp_path / "runs").count("complete") == 200
    assert time.perf_counter() - began < 6 * reading + 0.5


def test_trials_are_named_by_what_they_try_and_keep_their_test_figure_to_themselves(tuned_study, tmp_path, write_run):
    study = tuned_study()
    write_run(Board(study, tmp_path / "runs").stage.tune[0])
    board = Board(study, tmp_path / "runs")
    assert [entry.name for entry in board.entries[:2]] == [
        "baseline, seed 100 at 0.001",
        "oelm-freeze, seed 100 at 0.001",
    ]
    now = describe_entry(board.refresh(board.entries[0]))
    assert (now["run"], now["trial"], now["test_perplexity"]) == ("baseline, seed 100 at 0.001", [0.001], None)
    assert now["val_loss"] == 1.51


def coffee(checksum):
    return lambda run: run.model_copy(update={"data": run.data.model_copy(update={"checksum": checksum})})


def test_tuning_on_other_bytes_is_void_once_the_data_are_known(tuned_study, tmp_path, write_run):
    study, root = tuned_study(), tmp_path / "runs"
    for run in Board(study, root).stage.tune:
        write_run(run, loss=2 + abs(run.train.learning_rate - 2e-3))
    assert Board(study, root, bind=coffee("c0ffee")).stage.name == "confirm"
    again = Board(study, root, bind=coffee("decaf"))
    assert again.stage.name == "tune"
    assert set(states(again).values()) == {"waiting"}


@pytest.mark.parametrize("now", ["c0ffee", "decaf"])
def test_a_study_tuned_twice_goes_on_with_the_tuning_on_the_bytes_there_are(tuned_study, tmp_path, write_run, now):
    study, root = tuned_study((1e-3, 2e-3, 4e-3)), tmp_path / "runs"
    best = {"c0ffee": 2e-3, "decaf": 1.99e-3}
    for checksum, rate in best.items():
        for run in Board(study, tmp_path / "nothing").stage.tune:
            write_run(run, loss=2 + abs(run.train.learning_rate - rate), checksum=checksum)
    board = Board(study, root, bind=coffee(now))
    assert board.progress == "confirm stage: 6/12, 50 %"
    cited = {run for arm in board.stage.choice.cells[0].arms for run in arm.runs}
    assert cited == {fingerprint(coffee(now)(run)) for run in board.stage.tune}


def test_a_choice_that_only_the_old_bytes_have_made_is_not_confirmed(tuned_study, tmp_path, write_run):
    """The fresh records ask for a wider grid; what the stale ones chose must not stand beside them."""
    study, root = tuned_study((1e-3, 2e-3, 4e-3)), tmp_path / "runs"
    for checksum, rate in {"c0ffee": 2e-3, "decaf": 4e-3}.items():
        for run in Board(study, tmp_path / "nothing").stage.tune:
            write_run(run, loss=2 + abs(run.train.learning_rate - rate), checksum=checksum)
    for now, stage in {"c0ffee": "confirm", "decaf": "tune"}.items():
        assert Board(study, root, bind=coffee(now)).stage.name == stage


def test_the_fingerprints_that_people_see_name_a_run(study, tmp_path, write_run):
    directory = write_run(study.runs()[3])
    bound = directory.name.rpartition("_")[2]
    for word in (bound, bound[:8], fingerprint(study.runs()[3])[:8]):
        assert [entry.directory for entry in Board(study, tmp_path / "runs", only=(word,)).entries] == [directory]


def test_odd_figures_and_edited_curves_do_not_stop_the_looking(study, tmp_path, write_run):
    directory = write_run(study.runs()[0], loss=800.0)
    (directory / "metrics.jsonl").write_text('{"kind": "train", "step": "x"}\n')
    (run, *_) = json.loads(as_json(Board(study, tmp_path / "runs")))["runs"]
    assert (run["state"], run["test_perplexity"], run["loss"]) == ("complete", None, None)


def test_a_run_whose_data_are_not_to_be_had_is_told_and_the_others_go_on(study, tmp_path):
    def bind(run):
        if run.seed == 1:
            raise BadData("there is nothing at data/x")
        return coffee("c0ffee")(run)

    board = Board(study, tmp_path, bind=bind)
    assert [entry.trouble for entry in board.entries if entry.run.seed == 1] == ["there is nothing at data/x"] * 2
    assert board.count("waiting") == 4


def test_epochs_are_shown_as_the_steps_they_became(study, tmp_path, write_run):
    declared = study.model_copy(update={"base": study.base.model_copy(update={"train": TrainSpec(epochs=2)})})
    run = declared.runs()[0]
    write_run(run.model_copy(update={"train": run.train.model_copy(update={"steps": 250})}))
    assert describe_entry(Board(declared, tmp_path / "runs").entries[0])["steps"] == 250


def test_a_record_of_other_numerics_is_of_another_run(study, tmp_path, write_run):
    write_run(study.runs()[0], numerics=0)
    assert Board(study, tmp_path / "runs").entries[0].state == "waiting"


@pytest.mark.parametrize("stale", ["0decaf", "decaf", "tea", "mate"])  # whichever of the folders sorts last
def test_of_two_folders_of_one_run_the_complete_one_tells_and_then_the_newer(study, tmp_path, write_run, stale):
    first, second, *_ = study.runs()
    write_run(first, status="interrupted", result=None, checksum=stale, started="2026-02-02T00:00:00+00:00")
    write_run(second, status="failed", result=None, checksum=stale, started="2025-01-01T00:00:00+00:00")
    whole, newer = write_run(first), write_run(second, status="interrupted", result=None)
    board = Board(study, tmp_path / "runs")
    assert [(entry.directory, entry.state) for entry in board.entries[:2]] == [
        (whole, "complete"), (newer, "interrupted"),
    ]  # fmt: skip


def test_a_margin_by_content_is_registered_with_the_study(tuned_study, write_run, tmp_path):
    study = tuned_study(
        arms=("baseline+features", "position-only"), reference="baseline+features", margin="content",
        tuned={"train.learning_rate": (1e-3,)}, tuning_seeds=(100, 101),
    )  # fmt: skip
    for run in stage_of(study, {}).tune:
        write_run(run, 2.0 + 0.01 * run.seed + (0.3 + 0.02 * (run.seed == 101)) * (run.arm == "position-only"))
    root = tmp_path / "runs"
    board = Board(study, root)
    board.register(board.confirming[0])
    registered = read_registration(root)
    assert registered is not None
    assert 0 < registered.margin_resolved < 100 * math.expm1(0.3 / 2)
    assert compare_folder(study, root).margin == pytest.approx(math.log1p(registered.margin_resolved / 100))
