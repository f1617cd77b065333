"""`oelm serve`: the results page."""

from __future__ import annotations

import errno
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from oelm.errors import UsageError


@dataclass
class Arguments:
    """Show the studies and runs of a folder in a browser, live while they train. Ctrl-C ends it; runs go on.

    Nothing can be changed from the page. By default it is for this machine alone; from another one, rather than
    --host, take a tunnel: ssh -L 8765:localhost:8765 this-machine.
    """

    folder: tyro.conf.Positional[Path] = Path("runs")
    """The folder that holds the runs: the one given to `oelm run --out`, or any folder in it."""
    port: int = 8765
    """Where to listen; 0 takes any free port."""
    host: str = "127.0.0.1"
    """The address to listen on. Anything but this machine's own lets everybody who reaches it read the runs."""
    open_: Annotated[bool, tyro.conf.arg(name="open")] = False
    """Open the page in a browser."""


def main(argv: list[str]) -> int:
    """Parse, listen, serve until Ctrl-C."""
    arguments = tyro.cli(Arguments, args=argv, prog="oelm serve")
    if not arguments.folder.is_dir():
        raise UsageError(
            f"there is no folder {arguments.folder} to show. Give the one that holds your runs, or make some with "
            "`oelm run studies/demo.py`."
        )
    listening = listen(arguments.host, arguments.port)

    import uvicorn

    from oelm.record.archive import opened
    from oelm.report.server.app import application
    from oelm.report.server.guard import LOCAL

    address = url(listening, arguments.host)
    if arguments.host not in LOCAL:
        print(
            f"oelm: warning: listening on {arguments.host}: whoever reaches this machine can read these runs, their "
            "logs and their commands. There is no password.",
            file=sys.stderr,
        )
    print(f"results of {arguments.folder}: {address}   (Ctrl-C ends it)", flush=True)
    if arguments.open_:
        import webbrowser

        webbrowser.open(address)  # the socket listens already, so the browser waits for the first answer
    with opened(arguments.folder) as folder:
        config = uvicorn.Config(
            application(folder, arguments.host), log_level="warning", access_log=False, server_header=False,
            lifespan="off", ws="none", timeout_graceful_shutdown=2,
        )  # fmt: skip
        try:
            uvicorn.Server(config).run(sockets=[listening])
        except KeyboardInterrupt:  # uvicorn has let the last answers out, and passes the signal on
            print("\nended.")
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or say what is in the way and what would do."""
    if not 0 <= port < 1 << 16:  # the C library would take the remainder
        raise UsageError(f"cannot listen on port {port}: ports go from 1 to 65535, and 0 takes any free one.")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"cannot listen on {host!r}, port {port}: {error}. Take 127.0.0.1 or an address of this machine."
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
                f"port {port} is taken, perhaps by another `oelm serve`. Try --port {port + 1}, or --port 0 for any "
                "free one."
            ) from error
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}. Take 127.0.0.1 or an address of this machine, "
            "and a port above 1023."
        ) from error
    return listening


def url(listening: socket.socket, host: str) -> str:
    """Return the address to open: a wildcard is no address, so it becomes this machine's name."""
    from oelm.report.server.guard import EVERYWHERE

    name = socket.gethostname() if host in EVERYWHERE else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}/"
