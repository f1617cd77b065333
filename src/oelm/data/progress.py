"""How a long preparation tells somebody how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Whoever watches: a bar on a terminal, lines in a log, nobody."""

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Announce a task of `total` units, if that is known, of which some may be done already."""
        ...

    def update(self, done: int, tokens: int) -> None:
        """Tell how many units are done in all, and how many tokens were made since the task began."""
        ...

    def end(self) -> None:
        """Tell that the task is over, or was given up."""
        ...

    def note(self, message: str) -> None:
        """Say something worth a line."""
        ...


class Silent:
    """Nobody watches."""

    def begin(self, task: str, total: int | None, done: int = 0) -> None:
        """Say nothing."""

    def update(self, done: int, tokens: int) -> None:
        """Say nothing."""

    def end(self) -> None:
        """Say nothing."""

    def note(self, message: str) -> None:
        """Say nothing."""
