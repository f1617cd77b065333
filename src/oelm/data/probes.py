"""Probes: texts without meaning that ask for one skill of attention, and say where the answers stand.

A loss on real text says that something is missing, not what. A document here is 128 tokens long, one character each,
the end of text included, so that a model with a context of 128 sees exactly one.

- `recall:N` lists N pairs of a key and its value, then a question mark, then keys again, each with its value behind it.
  The keys come in rounds: every key once, in a new order. To answer, attention must find the key by its content, and
  what stood behind it.
- `copy:D` says D letters, none of them twice, and then, again and again, the letter that stood D before. Attention may
  count back, or find the letter before by its content.

**Why the floor is exact.** Every choice is uniform over known options, and an answer is none, so the probability of a
document is 1 / (n_1 n_2 ...) as it is for the stories.

**What counting alone can do.** A model that knows which tokens have occurred how often, but not where, can still leave
out what this round has answered already. It guesses among the r answers that are left, for r = N, N - 1, ..., and is
right in `guess` of all cases. Attention has to be better than that.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from

from oelm.spec.data import ProbeSpec

LENGTH = 128
"""Tokens of a document, the end of text included."""
VOCAB_SIZE = 257
"""Every byte, and the end of text."""
KEYS = string.ascii_letters
VALUES = string.digits + "!#$%&()*+,-./:;=@[]^_{}~"  # nothing that could spell an end of text, and no question mark
ASK = "?"


@dataclass(frozen=True)
class Probed:
    """A document's text, and the logarithm of its probability."""

    text: str
    log_probability: float


@dataclass
class _Draw:
    """Uniform choices, whose options are counted."""

    random: random.Random
    log_probability: float = 0.0

    def order(self, options: Sequence[str], count: int) -> list[str]:
        """Draw `count` of the options, none twice."""
        left, chosen = list(options), []
        for _ in range(count):
            self.log_probability -= math.log(len(left))
            # Of all its methods Python promises only random() to stay the same from version to version.
            chosen.append(left.pop(int(self.random.random() * len(left))))
        return chosen


def document(probe: ProbeSpec, seed: int, index: int) -> Probed:
    """Return document number `index` of a probe, which depends on these three alone."""
    draw = _Draw(random.Random(f"oelm {probe.corpus} {seed} {index}"))  # noqa: S311  (a corpus, not a secret)
    text = _recall(draw, probe.size) if probe.kind == "recall" else _copy(draw, probe.size)
    return Probed(text, draw.log_probability)


def generate(probe: ProbeSpec, seed: int, start: int = 0) -> Iterator[Probed]:
    """Yield documents from number `start` on, without end."""
    return (document(probe, seed, index) for index in count_from(start))


def answers(probe: ProbeSpec) -> tuple[int, ...]:
    """Return the places in a document whose tokens follow from what stands before them."""
    if probe.kind == "recall":
        return tuple(range(2 * probe.size + 2, LENGTH - 1, 2))
    return tuple(range(probe.size, LENGTH - 1))


def guess(probe: ProbeSpec) -> float:
    """Return the share of answers that counting gives, without looking anything up."""
    places = range(len(answers(probe)))
    return math.fsum(1 / (probe.size - place % probe.size) for place in places) / len(places)


def _recall(draw: _Draw, pairs: int) -> str:
    keys = draw.order(KEYS, pairs)
    value_of = dict(zip(keys, draw.order(VALUES, pairs), strict=True))
    questions = (LENGTH - 2 - 2 * pairs) // 2
    asked: list[str] = []
    while len(asked) < questions:
        asked += draw.order(keys, min(pairs, questions - len(asked)))
    return "".join([*(k + value_of[k] for k in keys), ASK, *(k + value_of[k] for k in asked)])


def _copy(draw: _Draw, distance: int) -> str:
    letters = "".join(draw.order(KEYS + VALUES, distance))
    return (letters * (LENGTH // distance + 1))[: LENGTH - 1]
