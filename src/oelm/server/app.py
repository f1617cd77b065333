"""The results page: its addresses, who may read them, and the data that they answer with.

It only reads: nothing is written, started or stopped. The data are plain values from the index and from files with
known names.
"""

from __future__ import annotations

import codecs
import ipaddress
import itertools
import json
import math
import os
import secrets
import socket
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from oelm.analysis.evidence import bytes_of, format_value, list_meaning
from oelm.errors import BadRecord, OelmError, UsageError
from oelm.files import parse_json
from oelm.record.folder import (
    ATTENTION,
    ERRORS,
    LOG,
    METRICS,
    RECORD,
    SAMPLES,
    TIMING,
    AttentionRecord,
    parse_line,
    parse_lines,
)
from oelm.record.record import MetricRecord, RunRecord, TimingRecord
from oelm.report.wording import HTML_LANGUAGES, Language, read_messages, wording
from oelm.server.index import REPORTS, Folder, FolderIndex, Run
from oelm.spec import explain_validation

# Who may read.
#
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


# The addresses.

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


# The data of a page.

LOGS = (LOG, ERRORS)
RUN_FILES = (RECORD, METRICS, *LOGS, SAMPLES, ATTENTION, TIMING)
REPORT_FORMATS = (".html", ".md", ".tex", ".csv", ".svg", ".png")
LOG_BYTES = 1 << 16
"""Most bytes of a log in one response."""
FILE_BYTES = 1 << 20
"""Most bytes of any other file that are shown."""
MOST_COMPARED = 40
"""Most runs in one comparison; more lines cannot be distinguished."""


def overview(index: FolderIndex, epoch: str, since: int) -> dict[str, Any]:
    """Return the studies, and the rows of runs that are newer than a revision."""
    index.look()
    changes = index.changes(epoch, since)
    states: dict[str, dict[str, int]] = {}
    for run in list(index.runs.values()):
        counts = states.setdefault(run.row["study"], {})
        counts[run.row["status"]] = counts.get(run.row["status"], 0) + 1
    studies = [
        {
            "id": key,
            "name": key or index.folder.root.name,
            "question": found.study.question if found.study else None,
            "reason": found.reason,
            "stage": found.stage,
            "states": states.get(key, {}),
            "done": found.done,
            "expected": sum(states.get(key, {}).values()) if found.declared is None else len(found.declared),
            "reports": found.reports,
        }
        for key, found in sorted(index.studies.items())
    ]
    return {
        "epoch": index.epoch, "revision": changes.revision, "now": time.time(), "whole": changes.whole,
        "studies": studies, "runs": changes.rows, "gone": changes.gone, "problems": index.problems,
    }  # fmt: skip


def run_view(index: FolderIndex, run: Run) -> dict[str, Any]:
    """Return all data of one run except its curve and its logs."""
    directory = run.seen.directory
    problems: list[str] = []
    return {
        "now": time.time(),
        "row": run.row,
        "folder": str(directory),
        "record": _describe_record(run.record) if run.record else None,
        "spec": {field: format_value(value) for field, value in _fields(run.record).items()} if run.record else {},
        "result": list_numbers(run),
        "attention": _attention(index.folder, directory, problems),
        "timing": _timing(index.folder, directory / TIMING, problems),
        "samples": _text(index.folder, directory / SAMPLES, problems),
        "files": [name for name in RUN_FILES if (directory / name).is_file()],
        "same_seed": _same_seed(index, run),
        "reports": found.reports if (found := index.studies.get(run.row["study"])) else (),
        "problems": problems,
    }


def compare_view(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the rows of some runs, their numbers, and the fields in which they differ."""
    if len(runs) > MOST_COMPARED:
        raise UsageError(f"{len(runs)} runs were chosen, but at most {MOST_COMPARED} can be compared. Choose fewer.")
    readable = [run.record for run in runs if run.record]
    fields = [_fields(record) for record in readable]
    names = dict.fromkeys(name for found in fields for name in found)
    differing = [name for name in names if len({format_value(found.get(name)) for found in fields}) > 1]
    return {
        "now": time.time(),
        "rows": [run.row for run in runs],
        "results": [list_numbers(run) for run in runs],
        "fields": {
            name: [format_value(_fields(run.record).get(name)) if run.record else None for run in runs]
            for name in differing
        },
    }


def list_numbers(run: Run) -> dict[str, float]:
    """Return every number of a run's result by its name, including those of later versions.

    Numbers of the test split are left out for a run that tunes: they may not influence a choice.
    """
    plain = run.record.result.model_dump() if run.record and run.record.result else {}
    hidden = "test_" if run.row.get("tunes") else "\0"
    return {
        name: value for name, value in plain.items() if isinstance(value, int | float) and not name.startswith(hidden)
    }


def log_view(folder: Folder, directory: Path, name: str, offset: int | None) -> dict[str, Any]:
    """Return a log from `offset` on, or its end, starting with a complete line."""
    if name not in LOGS:
        raise UsageError(f"there is no log named {name!r}; there are {' and '.join(LOGS)}.")
    try:
        file = folder.open(directory / name)
    except FileNotFoundError:
        return {"text": "", "start": 0, "end": 0, "size": 0, "restart": True}
    with file:
        size = file.seek(0, 2)
        restart = offset is None or not 0 <= offset <= size
        start = max(0, size - LOG_BYTES) if offset is None or restart else offset
        file.seek(start)
        data = file.read(LOG_BYTES)
    if restart and start:  # start with a complete line
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    end = start + len(data) - len(decoder.getstate()[0])  # an incomplete character is part of the next response
    return {"text": text, "start": start, "end": end, "size": size, "restart": restart}


def to_json_data(value: Any) -> Any:
    """Convert data for JSON. NaN and infinities become the text that Number() of JavaScript reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): to_json_data(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_data(inner) for inner in value]
    return value


def _fields(record: RunRecord | None) -> dict[str, Any]:
    """Return dotted field -> value for everything that distinguishes runs."""
    if record is None:
        return {}
    environment = record.environment
    return {**list_meaning(record.spec)} | {
        **bytes_of(record.spec),
        "numerics": record.numerics,
        "environment.oelm": environment.oelm,
        "environment.torch": environment.torch,
        "environment.device": environment.device,
        "environment.commit": environment.commit,
        "environment.dirty": environment.dirty,
    }


def _describe_record(record: RunRecord) -> dict[str, Any]:
    plain = record.model_dump(exclude={"spec", "result"})
    plain["frozen_hashes"] = len(record.frozen_hashes)
    return plain


def _same_seed(index: FolderIndex, run: Run) -> list[str]:
    """Return the runs of the study with the same seed, which are paired with this run."""
    row = run.row
    return [
        key
        for key, other in list(index.runs.items())
        if (other.row["study"], other.row.get("seed")) == (row["study"], row.get("seed", -1))
    ][:MOST_COMPARED]


def _text(folder: Folder, path: Path, problems: list[str]) -> str | None:
    try:
        return folder.read(path, FILE_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return None
    except (OSError, BadRecord) as error:
        problems.append(str(error))
        return None


def _timing(folder: Folder, path: Path, problems: list[str]) -> dict[str, Any] | None:
    text = _text(folder, path, problems)
    if text is None:
        return None
    try:
        return TimingRecord.model_validate(parse_json(text)).model_dump()
    except ValidationError as error:
        problems.append(f"{path.name} does not hold step times ({explain_validation(error)}).")
    except ValueError as error:
        problems.append(f"{path.name} is not valid JSON ({error}).")
    return None


def _attention(folder: Folder, directory: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the last statistics of the attention heads, by layer and head."""
    seen, damaged = parse_lines(_text(folder, directory / ATTENTION, problems) or "", AttentionRecord, ATTENTION)
    problems += damaged[:MOST_PROBLEMS]
    return {"entropy": seen[-1].entropy, "distance": seen[-1].distance} if seen else None


# Curves. Each file is read on from the last position, and thinned to the resolution of a screen.

KINDS = ("train", "val")
OTHERS = ("accuracy", "learning_rate", "tokens_per_second", "processor_seconds")
"""What a point may have in addition to its loss."""
SHOWN_POINTS = 800
"""Most points of a line in one response; a screen has hardly more columns."""
CHUNK = 1 << 24
"""Most bytes that are read for one response; a longer file needs several."""
KEPT = 200
"""Curves held in memory."""
WITNESS = 64
"""Bytes before the last position. If they have changed, the file was rewritten."""
MOST_PROBLEMS = 5
"""Most invalid lines that are quoted; the others are counted."""


@dataclass
class LossLine:
    """One kind of loss along training, with what was measured next to it, as columns."""

    step: array[float] = field(default_factory=lambda: array("d"))
    loss: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    others: dict[str, array[float]] = field(default_factory=lambda: {name: array("d") for name in OTHERS})
    """Learning rate and the like; NaN where a point has none."""

    def add(self, metric: MetricRecord) -> None:
        """Append a point."""
        self.step.append(metric.step)
        self.loss.append(metric.loss)
        self.seconds.append(metric.seconds)
        for name, values in self.others.items():
            value = getattr(metric, name)
            values.append(math.nan if value is None else value)

    def chosen(self, places: Iterable[int]) -> dict[str, list[Any]]:
        """Return the points at these places."""
        places = list(places)
        return {
            "step": [int(self.step[place]) for place in places],
            "loss": [self.loss[place] for place in places],
            "seconds": [round(self.seconds[place], 3) for place in places],
            **{
                name: [values[place] for place in places]
                for name, values in self.others.items()
                if not all(math.isnan(values[place]) for place in places)
            },
        }


@dataclass
class MetricsFile:
    """The part of a metrics.jsonl that has been read."""

    generation: int
    offset: int = 0
    witness: bytes = b""
    number: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)
    lines: dict[str, LossLine] = field(default_factory=lambda: {kind: LossLine() for kind in KINDS})

    def take(self, data: bytes) -> None:
        """Parse complete lines. Text after the last line break is not complete yet."""
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.split(b"\n")[:-1]:
            self.number += 1
            try:
                metric = parse_line(line.decode(), MetricRecord)
            except ValueError:
                self.bad += 1
                if self.bad <= MOST_PROBLEMS:
                    shown = line[:80].decode(errors="replace")
                    self.problems.append(f"{METRICS}, line {self.number}, is not a metric: {shown!r}")
            else:
                self.lines[metric.kind].add(metric)
        self.offset += len(whole)
        self.witness = (self.witness + whole)[-WITNESS:]


class MetricsCache:
    """The curves of the runs in a folder. Each file is read only once."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._lock = Lock()
        self._known: OrderedDict[Path, MetricsFile] = OrderedDict()
        # Random, so that a page does not use a cursor of an earlier server.
        self._generations = itertools.count(secrets.randbelow(10**9))

    def after(self, directory: Path, cursor: str = "") -> dict[str, Any]:
        """Return the points since `cursor`, or the whole curve if the cursor belongs to another file."""
        with self._lock:
            curve, more = self._read(directory)
            seen = _places(cursor, curve)
            answer: dict[str, Any] = {
                kind: line.chosen(thin(line.loss, range(start, len(line.loss))))
                for (kind, line), start in zip(curve.lines.items(), seen or (0, 0), strict=True)
            }
            counts = ".".join(str(len(line.loss)) for line in curve.lines.values())
            more_bad = curve.bad - len(curve.problems)
            problems = [*curve.problems, *([f"... and {more_bad} more such lines"] if more_bad else [])]
            return answer | {
                "cursor": f"{curve.generation}.{counts}", "whole": seen is None, "more": more, "problems": problems,
            }  # fmt: skip

    def between(self, directory: Path, first: float, last: float) -> dict[str, Any]:
        """Return the part of a curve between two steps, with one more point on each side."""
        with self._lock:
            curve, _ = self._read(directory)
            return {
                kind: line.chosen(thin(line.loss, _within(line, first, last))) for kind, line in curve.lines.items()
            }

    def _read(self, directory: Path) -> tuple[MetricsFile, bool]:
        curve = self._known.pop(directory, None) or MetricsFile(next(self._generations))
        try:
            file = self.folder.open(directory / METRICS)
        except FileNotFoundError:
            curve, more = MetricsFile(next(self._generations)), False
        else:
            with file:
                file.seek(curve.offset - len(curve.witness))
                if file.read(len(curve.witness)) != curve.witness:
                    curve = MetricsFile(next(self._generations))
                    file.seek(0)
                data = file.read(CHUNK)
                more = len(data) == CHUNK and b"\n" in data
            curve.take(data)
        self._known[directory] = curve
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return curve, more


def _places(cursor: str, curve: MetricsFile) -> tuple[int, int] | None:
    """Return how many points of each kind a cursor covers, or None if it belongs to another curve."""
    words = cursor.split(".")
    if len(words) != 1 + len(KINDS) or not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words):
        return None
    generation, train, val = map(int, words)
    known = train <= len(curve.lines["train"].loss) and val <= len(curve.lines["val"].loss)
    return (train, val) if generation == curve.generation and known else None


def _within(line: LossLine, first: float, last: float) -> list[int]:
    inside = [place for place, step in enumerate(line.step) if first <= step <= last]
    if not inside:
        return inside
    before, behind = range(max(0, inside[0] - 1), inside[0]), range(inside[-1] + 1, min(inside[-1] + 2, len(line.step)))
    return [*before, *inside, *behind]


def thin(values: Sequence[float], places: Sequence[int], limit: int = SHOWN_POINTS) -> Sequence[int]:
    """Choose at most `limit` places so that the line looks the same.

    Keep the first, the lowest, the highest and the first non-finite value of each of `limit / 4` stretches, so that no
    peak and no divergence is lost.
    """
    if len(places) <= limit:
        return places
    chosen: set[int] = {places[0], places[-1]}
    stretches = max(1, limit // 4 - 1)
    for number in range(stretches):
        part = places[len(places) * number // stretches : len(places) * (number + 1) // stretches]
        finite = [place for place in part if math.isfinite(values[place])]
        chosen.add(part[0])
        if finite:
            chosen |= {min(finite, key=values.__getitem__), max(finite, key=values.__getitem__)}
        if len(finite) < len(part):
            chosen.add(next(place for place in part if not math.isfinite(values[place])))
    return sorted(chosen)
