"""The routes of the results page. They only read: nothing is written, started or stopped."""

from __future__ import annotations

import ipaddress
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oelm.errors import BadRecord, OelmError, UsageError
from oelm.record.folder import LOG
from oelm.report.wording import HTML_LANGUAGES, Language, read_messages, wording
from oelm.server.index import REPORTS, Folder, FolderIndex, Run
from oelm.server.views import (
    REPORT_FORMATS,
    RUN_FILES,
    MetricsCache,
    compare_view,
    log_view,
    overview,
    run_view,
    to_json_data,
)

# A website could make the browser of a reader send requests to this server. Two checks prevent that: the Host header
# must be a name of this machine (which excludes DNS rebinding), and no response allows another origin to read it.

LOCAL = ("localhost", "127.0.0.1", "::1")
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  (recognised, not bound)
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""For files from the runs folder: they may have their own style, but cannot run scripts."""
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Guard:
    """Middleware that accepts only GET and HEAD, and only under a name of this machine."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.names = names_for(host)
        self.any_address = host in EVERYWHERE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This page is read-only: use GET or HEAD.\n", 405, {"Allow": "GET, HEAD"})
        name = host_of(Headers(scope=scope).get("host", ""))
        if name in self.names or (self.any_address and is_address(name)):
            return None
        return PlainTextResponse(
            f"This server does not accept the host name {quote(name)!r}. Open the address that it printed, or start "
            "it with --host and a name or address of this machine.\n",
            421,
        )


def names_for(host: str) -> frozenset[str]:
    """Return the host names that a server on `host` accepts."""
    own: Iterable[str] = (socket.gethostname(), socket.getfqdn()) if host in EVERYWHERE else (host,)
    return frozenset(name.lower() for name in (*LOCAL, *own))


def host_of(header: str) -> str:
    """Return the name in a Host header, without the port and without the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def is_address(name: str) -> bool:
    """Whether a name is an IP address, which DNS cannot rebind."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


HERE = Path(__file__).parent
PAGE_TEXTS = HERE / "text"
PAGES = {"/": "overview", "/run": "run", "/compare": "compare"}
PART_BYTES = 1 << 18
"""Bytes of a file that are held in memory while it is sent."""
TYPES = {".html": "text/html", ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json"}


class JsonReply(Response):
    """JSON in ASCII, so that a name with invalid bytes does not break the response."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the data."""
        return json.dumps(to_json_data(content), separators=(",", ":"), allow_nan=False).encode()


class ResultsPage:
    """The routes for one folder of runs. Endpoints are plain functions, which Starlette runs in threads."""

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root)
        self.index = FolderIndex(self.folder)
        self.curves = MetricsCache(self.folder)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip

    def routes(self) -> list[Route | Mount]:
        """Return all routes."""
        api: dict[str, Callable[[Request], Any]] = {
            "overview": self.overview, "run": self.run, "compare": self.compare, "curve": self.curve, "log": self.log,
        }  # fmt: skip
        return [
            *(Route(path, self.page, name=name) for path, name in PAGES.items()),
            *(Route(f"/api/{name}", _reply_json(function)) for name, function in api.items()),
            Route("/files/{path:path}", self.file),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    def page(self, request: Request) -> Response:
        """Render a page in the language of ?lang=, or else of the browser."""
        lang = request.query_params.get("lang") or _browser_language(request)
        try:
            say = wording(lang, PAGE_TEXTS)
        except OelmError as error:
            raise HTTPException(400, str(error)) from error
        name = PAGES[request.url.path]
        html = self._templates.get_template(f"{name}.html.j2").render(
            page=name, say=say, words=read_messages(lang, PAGE_TEXTS), lang=HTML_LANGUAGES[lang],
            folder=str(self.folder.root),
            other=str(request.url.include_query_params(lang="en" if lang == "zh" else "zh").query),
            home=f"?lang={lang}" if "lang" in request.query_params else "",
        )  # fmt: skip
        return HTMLResponse(html, headers={"Vary": "Accept-Language"})

    def overview(self, request: Request) -> Any:
        """Return the changes since a revision."""
        since = _number(request, "since")
        return overview(self.index, request.query_params.get("epoch", ""), int(since or 0))

    def run(self, request: Request) -> Any:
        """Return all data of a run."""
        return run_view(self.index, self._run(request))

    def compare(self, request: Request) -> Any:
        """Return the numbers of some runs and their differences."""
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        return compare_view([self._find_run(key) for key in keys])

    def curve(self, request: Request) -> Any:
        """Answer a curve: what is new in it, or a part of it in finer grain."""
        directory = self._run(request).seen.directory
        first, last = _number(request, "first"), _number(request, "last")
        if first is not None and last is not None:
            return self.curves.between(directory, first, last)
        return self.curves.after(directory, request.query_params.get("cursor", ""))

    def log(self, request: Request) -> Any:
        """Return the end of a log, or the text that was added to it."""
        offset = _number(request, "offset")
        name = request.query_params.get("name", LOG)
        directory = self._run(request).seen.directory
        return log_view(self.folder, directory, name, None if offset is None else int(offset))

    def file(self, request: Request) -> Response:
        """Serve a file with a known name from a run or a report in the index."""
        place, _, name = request.path_params["path"].rpartition("/")
        self.index.look()
        run = self.index.runs.get(place)
        holder, _, folder = place.rpartition("/")
        study = self.index.studies.get(holder)
        if run is not None and name in RUN_FILES:
            path = run.seen.directory / name
        elif study is not None and name.endswith(REPORT_FORMATS) and folder in REPORTS:
            path = study.directory / folder / name
        else:
            raise HTTPException(404, "This is not a file of a run or a report.")
        try:
            file = self.folder.open(path)
        except (OSError, ValueError, BadRecord) as error:  # ValueError: not a valid file name
            raise HTTPException(404, f"{name} cannot be read: {error}") from error
        size = os.fstat(file.fileno()).st_size
        headers = {"Content-Security-Policy": REPORT_POLICY, "Content-Length": str(size)}
        kind = TYPES.get(path.suffix, "text/plain")
        return StreamingResponse(_read_parts(file, size), media_type=kind, headers=headers)

    def _run(self, request: Request) -> Run:
        return self._find_run(request.query_params.get("run", ""))

    def _find_run(self, key: str) -> Run:
        run = self.index.find(key)
        if run is None:
            raise HTTPException(404, f"There is no run {key!r} below {self.folder.root}.")
        return run


def create_app(root: Path, host: str = LOCAL[0]) -> ASGIApp:
    """Return the results page of a folder, for a server that listens on `host`."""
    return Guard(Starlette(routes=ResultsPage(root).routes(), exception_handlers={HTTPException: _as_text}), host)


def _reply_json(function: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            return JsonReply(function(request))
        except HTTPException as error:
            return JsonReply({"error": error.detail}, error.status_code)
        except UsageError as error:
            return JsonReply({"error": str(error)}, 400)
        except (OelmError, OSError) as error:
            return JsonReply({"error": str(error)}, 404)

    return endpoint


def _read_parts(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the first `size` bytes of a file: a log may have gigabytes, and may grow while it is sent."""
    with file:
        while size > 0 and (data := file.read(min(PART_BYTES, size))):
            size -= len(data)
            yield data


def _as_text(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (for the type checker: it is registered for these alone)
    return Response(f"{error.detail}\n", error.status_code, media_type="text/plain")


def _browser_language(request: Request) -> Language:
    return "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"


def _number(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e15:
        raise HTTPException(400, f"{name} must be a number, not {text!r}.")
    return value
