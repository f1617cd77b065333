"""The results page in a real browser: what a reader sees, clicks and drags."""

from __future__ import annotations

import json
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn

from oelm.cli.status import address_to_open, listen
from oelm.record.folder import (
    METRICS,
    RECORD,
    AttentionRecord,
    NotesRecord,
    RunFolder,
    read_record,
    run_directory,
    write_record,
    write_study,
)
from oelm.record.record import MetricRecord, commit_of
from oelm.report.write import write_report
from oelm.server.app import create_app
from oelm.spec.study import Study

pytestmark = [pytest.mark.browser, pytest.mark.programs]
HOSTILE = '"><img src=x onerror=document.title="gone"><script>document.title="gone"</script>'
Open = Callable[..., Any]


COMMIT = commit_of(Path(__file__).parents[2]) or "0123456789abcdef"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def runs(tmp_path: Path, study: Study, make_record: Any) -> Path:
    """A study of six declared runs: three complete, one running, one failed, one unreadable; one not there yet."""
    root = tmp_path / "runs" / study.name
    write_study(root, study)
    states: list[dict[str, Any]] = [
        *({"status": "complete"} for _ in range(3)),
        {"status": "running", "result": None, "finished": None, "step": 40},
        {"status": "failed", "result": None, "error": "Traceback ...\nRunFailed: the loss is NaN"},
    ]
    for run, state in zip(study.runs(), states, strict=False):
        record = make_record(run, 1.4 + 0.1 * (run.arm != "baseline") + 0.01 * run.seed, **state)
        directory = run_directory(root, record.spec)
        write_record(directory, record)
        curve(directory, range(0, record.step + 1, 2))
        (directory / "training.log").write_text("".join(f"[Step {step}] loss\n" for step in range(400)))
        (directory / "samples.txt").write_text("Once upon [...] a time\n\nThere was [...] a fox\n")
        RunFolder(directory).append_attention(
            AttentionRecord(step=record.step, entropy=((1, 2), (3, 4)), distance=((5, 6), (7, 8)))
        )
    (root / "torn").mkdir()
    (root / "torn" / RECORD).write_text("{")
    return tmp_path / "runs"


def curve(directory: Path, steps: range) -> None:
    with (directory / METRICS).open("a") as file:
        for step in steps:
            for kind in ("train", "val"):
                metric = MetricRecord(kind=kind, step=step, loss=1 + 4 * math.exp(-step / 20), seconds=step / 5)
                file.write(metric.model_dump_json(exclude_none=True) + "\n")


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Open]:
    """Open pages of `tmp_path / "runs"`; any error or refusal by the content policy fails the test."""
    (tmp_path / "runs").mkdir(exist_ok=True)
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(
        uvicorn.Config(create_app(tmp_path / "runs"), log_level="warning", lifespan="off", ws="none")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    complaints: list[str] = []
    contexts = []

    def open_page(path: str = "/", width: int = 1280, **options: Any) -> Any:
        contexts.append(chromium.new_context(viewport={"width": width, "height": 844}, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)  # a loaded machine takes a while
        page.on("console", lambda message: complaints.extend([message.text] if message.type == "error" else []))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address_to_open(listening, "127.0.0.1").rstrip("/") + path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    server.should_exit = True
    thread.join()
    assert [text for text in complaints if "status of 404" not in text] == []  # a test plays a lost server


def keys(runs: Path, status: str) -> list[str]:
    return [
        path.parent.relative_to(runs).as_posix()
        for path in sorted(runs.glob(f"*/*/{RECORD}"))
        if path.parent.name != "torn" and read_record(path.parent).status == status
    ]


def at(page: str, *runs: str, **more: str) -> str:
    return f"/{page}?" + urlencode([*(("run", run) for run in runs), *more.items()])


def until(page: Any, condition: str) -> None:
    """Wait for a condition. Playwright's own waiting evaluates text in the page, which the page's policy forbids."""
    ends = time.monotonic() + 120
    while not page.evaluate(condition):
        assert time.monotonic() < ends, condition
        page.wait_for_timeout(100)


def names(page: Any) -> list[str]:
    return page.locator("#runs tbody th a").all_inner_texts()


def test_the_overview_shows_progress_and_every_run_with_its_state(opened: Open, runs: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    assert "3/6, 50 %" in page.inner_text("#studies")
    assert "What does freezing cost?" in page.inner_text("#studies")
    assert sorted(page.locator("#runs .state").all_inner_texts()) == sorted(
        ["complete"] * 3 + ["running", "failed", "unreadable"]
    )
    torn = page.locator("#runs tr", has_text="torn")
    assert "not whole JSON" in torn.inner_text()


def test_runs_are_filtered_sorted_and_the_address_remembers(opened: Open, runs: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    page.fill("#filter", "freeze complete")
    assert names(page) == ["oelm-freeze"]
    page.fill("#filter", "complete")
    page.click("#runs button[data-sort=loss]")
    losses = page.locator("#runs td.loss").all_inner_texts()
    assert losses == sorted(losses)
    page.click("#runs button[data-sort=loss]")
    assert page.locator("#runs td.loss").all_inner_texts() == losses[::-1]
    page.reload()
    page.wait_for_selector("#runs tbody tr")
    assert page.input_value("#filter") == "complete"
    assert page.locator("#runs td.loss").all_inner_texts() == losses[::-1]
    page.fill("#filter", "nothing like it")
    assert page.locator("#empty").is_visible()


def test_a_run_that_begins_moves_and_ends_appears_by_itself(
    opened: Open, runs: Path, study: Study, make_record: Any
) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    (key,) = keys(runs, "running")
    row = page.locator(f'#runs tr[data-id="{key}"]')
    assert "40/100" in row.inner_text()
    curve(runs / key, range(42, 61, 2))
    until(page, "document.querySelector('#runs').innerText.includes('60/100')")
    record = read_record(runs / key)
    write_record(runs / key, make_record(record.spec, 1.5))
    until(page, "document.querySelector('#studies').innerText.includes('4/6')")
    last = make_record(study.runs()[5])
    write_record(run_directory(runs / study.name, last.spec), last)
    until(page, "document.querySelectorAll('#runs tbody tr').length === 7")


def test_chosen_runs_are_compared(opened: Open, runs: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    for key in keys(runs, "complete"):
        page.check(f'#runs tr[data-id="{key}"] input')
    assert page.inner_text("#chosen") == "3 chosen"
    page.click("#compare")
    page.wait_for_selector("path.line.val[d^=M][data-run]")
    assert page.locator("path.line.val[data-run]").count() == 3
    looks = page.locator(".legend path").evaluate_all(
        "paths => paths.map(p => getComputedStyle(p).stroke + p.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == 3
    assert page.locator("#finals tbody tr").count() == 3
    assert '["q", "k"]' in page.locator("#fields tr", has_text="method.freeze.roles").inner_text()
    page.go_back()
    page.wait_for_selector("#runs tbody tr")
    assert page.locator("#runs input:checked").count() == 3


def test_a_curve_is_zoomed_by_dragging_read_by_hovering_and_hidden_by_its_name(opened: Open, runs: Path) -> None:
    page = opened(at("compare", *keys(runs, "complete")))
    until(page, "document.querySelectorAll('path.line[data-run][d^=M]').length === 3")

    def ticks() -> list[float]:
        texts = page.locator("text.tick[text-anchor=middle]").all_text_contents()
        return [float(text) for text in texts]

    whole = ticks()
    box = page.locator("svg.plot").bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 120)
    assert page.locator(".tooltip").is_visible()
    assert page.locator(".tooltip b").count() == 3
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 120, steps=4)
    page.mouse.up()
    zoomed = ticks()
    assert max(zoomed) - min(zoomed) < (max(whole) - min(whole)) / 3
    page.locator("svg.plot").dblclick()
    assert ticks() == whole
    page.locator(".legend button").first.click()
    assert page.locator("path.line[data-run]").count() == 2
    page.get_by_role("button", name="training seconds").click()
    assert max(ticks()) == 20
    page.get_by_role("button", name="logarithmic").click()
    page.get_by_label("training", exact=True).check()
    assert page.locator("path.line.train[data-run]").count() == 2


def test_a_curve_is_zoomed_and_read_by_keys_alone(opened: Open, runs: Path) -> None:
    page = opened(at("run", keys(runs, "complete")[0]))
    page.wait_for_selector("path.line[data-run]")
    page.locator("svg.plot").focus()
    page.keyboard.press("ArrowRight")
    assert "step 52" in page.inner_text(".tooltip")
    page.keyboard.press("+")
    assert page.locator("#reset").is_visible()
    page.keyboard.press("0")
    assert page.locator("#reset").is_hidden()


def test_a_run_shows_where_it_was_born_what_it_writes_and_what_its_heads_look_at(opened: Open, runs: Path) -> None:
    page = opened(at("run", keys(runs, "complete")[0]))
    page.wait_for_selector("#facts dd")
    assert "oelm run study.py" in page.inner_text("#facts")
    assert COMMIT in page.inner_text("#facts")
    assert page.locator("#samples blockquote").count() == 2
    assert page.locator("#attention rect").count() == 8
    with page.expect_navigation():
        page.get_by_role("link", name="record.json").click()
    assert json.loads(page.inner_text("body"))["status"] == "complete"


def test_a_log_follows_its_end_until_the_reader_scrolls_up(opened: Open, runs: Path) -> None:
    (key,) = keys(runs, "running")
    page = opened(at("run", key))
    until(page, "document.querySelector('#log').innerText.includes('[Step 399]')")
    log = runs / key / "training.log"

    def says(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")
        until(page, f"document.querySelector('#log').textContent.includes('{line}')")

    says("a new line")
    distance = "(e => e.scrollHeight - e.scrollTop - e.clientHeight)(document.querySelector('#log'))"
    assert page.evaluate(distance) < 2
    page.evaluate("document.querySelector('#log').scrollTop = 0")
    until(page, "!document.querySelector('#follow').checked")
    says("another line")
    assert page.evaluate("document.querySelector('#log').scrollTop") == 0


def test_a_failed_and_an_unreadable_run_say_why(opened: Open, runs: Path) -> None:
    page = opened(at("run", keys(runs, "failed")[0]))
    page.wait_for_selector("#why-text:not(:empty)")
    assert "RunFailed: the loss is NaN" in page.inner_text("#why")
    page = opened(at("run", "tiny/torn", lang="zh"))
    page.wait_for_selector("#why-text:not(:empty)")
    assert "无法读取的原因" in page.inner_text("#why")


def test_a_report_opens_from_its_study(opened: Open, runs: Path, study: Study) -> None:
    write_report(study, runs / study.name, runs / study.name / "report")
    page = opened()
    with page.expect_navigation():
        page.get_by_role("link", name="Report").click()
    assert study.question in page.inner_text("body")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") != "none"  # its own style is allowed


def test_the_margin_of_a_report_is_in_sight_on_a_phone(
    opened: Open, tmp_path: Path, study: Study, make_record: Any
) -> None:
    root = tmp_path / "runs" / study.name
    write_study(root, study)
    for run in study.runs():
        record = make_record(run, 1.4 + (run.arm != "baseline") * (0.02 + 0.001 * run.seed))
        write_record(run_directory(root, record.spec), record)
    write_report(study, root, root / "report")
    page = opened("/", 390)
    with page.expect_navigation():
        page.get_by_role("link", name="Report").click()
    box = page.locator("[data-figure^=forest] svg").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390  # the dashed line is at the right edge


def test_the_numbers_of_a_run_have_chinese_names_on_the_chinese_page(opened: Open, runs: Path) -> None:
    page = opened(at("run", keys(runs, "complete")[0], lang="zh"))
    page.wait_for_selector("#numbers dt")
    names = page.locator("#numbers dt").all_inner_texts()
    assert [name for name in names if not re.search("[一-鿿]", name)] == []
    assert names[0] == "困惑度"


def test_markup_in_names_logs_and_samples_stays_text(
    opened: Open, tmp_path: Path, study: Study, make_record: Any
) -> None:
    run = study.runs()[0].model_copy(update={"arm": HOSTILE, "label": HOSTILE})
    directory = tmp_path / "runs" / "<b>study" / "<i>run"
    write_record(directory, make_record(run, status="failed", error=HOSTILE))
    curve(directory, range(0, 50, 10))
    for name in ("training.log", "samples.txt"):
        (directory / name).write_text(HOSTILE)
    for path in ("/", at("run", "<b>study/<i>run"), at("compare", "<b>study/<i>run")):
        page = opened(path)
        until(page, "document.body.innerText.includes('<script>document.title')")
        assert page.locator("main img, main script, main b b, main i").count() == 0
        assert page.title() != "gone"


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(("lang", "scheme"), [("en", "light"), ("zh", "dark")])
def test_nothing_overflows_at_phone_and_desktop_width(
    opened: Open, runs: Path, width: int, lang: str, scheme: str
) -> None:
    done = keys(runs, "complete")
    for path, ready in {
        f"/?lang={lang}": "#runs tbody tr",
        at("run", done[0], lang=lang): "#facts dd",
        at("compare", *done, lang=lang): "#fields td",
    }.items():
        page = opened(path, width, color_scheme=scheme)
        page.wait_for_selector(ready)
        room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert room[0] <= room[1], path
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, paper[4:-1].split(","))) < 80) == (scheme == "dark")
        assert bool(re.search("[一-鿿]", page.inner_text("main"))) == (lang == "zh")


def test_a_thousand_runs_are_listed_and_filtered(opened: Open, tmp_path: Path, study: Study, make_record: Any) -> None:
    for number in range(1000):
        record = make_record(study.runs()[number % 6], 1 + number / 1000)
        write_record(tmp_path / "runs" / "many" / f"run{number:04}", record)
    page = opened()
    until(page, "document.querySelectorAll('#runs tbody tr').length === 1000")
    page.fill("#filter", "run0123")
    assert page.locator("#runs tbody tr").count() == 1
    page.fill("#filter", "seed:1 freeze")
    assert page.locator("#runs tbody tr").count() == 167


def test_a_server_that_ended_is_told(opened: Open, runs: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    page.route("**/api/**", lambda route: route.fulfill(status=404, json={"error": "the folder is gone"}))
    until(page, "!document.querySelector('#notice').hidden")
    assert "the folder is gone" in page.inner_text("#notice")
    page.unroute("**/api/**")
    until(page, "document.querySelector('#notice').hidden")


@pytest.fixture
def tuning(tmp_path: Path, tuned_study: Any, make_record: Any) -> Path:
    """A tuning stage of two arms and three learning rates; one run is there twice, one has notes, one is hidden."""
    study = tuned_study()
    root = tmp_path / "runs" / study.name
    write_study(root, study)
    for arm in study.arms:
        for rate in study.tuned["train.learning_rate"]:
            run = study.base.model_copy(update={"seed": 100, "arm": arm.name, "method": arm.method})
            run = run.model_copy(update={"train": run.train.model_copy(update={"learning_rate": rate})})
            directory = root / f"{arm.name}-{rate}"
            write_record(directory, make_record(run, 1.4 + rate))
            with (directory / METRICS).open("w") as file:
                for step in range(1, 60):
                    metric = MetricRecord(
                        kind="train", step=step, loss=2 + step % 2, seconds=step / 5, processor_seconds=step / 4,
                        learning_rate=rate * step / 60, tokens_per_second=1000.0 + step,
                    )  # fmt: skip
                    file.write(metric.model_dump_json(exclude_none=True) + "\n")
    later = read_record(root / "baseline-0.001").model_copy(update={"started": "2026-01-02T00:00:00+00:00"})
    write_record(root / "again", later)
    RunFolder(root / "baseline-0.004").write_notes(NotesRecord(text="<b>good</b>", tags=("paper",)))
    RunFolder(root / "oelm-freeze-0.004").write_notes(NotesRecord(hidden=True))
    return root


def test_runs_of_a_tuning_stage_are_told_apart_and_filtered_by_any_field(opened: Open, tuning: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    tried = page.locator("#runs td.tried").all_inner_texts()
    assert sorted(tried) == sorted([f"learning rate {rate}" for rate in (0.001, 0.002, 0.004, 0.001, 0.002)])
    page.fill("#filter", "learning_rate:2e-3")
    assert page.locator("#runs td.tried").all_inner_texts() == ["learning rate 0.002"] * 2
    page.fill("#filter", "corpus:stories train.learning_rate:0.002 -freeze")
    assert names(page) == ["baseline"]
    page.fill("#filter", "corpus:kjv")
    assert page.locator("#empty").is_visible()
    page.fill("#filter", "tag:paper")
    assert names(page) == ["baseline"]
    assert "<b>good</b>" in page.inner_text("#runs")
    assert page.locator("#runs td.test_perplexity").all_inner_texts() == ["–"], "a run that tunes"


def test_superseded_and_hidden_runs_are_apart(opened: Open, tuning: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    assert page.locator("#runs tbody tr").count() == 5
    assert "2" in page.inner_text("#apart-count")
    page.check("#apart")
    assert page.locator("#runs tbody tr").count() == 7
    assert page.locator("#runs tr.apart", has_text="superseded").get_attribute("data-id") == "tuned/again"
    page.reload()
    until(page, "document.querySelectorAll('#runs tbody tr').length === 7")


def test_columns_are_chosen_and_the_shown_rows_saved_as_csv(opened: Open, tuning: Path) -> None:
    page = opened()
    page.wait_for_selector("#runs tbody tr")
    page.click(".columns summary")
    page.check("[data-column=learning_rate]")
    page.uncheck("[data-column=seed]")
    assert page.locator("#runs thead th.seed").count() == 0
    assert min(page.locator("#runs td.learning_rate").all_inner_texts()) == "0.001"
    page.fill("#filter", "tag:paper")
    with page.expect_download() as download:
        page.click("#csv")
    head, line, *rest = Path(download.value.path()).read_text().splitlines()
    assert rest == []
    assert "learning rate" in head
    assert "seed" not in head.split(",")
    assert line.startswith("tuned/baseline-0.004,baseline,")
    assert line.endswith("paper,<b>good</b>")
    page.reload()
    page.wait_for_selector("#runs thead th.learning_rate")


def test_curves_show_other_measures_and_are_smoothed(opened: Open, tuning: Path) -> None:
    page = opened(at("compare", "tuned/baseline-0.001", "tuned/baseline-0.002"))
    page.wait_for_selector(".legend button")
    assert page.locator(".legend button").all_inner_texts() == [
        f"baseline, seed 100, learning rate {rate}" for rate in (0.001, 0.002)
    ]
    until(page, "document.querySelector('.controls select').options.length === 4")  # no accuracy here
    measure, smoothing = page.locator(".controls select").nth(0), page.locator(".controls select").nth(1)
    measure.select_option("learning_rate")
    page.wait_for_selector("path.line.train[data-run]")
    assert "learning rate" in page.text_content("svg.plot")
    measure.select_option("cores")
    assert "cores in use" in page.text_content("svg.plot")
    measure.select_option("loss")
    page.get_by_label("training", exact=True).check()
    rough = page.locator("path.line.train[data-run]").first.get_attribute("d")
    smoothing.select_option("0.9")
    smooth = page.locator("path.line.train[data-run]").first.get_attribute("d")

    def spread(path: str) -> float:
        heights = [float(pair.split(",")[1]) for pair in re.split("[ML]", path)[30:] if "," in pair]
        return max(heights) - min(heights)

    assert spread(smooth) < spread(rough) / 2
    assert "test" not in page.inner_text("#finals tbody")
    assert page.locator("#finals thead th", has_text="test loss").count() == 0
