"""Watch a study: `oelm status`, `oelm logs` and `oelm cancel`; `oelm serve` and `oelm note` in a browser."""

from __future__ import annotations

import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from oelm.cli import say
from oelm.cli.terminal import parse
from oelm.errors import UsageError
from oelm.record.folder import ERRORS, LOG, RECORD, SPEC
from oelm.record.record import refuse_link
from oelm.spec.study import load_study


@dataclass
class StatusArguments:
    """Show the state of every run of a study: done, running (step, loss, time left), queued, waiting, failed.

    The state is read from the run folders, so this also works while the study runs, and over ssh. For runs that were
    submitted to Slurm, squeue is called once for all of them.

      oelm status studies/demo.py --watch
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares the study."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    runs: Path = Path("runs")
    """Folder with the runs of studies: the --out of `oelm run`."""
    watch: bool = False
    """Update the table until every run has ended. Ctrl-C stops watching, not the runs."""
    json: bool = False
    """Print the states as JSON."""


def status_command(argv: list[str]) -> int:
    """Show the state of a study's runs."""
    arguments = parse(StatusArguments, argv, "oelm status")
    study = load_study(arguments.study, arguments.scale)

    from rich.console import Group
    from rich.live import Live

    from oelm.console import Console
    from oelm.runs.board import ASK_SECONDS, Board
    from oelm.runs.display import as_json, explain_failure, render_board

    root = arguments.runs / study.name
    board = Board(study, root)
    if arguments.json:
        print(as_json(board))
        return 0

    def draw(board: Board) -> Group:
        silent = board.slurm.trouble
        unknown = [f"The state of queued runs is unknown. {silent}"] if silent else []
        failed = [
            f"{entry.name}: {explain_failure(entry)}"
            for entry in board.entries
            if entry.state in ("failed", "diverged", "interrupted") and explain_failure(entry)
        ]
        troubles = "\n".join([*failed, *board.troubles, *unknown])
        return Group(f"{study.name}: {board.progress}", render_board(board.entries, every=True), troubles)

    console = Console()
    if not arguments.watch:
        console.print(draw(board))
        return 0
    with Live(draw(board), console=console, refresh_per_second=2, screen=console.is_terminal) as live:
        while board.count("running", "queued", "waiting", "interrupted"):
            time.sleep(ASK_SECONDS if any(entry.job for entry in board.entries) else 1.0)
            board = Board(study, root)
            live.update(draw(board))
    console.print(draw(board))
    return 0


@dataclass
class CancelArguments:
    """Ask running runs to save a checkpoint and stop. `oelm run` continues them later.

    Runs on this machine get a signal, runs on a cluster are asked through Slurm. Queued jobs are withdrawn, and
    runners do not start the cancelled runs.

      oelm cancel studies/demo.py --only oelm-freeze
    """

    study: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
    """Python file that declares the study."""
    scale: str | None = None
    """Name of one of the file's `scales`. By default its `study`."""
    only: tuple[str, ...] = ()
    """Cancel only these runs: ids, arms, fingerprints, or patterns of them. By default all."""
    runs: Path = Path("runs")
    """Folder with the runs of studies: the --out of `oelm run`."""


def cancel_command(argv: list[str]) -> int:
    """Ask the runs of a study to stop and print which were asked."""
    arguments = parse(CancelArguments, argv, "oelm cancel")
    study = load_study(arguments.study, arguments.scale)

    from oelm.runs.board import Board, cancel

    board = Board(study, arguments.runs / study.name, only=arguments.only)
    answers = cancel(board)
    for answer in answers:
        say(answer)
    if not answers:
        waits = board.count("waiting", "interrupted", "failed")
        print(f"No run of this study is running{', and waiting runners will not start more of them' if waits else ''}.")
    return 1 if board.slurm.trouble else 0


@dataclass
class LogsArguments:
    """Print the log of a run. With --follow, continue until the run ends.

    For example:

      oelm logs baseline-seed0 --follow
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, or a part of its name or fingerprint that no other run in --runs has."""
    runs: Path = Path("runs")
    """Folder to search."""
    follow: bool = False
    """Continue printing while the run is running."""
    errors: bool = False
    """Print what the run wrote to standard error instead."""


def logs_command(argv: list[str]) -> int:
    """Print the log of a run."""
    arguments = parse(LogsArguments, argv, "oelm logs")

    from oelm.cli.archive import choose_run
    from oelm.runs.lock import read_holder

    directory = Path(arguments.run)
    if not directory.is_dir():
        files = (path for name in (SPEC, RECORD) for path in arguments.runs.glob(f"**/{name}"))
        folders = sorted({path.parent for path in files})
        directory = choose_run(arguments.run, [(folder.name, folder) for folder in folders], [arguments.runs])
    path = directory / (ERRORS if arguments.errors else LOG)
    refuse_link(path)
    if not path.is_file():
        raise UsageError(f"{directory} has no {path.name} yet. `oelm status` shows the state of the run.")
    with path.open(errors="replace") as file:
        while True:
            # Asked before reading, so that the last lines of a run that ends now are printed.
            live = arguments.follow and read_holder(directory) is not None
            for line in file:
                say(line, end="")
            if not live:
                return 0
            time.sleep(0.3)


@dataclass
class ServeArguments:
    """Show the studies and runs of a folder in a browser, live while they train. Ctrl-C stops the page, not the runs.

    The page is read-only, and by default only this machine reaches it. From another machine use a tunnel rather than
    --host: ssh -L 8765:localhost:8765 this-machine.

      oelm serve runs --open
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder with runs: the --out of `oelm run`, or any folder in it."""
    port: int = 8765
    """Port to listen on. 0 takes any free port."""
    host: str = "127.0.0.1"
    """Address to listen on. With any address but a local one, everyone who reaches this machine can read the runs."""
    open_: Annotated[bool, tyro.conf.arg(name="open")] = False
    """Open the page in a browser."""


def serve_command(argv: list[str]) -> int:
    """Serve the page until Ctrl-C."""
    arguments = parse(ServeArguments, argv, "oelm serve")
    if not arguments.folder.is_dir():
        raise UsageError(
            f"there is no folder {arguments.folder}. Give the folder with your runs, or start some with `oelm demo`."
        )
    listening = listen(arguments.host, arguments.port)

    import uvicorn

    from oelm.record.archive import open_archives
    from oelm.server.app import LOCAL, create_app

    address = address_to_open(listening, arguments.host)
    if arguments.host not in LOCAL:
        say(
            f"oelm: warning: listening on {arguments.host}: everyone who reaches this machine can read these runs, "
            "their logs and their commands. There is no password.",
            stderr=True,
        )
    say(f"results of {arguments.folder}: {address}   (Ctrl-C ends it)")
    if arguments.open_:
        import webbrowser

        webbrowser.open(address)  # the socket already listens, so the browser waits for the first answer
    with open_archives(arguments.folder) as folder:
        config = uvicorn.Config(
            create_app(folder, arguments.host), log_level="warning", access_log=False, server_header=False,
            lifespan="off", ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:  # uvicorn has sent the last answers and passes the signal on
            say("\nended.")
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        UsageError: the port or address cannot be used; the message suggests another.

    """
    if not 0 <= port < 1 << 16:  # the C library would take it modulo 65536
        raise UsageError(f"cannot listen on --port {port}. Ports go from 1 to 65535, and 0 takes any free one.")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"cannot listen on --host {host!r}: {error}. Use 127.0.0.1 or an address of this machine."
        ) from error
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
        listening.listen(128)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {port} is in use, perhaps by another `oelm serve`. Try --port {port + 1}, or --port 0 for any "
                "free one."
            ) from error
        raise UsageError(
            f"cannot listen on --host {host} --port {port}: {error.strerror}. Use 127.0.0.1 or an address of this "
            "machine, and a port above 1023."
        ) from error
    return listening


def address_to_open(listening: socket.socket, host: str) -> str:
    """Return the address to open in a browser. A wildcard host becomes the name of this machine."""
    from oelm.server.app import EVERYWHERE

    name = socket.gethostname() if host in EVERYWHERE else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/"


@dataclass
class NoteArguments:
    """Write a note, tags or a mark into the folder of a run. `oelm serve` shows them, and `tag:NAME` filters by them.

    The results page itself only reads, so that a web page in the same browser can never change a run. No result,
    fingerprint or report depends on notes. Without options the notes are printed.

      oelm note runs/demo/baseline-seed0_1f0c --text "the good one" --tag paper
      oelm note runs/old/* --hide
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folders of runs."""
    text: str | None = None
    """Note that replaces the one before. An empty text removes it."""
    tag: tuple[str, ...] = ()
    """Tags to add."""
    untag: tuple[str, ...] = ()
    """Tags to remove."""
    hide: bool = False
    """Leave the runs out of the results page unless it is asked to show them."""
    unhide: bool = False
    """Show hidden runs again."""


def note_command(argv: list[str]) -> int:
    """Change the notes of some runs, and print them."""
    asked = parse(NoteArguments, argv, "oelm note")

    from oelm.record.folder import RECORD, SPEC, RunFolder

    if asked.hide and asked.unhide:
        raise UsageError("--hide and --unhide contradict each other. Give one of them.")
    if bad := [tag for tag in asked.tag if not tag or any(letter.isspace() for letter in tag)]:
        raise UsageError(f"the tag {bad[0]!r} is empty or has spaces, so no filter could find it. Use one word.")
    strangers = [run for run in asked.runs if not ((run / RECORD).is_file() or (run / SPEC).is_file())]
    if strangers or not asked.runs:
        named = strangers[0] if strangers else "nothing"
        raise UsageError(f"{named} is not the folder of a run. Give folders that contain {RECORD}.")
    for run in asked.runs:
        folder = RunFolder(run)
        before = folder.read_notes()
        kept = [tag for tag in dict.fromkeys((*before.tags, *asked.tag)) if tag not in asked.untag]
        notes = before.model_copy(
            update={
                "text": before.text if asked.text is None else asked.text,
                "tags": tuple(kept),
                "hidden": (before.hidden or asked.hide) and not asked.unhide,
            }
        )
        if notes != before:
            folder.write_notes(notes)
        marks = [*(f"#{tag}" for tag in notes.tags), *(["hidden"] if notes.hidden else [])]
        print(f"{run.name}: {' '.join([*marks, notes.text]).strip() or 'no notes'}")
    return 0
