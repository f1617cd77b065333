r"""Where a text may be cut into documents without changing its tokens.

GPT-2's pre-tokeniser gives the last character of a run of white space to what follows it, unless nothing
follows: of `"one.\n\ntwo"` it makes `one` `.` `\n` `\n` `two`, but of `"one.\n\n"` it makes `one` `.` `\n\n`.
A cut at the end of such a run therefore changes the tokens. Three places do not:

- before the last character of a run of white space that something other than end-of-text follows,
- after a run of one character,
- on either side of `<|endoftext|>`, which no other token reaches across.

Every cut here is one of these, so the tokens of a file's documents, one after another, are the tokens of the
file (tested for all rules on random and on real texts). Positions are of bytes, which makes them the places
where reading may be taken up again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from oelm.spec.data import END_OF_TEXT

Rule = Literal["stories", "articles", "paragraphs", "lines", "files", "rows"]

SEPARATOR = END_OF_TEXT.encode()
MAX_PIECE = 1 << 20
"""A longer document is read, and encoded, in pieces of at most this many bytes."""
LOOKAHEAD = 1 << 16
"""How far behind a cut one may have to look to be certain of it."""

# Exactly the characters of Unicode's White_Space, which is what \s means to both tokenizers.
_SPACE = rb"(?:[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
_SPACES = re.compile(_SPACE + rb"+")
_STORY = re.compile(re.escape(SEPARATOR) + _SPACE + rb"*")
_LINE = re.compile(rb"\n" + _SPACE + rb"*")
_PARAGRAPH = re.compile(rb"\n[^\S\n]*\n" + _SPACE + rb"*")
# A blank line on either side tells a title from a formula or a legend that was broken before its " = ":
# with both, WikiText-103's validation and test splits have the 60 articles each that its authors count.
_TITLE = re.compile(rb"(?<=\n) ?\n(?= = [^=\n][^\n]* = ?\n ?\n)")
_FIRST_TITLE = re.compile(rb"\s* = [^=\n][^\n]* = ?\n ?\n")


def cuts(rule: Rule, text: bytes, final: bool) -> Iterator[int]:
    """Yield where in `text`, which begins with a document, further documents begin.

    Unless `final`, more text may follow; places that depend on it are left for the next call. What is blank
    never becomes a document: at the beginning it joins the first, at the end the last.
    """
    if rule == "articles":
        yield from (match.end() for match in _TITLE.finditer(text) if not _blank(text, 0, match.start()))
    elif rule in {"stories", "lines", "paragraphs"}:
        previous = 0
        pattern = {"stories": _STORY, "lines": _LINE, "paragraphs": _PARAGRAPH}[rule]
        for match in pattern.finditer(text):
            if not _certain(text, match.end(), final):
                return
            if text.startswith(SEPARATOR, match.end()) or _blank(text, previous, match.start()):
                continue
            previous = match.start() + len(SEPARATOR) if rule == "stories" else _cut_in(text, match)
            yield previous


def piece_end(text: bytes, start: int) -> int:
    """Return where to cut a document that is longer than `MAX_PIECE` bytes from `start` on.

    Depends on no byte beyond `start + MAX_PIECE`. A million bytes without white space are not text: they are
    cut between any two characters, the one case in which a cut may change the tokens around it.
    """
    end = start + MAX_PIECE
    for low in (end - LOOKAHEAD, start + 1):
        best = 0
        for match in _SPACES.finditer(text, low, end):
            if match.end() + len(SEPARATOR) <= end and not text.startswith(SEPARATOR, match.end()):
                best = _last_character(text, match.end())
        if best > start:
            return best
    inside = text.find(SEPARATOR, end - len(SEPARATOR) + 1, end + len(SEPARATOR) - 1)
    if start < inside < end:
        return inside
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return end


def derive_rule(sample: bytes) -> Rule:
    """Tell from the beginning of a text file what its documents are."""
    if SEPARATOR in sample:
        return "stories"
    if _FIRST_TITLE.match(sample) or _TITLE.search(sample):
        return "articles"
    return "paragraphs" if _PARAGRAPH.search(sample.strip()) else "lines"


def lacks_end(text: bytes) -> bool:
    """Tell whether a document must be given the end-of-text it does not have."""
    return not text.endswith(SEPARATOR) and not text.rstrip().endswith(SEPARATOR)


def is_title(line: str) -> bool:
    """Tell whether a line of WikiText has the form of a title; the lines around it decide."""
    return line.startswith(" = ") and not line.startswith(" = =") and line.rstrip().endswith(" =")


def _certain(text: bytes, end: int, final: bool) -> bool:
    """Tell whether what follows a run of white space is there, and known not to be end-of-text."""
    return end < len(text) and (final or end + len(SEPARATOR) <= len(text))


def _blank(text: bytes, start: int, end: int) -> bool:
    return start == end or text[start:end].isspace()


def _cut_in(text: bytes, match: re.Match[bytes]) -> int:
    """Return where to cut a run of white space; the match is the part of it from a newline on."""
    single = match.end() - match.start() == 1
    before = text[max(0, match.start() - 3) : match.start()].decode(errors="ignore")[-1:]
    return match.end() if single and not before.isspace() else _last_character(text, match.end())


def _last_character(text: bytes, end: int) -> int:
    end -= 1
    while text[end] & 0xC0 == 0x80:
        end -= 1
    return end
