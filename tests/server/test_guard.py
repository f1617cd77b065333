from __future__ import annotations

import socket

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from oelm.server.app import HEADERS, Guard, host_of


def status(listens_on: str, asked_as: str) -> int:
    client = TestClient(Guard(PlainTextResponse("in"), listens_on), raise_server_exceptions=True)
    return client.get("/", headers={"host": asked_as}).status_code


@pytest.mark.parametrize(
    "name", ["localhost", "localhost:8765", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765", "localhost."]
)
def test_names_of_this_machine_are_answered(name: str) -> None:
    assert status("127.0.0.1", name) == 200


@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:8765", "localhost.evil.example", "192.168.1.7", "", "[", "127.0.0.1.evil.example"],
)
def test_a_name_that_was_rebound_to_this_machine_is_refused(name: str) -> None:
    assert status("127.0.0.1", name) == 421


def test_a_host_that_was_asked_for_is_answered_and_no_other() -> None:
    assert status("192.168.1.7", "192.168.1.7:8765") == 200
    assert status("192.168.1.7", "192.168.1.8:8765") == 421


def test_a_server_on_all_addresses_answers_to_numbers_and_its_own_name_but_to_no_rebound_name() -> None:
    assert status("0.0.0.0", "10.1.2.3:8765") == 200  # noqa: S104
    assert status("0.0.0.0", socket.gethostname()) == 200  # noqa: S104
    assert status("0.0.0.0", "evil.example") == 421  # noqa: S104


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(method: str) -> None:
    client = TestClient(Guard(PlainTextResponse("in"), "localhost"), base_url="http://localhost")
    answer = client.request(method, "/")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_every_answer_carries_the_headers(host: str) -> None:
    client = TestClient(Guard(PlainTextResponse("in"), "localhost"))
    answer = client.get("/", headers={"host": host})
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_a_host_header_is_read_with_and_without_port() -> None:
    assert [host_of(text) for text in ("a:1", "A", "[::1]:5", "[::1]", "a.")] == ["a", "a", "::1", "::1", "a"]
