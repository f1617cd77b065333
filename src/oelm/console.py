"""The console that every command prints with: text from files is shown as it is and cannot act on the terminal.

Names, questions, logs and generated text come from files that other people may have written. Rich would read `[/x]` in
them as markup, and a terminal would obey escape sequences. So markup is off, and control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console as RichConsole
from rich.segment import Segment
from rich.text import Text

from oelm.files import escape_controls

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType
    from rich.status import Status


class Console(RichConsole):
    """A Rich console without markup, emoji codes and highlighting. Control characters of any text are escaped."""

    def __init__(
        self,
        *,
        file: IO[str] | None = None,
        stderr: bool = False,
        quiet: bool = False,
        width: int | None = None,
        soft_wrap: bool = False,
    ) -> None:
        super().__init__(
            file=file, stderr=stderr, quiet=quiet, width=width, soft_wrap=soft_wrap,
            markup=False, emoji=False, highlight=False,
        )  # fmt: skip

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does, and escape the text of every segment that is not Rich's own control code."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_controls(segment.text), segment.style)

    def status(self, status: RenderableType, **options: Any) -> Status:
        """Show a spinner. Rich would read markup in its text, whatever the console says."""
        return super().status(Text(status) if isinstance(status, str) else status, **options)
