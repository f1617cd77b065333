"""Ask the runs of a study to stop, wherever they are at work."""

from __future__ import annotations

import os
import signal

from oelm.runner.queue import Board, Entry


def cancel(board: Board) -> list[str]:
    """Ask every run at work to save itself; return in words what was done about each."""
    return [_asked(entry) for entry in board.entries if entry.state == "running"]


def _asked(entry: Entry) -> str:
    claim = entry.claim
    if claim is None or not claim.is_here:
        where = claim.host if claim else "elsewhere"
        return f"{entry.name}: at work on {where}, out of reach; call oelm cancel there."
    try:
        os.kill(claim.pid, signal.SIGTERM)
    except ProcessLookupError:
        return f"{entry.name}: has just ended by itself."
    except PermissionError:
        return f"{entry.name}: process {claim.pid} is another user's; ask them."
    return f"{entry.name}: asked process {claim.pid} to save itself and stop."
