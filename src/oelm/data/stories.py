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
sequences of choices never give one text, p is the probability of the *text*, and `parse` recovers the choices
by walking the same grammar with a chooser that reads. The closing is itself an option, so the end of a story
is certain once it comes, and an end-of-text token costs nothing. Therefore

    floor = -(sum of log p over the stories of a file) / (tokens of the file)

is what a model pays per token that knows this grammar and sees every story from its beginning; on average no
model pays less. A window that begins inside a story hides what was said before it, which lifts the loss that
can be reached above this floor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from os.path import commonprefix

from oelm.errors import BadData

# Changing a list, or its order, changes every story and with it every number measured on them. The words of a
# list are prefix-free (no "Ann" beside "Anna"), and no colour begins with a vowel: it follows "a".
NAMES = (
    *("Anna", "Ben", "Clara", "David", "Emma", "Fred", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo"),
    *("Mary", "Nora", "Oscar", "Peter", "Rose", "Sam", "Tess", "Tom", "Victor", "Will", "Yasmin", "Zoe"),
)
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "silver")
THINGS = (
    *("ball", "bell", "book", "box", "coin", "cup", "drum", "flute"),
    *("hat", "key", "kite", "lamp", "map", "ring", "rope", "spoon"),
)
SETTINGS = (
    ("on a farm", ("kitchen", "garden", "barn")),
    ("in a town", ("market", "library", "park")),
    ("in a castle", ("tower", "hall", "cellar")),
    ("by the sea", ("harbour", "cave", "lighthouse")),
)
NOBODY = "nobody"

_FRIENDS = ("Two", "Three")
_OPENINGS = (" First", " Then", " Next", " Soon", " Later", " At last")  # one for each event that a story can have
_FEWEST_EVENTS = 2
_CLOSING = " Finally"


class NotAStory(BadData, ValueError):
    """A text that the grammar of this module does not produce."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something to ask after a story, with the answer that its end gives."""

    text: str
    answer: str


@dataclass(frozen=True, slots=True)
class Story:
    """A story, the choices that made it, and what is true at its end.

    `choices` are the indices of the options taken wherever there was more than one. `log_probability` is the
    natural logarithm of the probability of exactly this text. `holder` is the name of whoever has the treasure
    that was mentioned first, or `NOBODY`.
    """

    text: str
    choices: tuple[int, ...]
    log_probability: float
    questions: tuple[Question, ...]
    holder: str


# From the pieces of the text so far and the options to go on with, the index of the option to take.
Chooser = Callable[[Sequence[str], Sequence[str]], int]


@dataclass(slots=True)
class _Teller:
    """The text so far, and the choices that led to it."""

    choose: Chooser
    pieces: list[str] = field(default_factory=list)
    choices: list[int] = field(default_factory=list)
    num_tellings: int = 1  # n_1 n_2 ..., exact; its logarithm is taken once, at the end

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


@dataclass(slots=True)
class _World:
    """Who is where and who has what. People and things are numbered; nobody carries two things."""

    places: tuple[str, ...]
    people: list[str] = field(default_factory=list)
    whereabouts: list[str] = field(default_factory=list)  # of each person
    things: list[str] = field(default_factory=list)  # "red ball"
    holders: list[int | None] = field(default_factory=list)  # of each thing
    resting: list[str] = field(default_factory=list)  # where each thing lies, or lay when it was picked up

    def load(self, person: int) -> int | None:
        """Return what a person carries."""
        return self.holders.index(person) if person in self.holders else None

    def company(self, person: int) -> list[int]:
        """Return who else is where a person is."""
        here = self.whereabouts[person]
        return [other for other, place in enumerate(self.whereabouts) if place == here and other != person]

    def place(self, thing: int) -> str:
        """Return where a thing is, carried or not."""
        holder = self.holders[thing]
        return self.resting[thing] if holder is None else self.whereabouts[holder]

    def lying(self, place: str) -> list[int]:
        """Return what can be picked up at a place."""
        return [thing for thing, holder in enumerate(self.holders) if holder is None and self.resting[thing] == place]

    def about_person(self, person: int) -> str:
        """Say where a person is and with what: `Tom was in the barn with the red ball.`"""
        load = self.load(person)
        ending = "" if load is None else f" with the {self.things[load]}"
        return f"{self.people[person]} was in the {self.whereabouts[person]}{ending}."

    def about_thing(self, thing: int) -> str:
        """Say where a thing is and with whom: `he red ball was in the barn with Tom.`, after a T or a t."""
        holder = self.holders[thing]
        ending = "" if holder is None else f" with {self.people[holder]}"
        return f"he {self.things[thing]} was in the {self.place(thing)}{ending}."


class _Grammar:
    """What may be said next, given the story so far. Nothing here knows who chooses, or how."""

    def __init__(self, choose: Chooser) -> None:
        self.teller = _Teller(choose)
        self.world = self._introduce()
        for number, opening in enumerate(_OPENINGS):
            if number < _FEWEST_EVENTS:
                self.teller.say(opening)
            elif self.teller.pick((opening, _CLOSING)) == 1:
                break
            self._event()
            self._recall()
        else:
            self.teller.say(_CLOSING)
        self._close()

    def _introduce(self) -> _World:
        """Name the friends and what they carry, and a thing that nobody has."""
        teller = self.teller
        num_friends = 2 + teller.pick(_FRIENDS)
        teller.say(" friends lived ")
        world = _World(places=SETTINGS[teller.pick([setting for setting, _ in SETTINGS])][1])
        teller.say(".")
        names, colours, things = list(NAMES), list(COLOURS), list(THINGS)

        def place() -> str:
            teller.say(" was in the ")
            return world.places[teller.pick(world.places)]

        def thing(holder: int | None) -> None:
            colour = colours.pop(teller.pick(colours))
            teller.say(" ")
            world.things.append(f"{colour} {things.pop(teller.pick(things))}")
            world.holders.append(holder)

        for person in range(num_friends):
            teller.say(" ")
            world.people.append(names.pop(teller.pick(names)))
            world.whereabouts.append(place())
            # The first friend always has something: the treasure that `Story.holder` asks about.
            if teller.pick((" with a ", ".")[: 1 if person == 0 else 2]) == 0:
                thing(person)
                world.resting.append(world.whereabouts[person])
                teller.say(".")
        teller.say(" A ")
        thing(None)
        world.resting.append(place())
        teller.say(".")
        return world

    def _event(self) -> None:
        """Let somebody do one of the things that can be done there and then."""
        teller, world = self.teller, self.world
        teller.say(" ")
        person = teller.pick(world.people)
        here, load, company = world.whereabouts[person], world.load(person), world.company(person)
        possible: dict[str, Callable[[int], None]] = {}
        if load is None:
            possible[" went to the "] = self._go
            if world.lying(here):
                possible[" picked up the "] = self._take
        else:
            possible[f" carried the {world.things[load]} to the "] = self._go
            possible[f" left the {world.things[load]}"] = self._leave
            if any(world.load(other) is None for other in company):
                possible[" gave "] = self._give
        if company and any(world.place(thing) != here for thing in range(len(world.things))):
            possible[" asked "] = self._ask
        verbs = list(possible)
        possible[verbs[teller.pick(verbs)]](person)

    def _go(self, person: int) -> None:
        teller, world = self.teller, self.world
        others = [place for place in world.places if place != world.whereabouts[person]]
        world.whereabouts[person] = place = others[teller.pick(others)]
        teller.say(".")
        name = world.people[person]
        if company := world.company(person):
            teller.say(f" {name} met {' and '.join(world.people[other] for other in company)}.")
        if things := world.lying(place):
            teller.say(f" {name} saw {' and '.join('the ' + world.things[thing] for thing in things)}.")

    def _take(self, person: int) -> None:
        teller, world = self.teller, self.world
        things = world.lying(world.whereabouts[person])
        thing = things[teller.pick([world.things[thing] for thing in things])]
        world.holders[thing] = person
        teller.say(f". Now {world.people[person]} had the {world.things[thing]}.")

    def _leave(self, person: int) -> None:
        world = self.world
        thing, place = world.holders.index(person), world.whereabouts[person]
        world.holders[thing], world.resting[thing] = None, place
        self.teller.say(f" in the {place}. Now t{world.about_thing(thing)}")

    def _give(self, person: int) -> None:
        teller, world = self.teller, self.world
        thing = world.holders.index(person)
        others = [other for other in world.company(person) if world.load(other) is None]
        other = others[teller.pick([world.people[other] for other in others])]
        world.holders[thing] = other
        name, treasure = world.people[other], world.things[thing]
        teller.say(f" the {treasure}. {name} thanked {world.people[person]} for the {treasure}.")

    def _ask(self, person: int) -> None:
        teller, world = self.teller, self.world
        company = world.company(person)
        other = company[teller.pick([world.people[other] for other in company])]
        teller.say(" where the ")
        # Asking for what everybody can see would be silly.
        absent = [i for i in range(len(world.things)) if world.place(i) != world.whereabouts[person]]
        thing = absent[teller.pick([world.things[i] for i in absent])]
        teller.say(f" was. {world.people[other]} told {world.people[person]} that t{world.about_thing(thing)}")

    def _recall(self) -> None:
        """Ask for something that the story has settled, and answer."""
        teller, world = self.teller, self.world
        form = teller.pick((" Where was ", " Who had the ", " What did "))
        if form == 0:
            topic = teller.pick([*world.people, *(f"the {thing}" for thing in world.things)])
            teller.say("? ")
            thing = topic - len(world.people)
            teller.say(world.about_person(topic) if thing < 0 else f"T{world.about_thing(thing)}")
        elif form == 1:
            thing = teller.pick(world.things)
            holder = world.holders[thing]
            name = NOBODY.capitalize() if holder is None else world.people[holder]
            teller.say(f"? {name} had the {world.things[thing]}.")
        else:
            person = teller.pick(world.people)
            load = world.load(person)
            treasure = "nothing" if load is None else f"the {world.things[load]}"
            teller.say(f" have? {world.people[person]} had {treasure}.")

    def _close(self) -> None:
        """Say where everybody and everything is at the end; none of it is a choice."""
        world = self.world
        for person in range(len(world.people)):
            self.teller.say(f" {world.about_person(person)}")
        for thing, holder in enumerate(world.holders):
            if holder is None:
                self.teller.say(f" T{world.about_thing(thing)}")


def _tell(choose: Chooser) -> Story:
    grammar = _Grammar(choose)
    teller, world = grammar.teller, grammar.world
    holder = world.holders[0]
    return Story(
        text="".join(teller.pieces),
        choices=tuple(teller.choices),
        log_probability=-math.log(teller.num_tellings),
        questions=tuple(_questions(world)),
        holder=NOBODY if holder is None else world.people[holder],
    )


def _questions(world: _World) -> Iterator[Question]:
    """Ask everything that the end of a story answers."""
    for thing, treasure in enumerate(world.things):
        holder = world.holders[thing]
        yield Question(f"Who has the {treasure}?", NOBODY if holder is None else world.people[holder])
        yield Question(f"Where is the {treasure}?", f"in the {world.place(thing)}")
    for person, name in enumerate(world.people):
        load = world.load(person)
        yield Question(f"Where is {name}?", f"in the {world.whereabouts[person]}")
        yield Question(f"What does {name} have?", "nothing" if load is None else f"the {world.things[load]}")


def story(seed: int, index: int) -> Story:
    """Return story number `index` of corpus `seed`, which depends on these two alone."""
    # Of all its methods Python promises only random() to stay the same from version to version.
    uniform = random.Random(f"oelm stories {seed} {index}").random  # noqa: S311  (a corpus, not a secret)
    return _tell(lambda _pieces, options: int(uniform() * len(options)))


def generate(seed: int, count: int | None = None, start: int = 0) -> Iterator[Story]:
    """Yield `count` stories from number `start` on (None: without end), so that any shard can be made alone."""
    for index in count_from(start) if count is None else range(start, start + count):
        yield story(seed, index)


def parse(text: str) -> Story:
    """Recover a story from its text: `parse(s.text) == s`.

    Raises `NotAStory`, a `ValueError`, which names the place where the text stops being a story.
    """

    def read(pieces: Sequence[str], options: Sequence[str]) -> int:
        told = "".join(pieces)
        if text.startswith(told):
            for index, option in enumerate(options):
                if text.startswith(option, len(told)):
                    return index
        raise _refusal(text, [told + option for option in options])

    found = _tell(read)
    if found.text != text:
        raise _refusal(text, [found.text])
    return found


def _refusal(text: str, possible: Sequence[str]) -> NotAStory:
    end = max(len(commonprefix([text, candidate])) for candidate in possible)
    expected = sorted({candidate[end : end + 20] for candidate in possible if candidate[:end] == text[:end]})
    return NotAStory(
        f"a story was to be parsed, but it stops being one at character {end}, after {text[max(0, end - 30) : end]!r}:"
        f" found {text[end : end + 20] or 'the end'!r}, where {' or '.join(repr(e or 'the end') for e in expected)}"
        " would do. Pass the text of one story, without separators before or after it."
    )


def floor(stories: Iterable[Story], num_tokens: int) -> float:
    """Return the least average loss, in nats per token, on `stories` written as `num_tokens` tokens.

    `num_tokens` counts every predicted token, end-of-text marks included: these cost nothing but are averaged
    over.
    """
    if num_tokens < 1:
        raise BadData(f"a floor per token was asked for {num_tokens} tokens; count the tokens of the same stories.")
    return -math.fsum(each.log_probability for each in stories) / num_tokens
