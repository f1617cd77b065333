"""`oelm serve` as a user starts and ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oelm.cli import dispatch
from oelm.cli.status import address_to_open, listen
from oelm.errors import UsageError
from oelm.record.folder import find_records
from oelm.record.keep import keep_archived
from oelm.spec.study import Study


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "oelm", "serve", str(folder), "--port", "0", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            yield process, re.search(r"http://\S+/", line).group()
        finally:
            process.kill()


def test_it_says_where_it_is_answers_and_ends_in_peace(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, address):
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address, timeout=20) as answer:  # noqa: S310  (our own)
            assert answer.status == 200
            assert "server" not in {name.lower() for name in answer.headers}
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
        assert (process.returncode, errors, rest.strip()) == (0, "", "ended.")


def test_an_archived_study_is_shown_like_its_folder(study: Study, write_run: Any, tmp_path: Path) -> None:
    directory = write_run(study.runs()[0])
    keep_archived(study, tmp_path / "runs", find_records(tmp_path / "runs")[0], tmp_path / "results" / "tiny")
    with (
        serving(tmp_path / "results") as (_, address),
        urllib.request.urlopen(f"{address}api/overview", timeout=20) as answer,  # noqa: S310  (our own)
    ):
        assert [row["id"] for row in json.load(answer)["runs"]] == [f"tiny/{directory.name}"]


def test_a_host_that_others_reach_is_warned_about(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0") as (process, address):  # noqa: S104
        assert socket.gethostname() in address
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert "There is no password" in errors


def test_the_error_for_a_port_in_use_suggests_another() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"port {port} is in use.*--port {port + 1}, or --port 0"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(("host", "port"), [("no.such.host.invalid", 0), ("203.0.113.7", 0), ("127.0.0.1", 70_000)])
def test_an_address_of_another_machine_is_refused(host: str, port: int) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        listen(host, port)


def test_a_missing_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["serve", str(tmp_path / "none")]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.skipif(not socket.has_ipv6 or not os.path.exists("/proc/net/if_inet6"), reason="no IPv6 here")  # noqa: PTH110
def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    try:
        listening = listen("::1", 0)
    except UsageError:
        pytest.skip("this machine has no ::1")
    with listening:
        assert address_to_open(listening, "::1").startswith("http://[::1]:")
