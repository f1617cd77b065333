"""What every request must pass and every answer carries.

A page on the web may make a reader's browser ask this server. Two things keep it out: the Host header must be a
name of this machine (a name that was rebound to 127.0.0.1 is not), and no answer allows another origin to read it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
"""Of files from the runs folder: they may have a look of their own, and run nothing."""
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class Guard:
    """Stand in front of an application: only reading, only by a name of this machine."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.names = names_for(host)
        self.any_address = host in EVERYWHERE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
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
            return PlainTextResponse("This page is for reading: GET and HEAD only.\n", 405, {"Allow": "GET, HEAD"})
        name = host_of(Headers(scope=scope).get("host", ""))
        if name in self.names or (self.any_address and is_address(name)):
            return None
        return PlainTextResponse(
            f"This server does not answer to the name {quote(name)!r}. Open it by the address it printed, or start "
            "it with --host and a name or address of this machine.\n",
            421,
        )


def names_for(host: str) -> frozenset[str]:
    """Return the names that a server on `host` answers to."""
    own: Iterable[str] = (socket.gethostname(), socket.getfqdn()) if host in EVERYWHERE else (host,)
    return frozenset(name.lower() for name in (*LOCAL, *own))


def host_of(header: str) -> str:
    """Return the name in a Host header, without the port and without the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].rstrip(".").lower()


def is_address(name: str) -> bool:
    """Whether a name is a number: such a name cannot be rebound."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
