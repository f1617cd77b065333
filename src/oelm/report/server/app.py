"""The addresses of the results page. Everything is read; nothing is written, started or stopped from here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from oelm.errors import BadRecord, OelmError, UsageError
from oelm.record.store import LOG
from oelm.report.server.curves import Curves
from oelm.report.server.folder import Folder
from oelm.report.server.guard import LOCAL, REPORT_POLICY, Guard
from oelm.report.server.index import REPORTS, Index, Run
from oelm.report.server.views import (
    REPORT_FORMATS,
    RUN_FILES,
    compare_view,
    jsonable,
    log_view,
    overview,
    run_view,
)
from oelm.report.server.words import WORDS
from oelm.report.wording import HTML_LANGUAGES, Language, wording

HERE = Path(__file__).parent
PAGES = {"/": "overview", "/run": "run", "/compare": "compare"}
TYPES = {".html": "text/html", ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json"}


class Answer(Response):
    """Plain data as JSON, in ASCII: a name with broken bytes in it breaks no answer."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Write the data."""
        return json.dumps(jsonable(content), separators=(",", ":"), allow_nan=False).encode()


class ResultsPage:
    """The routes, over one folder of runs. Endpoints are plain functions: Starlette runs them in threads."""

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root)
        self.index = Index(self.folder)
        self.curves = Curves(self.folder)
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip

    def routes(self) -> list[Route | Mount]:
        """Return all addresses."""
        api: dict[str, Callable[[Request], Any]] = {
            "overview": self.overview, "run": self.run, "compare": self.compare, "curve": self.curve, "log": self.log,
        }  # fmt: skip
        return [
            *(Route(path, self.page, name=name) for path, name in PAGES.items()),
            *(Route(f"/api/{name}", _answering(function)) for name, function in api.items()),
            Route("/files/{path:path}", self.file),
            Mount("/static", StaticFiles(directory=HERE / "static")),
        ]

    def page(self, request: Request) -> Response:
        """Set a page in the language asked for: by ?lang=, else by the browser."""
        wish = request.query_params.get("lang") or _preferred(request)
        try:
            say = wording(wish, WORDS)
        except OelmError as error:
            raise HTTPException(400, str(error)) from error
        name = PAGES[request.url.path]
        words = {key: sentences[("en", "zh").index(wish)] for key, sentences in WORDS.items()}
        html = self._templates.get_template(f"{name}.html.j2").render(
            page=name, say=say, words=words, lang=HTML_LANGUAGES[wish], folder=str(self.folder.root),
            other=str(request.url.include_query_params(lang="en" if wish == "zh" else "zh").query),
            home=f"?lang={wish}" if "lang" in request.query_params else "",
        )  # fmt: skip
        return HTMLResponse(html, headers={"Vary": "Accept-Language"})

    def overview(self, request: Request) -> Any:
        """Answer what has changed since a revision."""
        since = _number(request, "since")
        return overview(self.index, request.query_params.get("epoch", ""), int(since or 0))

    def run(self, request: Request) -> Any:
        """Answer what is known of a run."""
        return run_view(self.index, self._run(request))

    def compare(self, request: Request) -> Any:
        """Answer how some runs differ."""
        keys = list(dict.fromkeys(request.query_params.getlist("run")))
        return compare_view([self._named(key) for key in keys])

    def curve(self, request: Request) -> Any:
        """Answer a curve: what is new in it, or a part of it in finer grain."""
        directory = self._run(request).seen.directory
        first, last = _number(request, "first"), _number(request, "last")
        if first is not None and last is not None:
            return self.curves.between(directory, first, last)
        return self.curves.after(directory, request.query_params.get("cursor", ""))

    def log(self, request: Request) -> Any:
        """Answer the end of a log, or what has been added to it."""
        offset = _number(request, "offset")
        name = request.query_params.get("name", LOG)
        directory = self._run(request).seen.directory
        return log_view(self.folder, directory, name, None if offset is None else int(offset))

    def file(self, request: Request) -> Response:
        """Serve a file by its place: one of the known names, of a run or a study that the index knows."""
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
            raise HTTPException(404, "There is no such file of a run or a report.")
        try:
            file = self.folder.open(path)
        except (OSError, ValueError, BadRecord) as error:  # ValueError: a name that no file can have
            raise HTTPException(404, f"{name} cannot be read: {error}") from error
        with file:
            data = file.read()
        kind = TYPES.get(path.suffix, "text/plain")
        return Response(data, media_type=kind, headers={"Content-Security-Policy": REPORT_POLICY})

    def _run(self, request: Request) -> Run:
        return self._named(request.query_params.get("run", ""))

    def _named(self, key: str) -> Run:
        run = self.index.find(key)
        if run is None:
            raise HTTPException(404, f"There is no run {key!r} below {self.folder.root}.")
        return run


def application(root: Path, host: str = LOCAL[0]) -> ASGIApp:
    """Return the results page of a folder, for a server that listens on `host`."""
    return Guard(Starlette(routes=ResultsPage(root).routes(), exception_handlers={HTTPException: _in_words}), host)


def _answering(function: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        try:
            return Answer(function(request))
        except HTTPException as error:
            return Answer({"error": error.detail}, error.status_code)
        except UsageError as error:
            return Answer({"error": str(error)}, 400)
        except (OelmError, OSError) as error:
            return Answer({"error": str(error)}, 404)

    return endpoint


def _in_words(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (for the type checker: it is registered for these alone)
    return Response(f"{error.detail}\n", error.status_code, media_type="text/plain")


def _preferred(request: Request) -> Language:
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
        raise HTTPException(400, f"{name} is to be a number, and is {text!r}.")
    return value
