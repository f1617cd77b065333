"""Ctrl-C, SIGTERM and a closed terminal as a wish to stop, granted after the step in hand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopWish:
    """Whether somebody asked the run to stop."""

    def __init__(self) -> None:
        self.asked: str | None = None

    def __bool__(self) -> bool:
        return self.asked is not None


@contextmanager
def listening() -> Iterator[StopWish]:
    """Turn SIGINT, SIGTERM or SIGHUP into a wish; Ctrl-C after that interrupts at once.

    SIGTERM and SIGHUP may be repeated: machines (Slurm, a runner whose terminal has sent Ctrl-C to all) say the same
    thing twice, and have SIGKILL for when they lose patience. What is ignored stays so: under nohup a closed terminal
    is no reason to stop.
    """
    wish = StopWish()
    if threading.current_thread() is not threading.main_thread():  # Python delivers signals to the main thread only
        yield wish
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if wish and number == signal.SIGINT:
            raise KeyboardInterrupt
        wish.asked = wish.asked or signal.Signals(number).name

    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
