"""Probes: texts without meaning that test one skill of attention, and the places of their answers.

A loss on real text shows that something is missing, but not what. A document here has 128 tokens, one character each
including the end of text, so that a model with a context of 128 sees exactly one.

- `recall:N` lists N pairs of a key and its value, then a question mark, then the keys again, each followed by its
  value. The keys come in rounds: every key once, in a new order. To answer, attention must find the key by its content,
  and the character after it.
- `copy:D` shows D different letters and then, again and again, the letter that was D places before. Attention can count
  back, or find the previous letter by its content.

**Why the floor is exact.** Every choice is uniform over known options, and an answer is not a choice, so the
probability of a document is 1 / (n_1 n_2 ...), as for the stories.

**What counting alone achieves.** A model that knows which tokens have occurred how often, but not where, can exclude
what this round has already answered. It guesses among the r answers that are left, for r = N, N - 1, ..., and is right
in `guess_rate` of all cases. Attention has to be better than that.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from

from oelm.spec.run import ProbeSpec

LENGTH = 128
"""Tokens of a document, the end of text included."""
VOCAB_SIZE = 257
"""Every byte, and the end of text."""
KEYS = string.ascii_letters
VALUES = (
    string.digits + "!#$%&()*+,-./:;=@[]^_{}~"
)  # without characters of the end of text, and without the question mark
ASK = "?"


@dataclass(frozen=True)
class Probed:
    """The text of a document, and the logarithm of its probability."""

    text: str
    log_probability: float


@dataclass
class _Draw:
    """Make uniform choices, and sum up their log-probabilities."""

    random: random.Random
    log_probability: float = 0.0

    def order(self, options: Sequence[str], count: int) -> list[str]:
        """Draw `count` of the options without replacement."""
        left, chosen = list(options), []
        for _ in range(count):
            self.log_probability -= math.log(len(left))
            # random() is the only method that Python promises not to change between versions.
            chosen.append(left.pop(int(self.random.random() * len(left))))
        return chosen


def write_probe(probe: ProbeSpec, seed: int, index: int) -> Probed:
    """Return document number `index` of a probe. It depends on nothing but the arguments."""
    draw = _Draw(random.Random(f"oelm {probe.corpus} {seed} {index}"))  # noqa: S311  (a corpus, not a secret)
    text = _recall(draw, probe.size) if probe.kind == "recall" else _copy(draw, probe.size)
    return Probed(text, draw.log_probability)


def generate_probes(probe: ProbeSpec, seed: int, start: int = 0) -> Iterator[Probed]:
    """Yield documents from number `start` on, without end."""
    return (write_probe(probe, seed, index) for index in count_from(start))


def answers(probe: ProbeSpec) -> tuple[int, ...]:
    """Return the places in a document whose tokens follow from earlier ones."""
    if probe.kind == "recall":
        return tuple(range(2 * probe.size + 2, LENGTH - 1, 2))
    return tuple(range(probe.size, LENGTH - 1))


def guess_rate(probe: ProbeSpec) -> float:
    """Return the share of answers that counting alone gets right."""
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
