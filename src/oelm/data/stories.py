"""The embedded corpus: short English stories whose best possible loss is known.

Everything must run with no network, and a corpus written by a program can say what a found one cannot: how
much of a model's loss is ignorance and how much is chance.

A story introduces two or three friends, their places and their treasures, moves them about, and asks again and
again who is where and who has what. Which question is asked is chance; its answer is not. The answer follows
from the latest of several similar moves, so it has to be looked up by who did what, in which order: counting
the words so far does not give it, and neither does the previous word. Some answers lie three words back, some
at the beginning of the story, so that a small model finds something to learn early and something late.

**Why the floor is exact.** One grammar is walked by a chooser, which takes one of the options that the story
so far allows. The options of a choice are equally likely, so a story whose choices had n_1, n_2, ... options
has probability

    p = 1 / (n_1 n_2 ...).

An option is the next piece of the text, and no option of a choice is a prefix of another (tested). So two
sequences of choices never give one text, p is the probability of the *text*, and a chooser that reads recovers the
choices by walking the same grammar (the tests do). The closing is itself an option, so the end of a story
is certain once it comes, and an end-of-text token costs nothing. Therefore

    floor = -(sum of log p over the stories of a file) / (tokens of the file)

is what a model pays per token that knows this grammar and sees every story from its beginning; on average no
model pays less. A window that begins inside a story hides what was said before it, which lifts the loss that
can be reached above this floor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from

from oelm.data.story_world import NOBODY, PEOPLE, PLACES, THINGS, Question, World

_NUMBERS = ("Two", "Three")
_OPENINGS = (" First", " Then", " Next", " Soon", " At last")  # one for each event that a story can have
_FEWEST_EVENTS = 2
_CLOSING = " In the end"


@dataclass(frozen=True, slots=True)
class Story:
    """A story, the choices that made it, and what is true at its end.

    `choices` are the indices of the options taken wherever there was more than one. `log_probability` is the
    natural logarithm of the probability of exactly this text.
    """

    text: str
    choices: tuple[int, ...]
    log_probability: float
    questions: tuple[Question, ...]


# From the pieces of the text so far and the options to go on with, the index of the option to take.
Chooser = Callable[[Sequence[str], Sequence[str]], int]


@dataclass(slots=True)
class _Teller:
    """The grammar: what may be said next, given the story so far. Nothing here knows how choices are made."""

    choose: Chooser
    pieces: list[str] = field(default_factory=list)  # of the text
    choices: list[int] = field(default_factory=list)
    num_tellings: int = 1  # n_1 n_2 ..., exact; its logarithm is taken once, at the end
    world: World = field(default_factory=World)
    places: tuple[str, ...] = ()

    def say(self, text: str) -> None:
        """Add what follows from the story so far."""
        self.pieces.append(text)

    def pick(self, options: Sequence[str]) -> int:
        """Add one of `options`; an only option is no choice."""
        index = 0
        if len(options) > 1:
            index = self.choose(self.pieces, options)
            self.choices.append(index)
            self.num_tellings *= len(options)
        self.pieces.append(options[index])
        return index

    def tell(self) -> None:
        """Tell one story from its first word to its last."""
        self._introduce()
        for number, opening in enumerate(_OPENINGS):
            if number < _FEWEST_EVENTS:
                self.say(opening)
            elif self.pick((opening, _CLOSING)) == 1:
                break
            self._event()
            self._recall()
        else:
            self.say(_CLOSING)
        self._close()

    def _introduce(self) -> None:
        """Name the friends and what they carry, and a thing that nobody has."""
        world = self.world
        num_friends = 2 + self.pick(_NUMBERS)
        self.say(" friends lived ")
        settings = list(PLACES)
        self.places = PLACES[settings[self.pick(settings)]]
        self.say(".")
        for person in range(num_friends):
            self.say(" ")
            world.people.append(self._pair(PEOPLE, world.people))
            world.whereabouts.append(self._place())
            # The first friend always has something, so that in every story a treasure can change hands.
            if self.pick((" with a ",) if person == 0 else (" with a ", ".")) == 0:
                world.things.append("the " + self._pair(THINGS, world.things))
                world.holders.append(person)
                world.resting.append(world.whereabouts[person])
                self.say(".")
        self.say(" A ")
        world.things.append("the " + self._pair(THINGS, world.things))
        world.holders.append(None)
        world.resting.append(self._place())
        self.say(".")

    def _pair(self, table: Mapping[str, tuple[str, ...]], taken: Sequence[str]) -> str:
        """Pick two words that go together and that nobody and nothing else in the story goes by."""
        words = {word for name in taken for word in name.split()}
        firsts = [first for first in table if first not in words]
        first = firsts[self.pick(firsts)]
        self.say(" ")
        seconds = [second for second in table[first] if second not in words]
        return f"{first} {seconds[self.pick(seconds)]}"

    def _place(self) -> str:
        self.say(" was in the ")
        return self.places[self.pick(self.places)]

    def _one_of(self, numbers: Sequence[int], words: Sequence[str]) -> int:
        """Pick one of the people, or things, that have these `numbers`."""
        return numbers[self.pick([words[number] for number in numbers])]

    def _event(self) -> None:
        """Let somebody do one of the things that can be done there and then."""
        world = self.world
        self.say(" ")
        person = self.pick(world.people)
        here, load, company = world.whereabouts[person], world.load(person), world.company(person)
        possible: dict[str, Callable[[int], None]] = {}
        if load is None:
            possible[" went to the "] = self._go
            if world.lying(here):
                possible[" picked up "] = self._take
        else:
            treasure = world.things[load]
            possible[f" carried {treasure} to the "] = self._go
            # Treasures that change hands make the better story, so only who is alone leaves one behind.
            possible |= {f" gave {treasure} to ": self._give} if company else {f" left {treasure} in the ": self._leave}
        if company and self._absent(person):
            possible[" looked for "] = self._ask
        verbs = list(possible)
        possible[verbs[self.pick(verbs)]](person)

    def _go(self, person: int) -> None:
        world = self.world
        others = [place for place in self.places if place != world.whereabouts[person]]
        world.whereabouts[person] = place = others[self.pick(others)]
        self.say(".")
        name = world.people[person]
        for other in world.company(person):
            self.say(f" {name} met {world.people[other]}. {world.person_has(other)}")
        if things := world.lying(place):
            self.say(f" {name} saw {' and '.join(world.things[thing] for thing in things)}.")

    def _take(self, person: int) -> None:
        world = self.world
        thing = self._one_of(world.lying(world.whereabouts[person]), world.things)
        world.holders[thing] = person
        self.say(f". Now {world.person_has(person)}")

    def _leave(self, person: int) -> None:
        world = self.world
        thing, place = world.holders.index(person), world.whereabouts[person]
        world.holders[thing], world.resting[thing] = None, place
        self.say(f"{place}. Now {world.thing_is(thing)}")

    def _give(self, person: int) -> None:
        """Give what is carried; who gets it returns what they carried themselves."""
        world = self.world
        thing = world.holders.index(person)
        other = self._one_of(world.company(person), world.people)
        returned = world.load(other)
        world.holders[thing] = other
        if returned is not None:
            world.holders[returned] = person
            self.say(f" for {world.things[returned]}")
        self.say(f". Now {world.person_has(other)} {world.person_has(person)}")

    def _ask(self, person: int) -> None:
        world = self.world
        thing = self._one_of(self._absent(person), world.things)
        self.say(" and asked ")
        other = self._one_of(world.company(person), world.people)
        self.say(f". {world.people[other]} said that {world.thing_is(thing)}")

    def _absent(self, person: int) -> list[int]:
        """Return what a person can sensibly look for: what is somewhere else."""
        here = self.world.whereabouts[person]
        return [thing for thing in range(len(self.world.things)) if self.world.place(thing) != here]

    def _recall(self) -> None:
        """Ask for something that the story has settled, and answer."""
        world = self.world
        form = self.pick((" Where was ", " Who had ", " What did "))
        if form == 0:
            topic = self.pick(world.people + world.things)
            thing = topic - len(world.people)
            self.say("? " + (world.person_is(topic) if thing < 0 else _capital(world.thing_is(thing))))
        elif form == 1:
            thing = self.pick(world.things)
            holder = world.holders[thing]
            name = _capital(NOBODY) if holder is None else world.people[holder]
            self.say(f"? {name} had {world.things[thing]}.")
        else:
            person = self.pick(world.people)
            self.say(f" have? {world.person_has(person)}")

    def _close(self) -> None:
        """Say where everybody and everything is at the end; none of it is a choice."""
        world = self.world
        for person in range(len(world.people)):
            self.say(f" {world.person_is(person)}")
        for thing, holder in enumerate(world.holders):
            if holder is None:
                self.say(f" {_capital(world.thing_is(thing))}")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _tell(choose: Chooser) -> Story:
    teller = _Teller(choose)
    teller.tell()
    return Story(
        text="".join(teller.pieces),
        choices=tuple(teller.choices),
        log_probability=-math.log(teller.num_tellings),
        questions=tuple(teller.world.questions()),
    )


def story(seed: int, index: int) -> Story:
    """Return story number `index` of corpus `seed`, which depends on these two alone."""
    # Of all its methods Python promises only random() to stay the same from version to version.
    uniform = random.Random(f"oelm stories {seed} {index}").random  # noqa: S311  (a corpus, not a secret)
    return _tell(lambda _pieces, options: int(uniform() * len(options)))


def generate(seed: int, count: int | None = None, start: int = 0) -> Iterator[Story]:
    """Yield `count` stories from number `start` on (None: without end), so that any shard can be made alone."""
    for index in count_from(start) if count is None else range(start, start + count):
        yield story(seed, index)
