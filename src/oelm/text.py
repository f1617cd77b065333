"""Control characters in text from files: names must not have them, and nothing that is printed lets them through."""

from __future__ import annotations

import sys
import unicodedata

_HARMFUL = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that move the cursor, change the direction of text or cannot be encoded."""
_HARMLESS = frozenset("\n\t\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}\N{SOFT HYPHEN}")


def has_controls(text: str) -> bool:
    """Whether a text has characters that a name must not have: control characters, line breaks, lone surrogates."""
    return not text.isprintable() and any(unicodedata.category(each) in _HARMFUL for each in text)


def escape_controls(text: str) -> str:
    r"""Replace control characters by what Python would write for them: ESC becomes `\x1b`. Lines stay lines."""
    if text.isprintable():
        return text
    return "".join(
        each.encode("unicode_escape").decode() if each not in _HARMLESS and has_controls(each) else each
        for each in text
    )


def say(text: str, *, end: str = "\n", stderr: bool = False) -> None:
    """Print text that comes from a file or names one: with control characters escaped, and at once."""
    print(escape_controls(text), end=end, flush=True, file=sys.stderr if stderr else sys.stdout)
