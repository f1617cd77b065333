"""One bad file is reported next to its run; the page and every other run keep working."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

from oelm.cli import dispatch
from oelm.files import parse_checked
from oelm.record.folder import METRICS, RECORD, STUDY, TIMING, write_study
from oelm.server import index as index_module
from oelm.server.app import create_app
from oelm.spec.study import Study

DEEP = "[" * 100_000
LONG = '{"step": ' + "9" * 5000 + "}"
NESTED = '{"a":' * 900 + "1" + "}" * 900
"""Parsed without an error, but too deep for most of what would walk over it."""


@pytest.fixture
def runs(tmp_path: Path, study: Study, write_run: Any, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(index_module, "LOOK_SECONDS", 0.0)
    return [write_run(run) for run in study.runs()]


@pytest.fixture
def client(tmp_path: Path, runs: list[Path]) -> TestClient:
    return TestClient(create_app(tmp_path / "runs"), base_url="http://localhost", raise_server_exceptions=True)


@pytest.mark.parametrize("content", [DEEP, LONG, NESTED, "", "\ud800".encode("utf-8", "surrogatepass"), "[]", "null"])
def test_a_bad_record_costs_one_run(client: TestClient, runs: list[Path], content: str | bytes) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (runs[0] / RECORD).write_bytes(data)
    found = client.get("/api/overview").json()
    states = {row["id"]: row["status"] for row in found["runs"]}
    assert states.pop(runs[0].name) == "unreadable"
    assert set(states.values()) == {"complete"}
    assert client.get("/api/run", params={"run": runs[0].name}).status_code == 200


@pytest.mark.parametrize("content", [DEEP, LONG, NESTED, "[]", "{}"])
@pytest.mark.parametrize("name", [TIMING, METRICS, "attention.jsonl"])
def test_a_bad_file_next_to_the_record_costs_that_file(
    client: TestClient, runs: list[Path], name: str, content: str
) -> None:
    (runs[0] / name).write_text(f"{content}\n")
    seen = client.get("/api/run", params={"run": runs[0].name})
    curve = client.get("/api/curve", params={"run": runs[0].name})
    assert (seen.status_code, curve.status_code) == (200, 200)
    assert seen.json()["row"]["status"] == "complete"
    assert seen.json()["problems"] or curve.json()["problems"]
    assert client.get("/api/overview").status_code == 200


def test_a_study_of_160_000_cells_is_refused_at_once_and_its_runs_are_shown(
    client: TestClient, tmp_path: Path, study: Study, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "runs"
    write_study(root, study)
    plain = parse_checked((root / STUDY).read_bytes())
    plain["axes"] = {"train.learning_rate": [n / 1e5 for n in range(1, 401)], "train.warmup_steps": list(range(400))}
    (root / STUDY).write_text(json.dumps(plain))
    found = client.get("/api/overview").json()
    assert "960,000 runs" in found["studies"][0]["reason"]
    assert len(found["runs"]) == len(runs)
    assert dispatch(["report", str(root)]) == 1
    assert "960,000 runs" in capsys.readouterr().err


def test_a_huge_record_is_not_read(client: TestClient, runs: list[Path]) -> None:
    with (runs[0] / RECORD).open("ab") as file:
        file.truncate(1 << 31)
    (row,) = (row for row in client.get("/api/overview").json()["runs"] if row["id"] == runs[0].name)
    assert row["status"] == "unreadable"
    assert "bytes" in row["reason"]


def test_a_log_of_gigabytes_is_sent_in_parts(client: TestClient, runs: list[Path]) -> None:
    with (runs[0] / "training.log").open("wb") as file:
        file.truncate(300 << 20)  # sparse, so it takes no space
    process, peak, done = psutil.Process(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, process.memory_info().rss)

    app = client.app
    before = process.memory_info().rss
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        total = _count_body(app, f"/files/{runs[0].name}/training.log")
    finally:
        done.set()
        watcher.join()
    assert total == 300 << 20
    assert peak - before < 100 << 20


def _count_body(app: Any, path: str) -> int:
    """Ask an app for a file and count its bytes, without keeping them as the test client would."""
    import asyncio

    total = 0

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(3600)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal total
        total += len(message.get("body", b""))

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80), "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    return total
