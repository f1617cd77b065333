from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from oelm.record.folder import (
    ATTENTION,
    METRICS,
    RECORD,
    AttentionRecord,
    RunFolder,
    read_record,
    run_directory,
    write_record,
)
from oelm.report.write import write_report
from oelm.server import index as index_module
from oelm.server.app import LOG_BYTES, MOST_COMPARED, RUN_FILES, create_app
from oelm.spec.study import Study

BESIDE = "the secret beside the runs"


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "LOOK_SECONDS", 0.0)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    (tmp_path / "runs").mkdir(exist_ok=True)
    (tmp_path / "secret.json").write_text(BESIDE)
    (tmp_path / RECORD).write_text(BESIDE)
    (tmp_path / "training.log").write_text(BESIDE)
    return TestClient(create_app(tmp_path / "runs"), base_url="http://localhost")


def ask(client: TestClient, path: str, **params: Any) -> Any:
    answer = client.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---- pages


@pytest.mark.parametrize("path", ["/", "/run", "/compare"])
def test_pages_speak_the_language_asked_for_else_the_browsers(client: TestClient, path: str) -> None:
    assert '<html lang="en">' in client.get(path).text
    assert '<html lang="zh-CN">' in client.get(path, params={"lang": "zh"}).text
    assert '<html lang="zh-CN">' in client.get(path, headers={"accept-language": "zh-CN,zh;q=0.9"}).text
    refused = client.get(path, params={"lang": "fr"})
    assert (refused.status_code, "en, zh" in refused.text) == (400, True)


def test_a_page_links_to_itself_in_the_other_language_with_what_it_shows(client: TestClient) -> None:
    page = client.get("/compare?run=a%26b&run=c").text
    assert 'href="?run=a%26b&amp;run=c&amp;lang=zh"' in page


def test_the_name_of_the_folder_is_escaped(tmp_path: Path) -> None:
    root = tmp_path / "<script>alert(1)<"
    root.mkdir()
    page = TestClient(create_app(root), base_url="http://localhost").get("/").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;" in page


def test_scripts_and_styles_come_with_types_that_a_browser_obeys(client: TestClient) -> None:
    assert client.get("/static/page.css").headers["content-type"].startswith("text/css")
    answer = client.get("/static/chart.js")
    assert "javascript" in answer.headers["content-type"]
    again = client.get("/static/chart.js", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


def test_head_is_answered_like_get_without_a_body(client: TestClient) -> None:
    for path in ("/", "/api/overview", "/static/page.js"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


# ---- answers


def test_the_overview_counts_a_studys_runs_by_state(client: TestClient, study: Study, write_run: Any) -> None:
    states = ["complete", "complete", "failed", "running"]
    for run, state in zip(study.runs(), states, strict=False):
        write_run(run, status=state)
    answer = ask(client, "/api/overview")
    assert answer["studies"][0]["states"] == {"complete": 2, "failed": 1, "running": 1}
    assert len(answer["runs"]) == 4
    later = ask(client, "/api/overview", epoch=answer["epoch"], since=answer["revision"])
    assert (later["runs"], later["whole"]) == ([], False)


def test_a_run_is_answered_with_all_that_is_known_of_it(client: TestClient, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[1], 1.25, samples="Mia took the lamp.")
    write_run(study.runs()[0])
    for step, entropy in ((10, 3.0), (20, 2.0)):
        RunFolder(directory).append_attention(
            AttentionRecord(step=step, entropy=((1.0, entropy),), distance=((5.0, 6.0),))
        )
    answer = ask(client, "/api/run", run=directory.name)
    assert answer["record"]["environment"]["command"] == "oelm run study.py"
    assert answer["spec"]["method.freeze.roles"] == '["q", "k"]'
    assert answer["result"]["test_loss"] == 1.25
    assert answer["samples"] == "Mia took the lamp."
    assert answer["attention"] == {"entropy": [[1.0, 2.0]], "distance": [[5.0, 6.0]]}
    assert len(answer["same_seed"]) == 2
    assert answer["files"] == [name for name in RUN_FILES if (directory / name).exists()]


def test_numbers_that_are_none_arrive_as_what_they_are(client: TestClient, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[0], float("nan"))
    answer = client.get("/api/run", params={"run": directory.name})
    json.loads(answer.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert answer.json()["row"]["loss"] == "NaN"
    curve = ask(client, "/api/curve", run=directory.name)
    assert set(curve["val"]["loss"]) == {"NaN"}


def test_an_unreadable_run_still_has_a_page_with_its_reason_and_its_log(client: TestClient, tmp_path: Path) -> None:
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / RECORD).write_text("{")
    (tmp_path / "runs" / "bad" / "stderr.log").write_text("Killed\n")
    (tmp_path / "runs" / "bad" / ATTENTION).write_text("{\n")
    answer = ask(client, "/api/run", run="bad")
    assert answer["record"] is None
    assert "not whole JSON" in answer["row"]["reason"]
    assert "is damaged" in answer["problems"][0]
    assert ask(client, "/api/log", run="bad", name="stderr.log")["text"] == "Killed\n"
    assert ask(client, "/api/compare", run="bad")["rows"][0]["status"] == "unreadable"


def test_a_comparison_names_the_fields_that_differ_and_no_others(
    client: TestClient, study: Study, write_run: Any
) -> None:
    runs = study.runs()
    slower = runs[1].model_copy(update={"train": runs[1].train.model_copy(update={"learning_rate": 1e-4})})
    keys = [write_run(run, 1.4).name for run in (runs[0], slower)]
    answer = ask(client, "/api/compare", run=keys)
    assert answer["fields"]["train.learning_rate"] == ["0.0003", "0.0001"]
    assert {name.split(".")[0] for name in answer["fields"]} == {"method", "train"}
    assert [result["test_loss"] for result in answer["results"]] == [1.4, 1.4]
    assert ask(client, "/api/compare", run=[keys[0], keys[0]])["fields"] == {}


def test_more_runs_than_can_be_told_apart_are_refused_in_words(
    client: TestClient, study: Study, make_record: Any, tmp_path: Path
) -> None:
    keys = [f"r{number}" for number in range(MOST_COMPARED + 1)]
    for key in keys:
        write_record(tmp_path / "runs" / key, make_record(study.runs()[0]))
    answer = client.get("/api/compare", params={"run": keys})
    assert answer.status_code == 400
    assert f"at most {MOST_COMPARED}" in answer.json()["error"]


def test_a_log_is_followed_from_its_end(client: TestClient, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[0])
    log = directory / "training.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(20_000)) + "词".encode()[:2])
    first = ask(client, "/api/log", run=directory.name)
    assert first["text"].startswith("line ")
    assert first["text"].endswith("line 19999\n")
    assert len(first["text"]) < LOG_BYTES
    with log.open("ab") as file:
        file.write("词".encode()[2:] + b" ended\n")
    second = ask(client, "/api/log", run=directory.name, offset=first["end"])
    assert (second["text"], second["restart"]) == ("词 ended\n", False)
    log.write_text("started again\n")
    third = ask(client, "/api/log", run=directory.name, offset=second["end"])
    assert (third["text"], third["restart"]) == ("started again\n", True)


@pytest.mark.parametrize(
    "query", ["offset=x", "offset=nan", "offset=1e999", "name=record.json", "name=../training.log"]
)
def test_a_senseless_question_is_answered_in_words(
    client: TestClient, study: Study, write_run: Any, query: str
) -> None:
    directory = write_run(study.runs()[0])
    answer = client.get(f"/api/log?run={directory.name}&{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_a_run_whose_name_has_broken_bytes_is_shown_and_opened(
    client: TestClient, study: Study, make_record: Any, tmp_path: Path
) -> None:
    write_record(tmp_path / "runs" / os.fsdecode(b"bad-\xff"), make_record(study.runs()[0]))
    (row,) = ask(client, "/api/overview")["runs"]
    assert row["id"] == "bad-\\xff"
    assert ask(client, "/api/run", run=row["id"])["row"]["arm"] == "baseline"


# ---- files


def test_a_report_is_opened_with_its_links_and_may_run_nothing(
    client: TestClient, study: Study, make_record: Any, tmp_path: Path
) -> None:
    root = tmp_path / "runs" / "tiny"
    for run in study.runs():
        record = make_record(run, 1.4)
        write_record(run_directory(root, record.spec), record)
    assert ask(client, "/api/overview")["studies"][0]["reports"] == []
    write_report(study, root, root / "report")
    assert ask(client, "/api/overview")["studies"][0]["reports"] == ["report"]
    write_report(study, root, root / "report-zh", "zh")
    assert ask(client, "/api/overview")["studies"][0]["reports"] == ["report", "report-zh"]
    assert "结论" in client.get("/files/tiny/report-zh/report.html").text
    page = client.get("/files/tiny/report/report.html")
    assert study.question in page.text
    assert "sandbox" in page.headers["content-security-policy"]
    assert "script-src" not in page.headers["content-security-policy"]
    one = next(root.glob("baseline*"))
    record = client.get(f"/files/tiny/report/../{one.name}/{RECORD}")  # as the report links to it
    assert record.json()["fingerprint"] == read_record(one).fingerprint
    assert client.get("/files/tiny/report/%00.html").status_code == 404


def test_only_files_of_known_names_are_served(client: TestClient, study: Study, write_run: Any) -> None:
    directory = write_run(study.runs()[0])
    (directory / "checkpoint.safetensors").write_text("weights")
    (directory / "page.html").write_text("<script>alert(1)</script>")
    assert client.get(f"/files/{directory.name}/{METRICS}").status_code == 200
    for name in ("checkpoint.safetensors", "page.html", "", ".", "record.json/"):
        assert client.get(f"/files/{directory.name}/{name}").status_code == 404


def test_a_known_name_that_is_a_link_out_is_not_served(
    client: TestClient, study: Study, write_run: Any, tmp_path: Path
) -> None:
    directory = write_run(study.runs()[0])
    (directory / "training.log").symlink_to(tmp_path / "secret.json")
    (directory / "samples.txt").unlink()
    (directory / "samples.txt").symlink_to(tmp_path / "secret.json")
    assert client.get(f"/files/{directory.name}/training.log").status_code == 404
    answers = [client.get(f"/api/{name}", params={"run": directory.name}) for name in ("log", "run")]
    assert all(BESIDE not in answer.text for answer in answers)
    assert "leads out of" in answers[1].json()["problems"][0]


WAYS = [
    "..",
    ".",
    "",
    "runs",
    "secret.json",
    RECORD,
    "training.log",
    "%2e%2e",
    "%2f",
    "..%2f",
    "%5c..",
    "/",
    "etc",
    "passwd",
    "\x00",
]


@given(st.lists(st.sampled_from(WAYS) | st.text(max_size=4), min_size=1, max_size=8), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_no_path_and_no_key_leads_outside(
    client: TestClient, study: Study, write_run: Any, parts: list[str], encoded: bool
) -> None:
    directory = write_run(study.runs()[0])
    path = "/".join([directory.name, *parts])
    whole = quote(path.encode("utf-8", "replace"), safe="" if encoded else "/")
    for address in (f"/files/{whole}", f"/files//{whole}", f"/static/{whole}", f"/{whole}"):
        assert BESIDE not in client.get(address).text
    for key in (path, "/".join(parts), f"/{path}"):
        for name in ("run", "curve", "log", "compare"):
            answer = client.get(f"/api/{name}", params={"run": key.encode("utf-8", "replace").decode()})
            assert answer.status_code in (200, 404)
            assert BESIDE not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/files/RUN/../../record.json", "/files/..%2frecord.json", "/files/RUN/..%2f..%2fsecret.json",
        "/files//etc/passwd", "/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py",
    ],
)  # fmt: skip
def test_raw_dots_and_encoded_slashes_on_the_wire_lead_nowhere(
    client: TestClient, study: Study, write_run: Any, path: str
) -> None:
    raw = path.replace("RUN", write_run(study.runs()[0]).name)
    scope = {
        "type": "http", "http_version": "1.1", "method": "GET", "scheme": "http", "server": ("localhost", 80),
        "path": unquote(raw), "raw_path": raw.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")],
    }  # fmt: skip
    assert _status(client.app, scope) == 404


def _status(app: Any, scope: dict[str, Any]) -> int:
    """Ask the application itself: a client would tidy the dots away."""
    found: list[int] = []

    async def send(message: dict[str, Any]) -> None:
        found.extend([message["status"]] if message["type"] == "http.response.start" else [])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    asyncio.run(app(scope, receive, send))
    return found[0]
