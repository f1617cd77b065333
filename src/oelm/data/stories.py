"""The embedded corpus: short English stories whose lowest possible loss is known.

It needs no network, and because a program writes it, one can tell how much of the loss of a model is error and how much
is chance.

A story introduces two or three friends, their places and their treasures, moves them, and asks again and again who is
where and who has what. The question is random; its answer is not. The answer follows from the latest of several similar
moves, so a model must look it up by who did what, in which order: counting words or looking at the previous word is not
enough. Some answers are three words back and some at the beginning of the story, so that a small model learns some
early and some late.

**Why the floor is exact.** A chooser walks through one grammar and takes one of the options that the story so far
allows. The options of a choice are equally likely, so a story whose choices had n_1, n_2, ... options has probability

    p = 1 / (n_1 n_2 ...).

An option is the next piece of the text, and no option of a choice is a prefix of another (tested). So two sequences of
choices never give the same text, p is the probability of the *text*, and a chooser that reads a text recovers its
choices by walking through the same grammar (the tests do). The closing is itself an option, so the end of a story is
certain once it comes, and the end-of-text token costs nothing. Therefore

    floor = -(sum of log p over the stories of a file) / (tokens of the file)

is the loss per token of a model that knows this grammar and sees every story from its beginning, and the expected loss
of any model is at least that. A window that begins inside a story hides what came before, which raises the reachable
loss above this floor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from typing import Any

# The world of the stories: people, places and things, who has what, and the questions about it.
#
# Changing a table or its order changes every story, and so every number measured on them. A row has more words than a
# story can use.
#
# A title occurs with some names only, and a colour with some things. If all words of a kind were interchangeable, a
# model would give them one embedding, and it cannot start to copy "Tom" before it distinguishes him from the others. In
# a trial it still guessed names at random at a time when, with these tables, it had long been looking them up.
PEOPLE: Mapping[str, tuple[str, ...]] = {
    "Aunt": ("Anna", "Clara", "Emma", "Grace", "Ivy", "Kate"),
    "Uncle": ("Ben", "David", "Fred", "Henry", "Jack", "Leo"),
    "Queen": ("Ivy", "Kate", "Mary", "Nora", "Rose", "Yasmin"),
    "King": ("Henry", "Leo", "Oscar", "Peter", "Victor", "Will"),
    "Captain": ("Jack", "Oscar", "Sam", "Tess", "Tom", "Zoe"),
    "Doctor": ("Anna", "David", "Grace", "Nora", "Victor", "Yasmin"),
    "Farmer": ("Ben", "Clara", "Mary", "Peter", "Tom", "Will"),
    "Baker": ("Emma", "Fred", "Rose", "Sam", "Tess", "Zoe"),
}
THINGS: Mapping[str, tuple[str, ...]] = {
    "red": ("ball", "book", "drum", "hat", "kite"),
    "blue": ("ball", "book", "box", "cup", "kite"),
    "green": ("ball", "box", "hat", "lamp", "map"),
    "yellow": ("bell", "flute", "kite", "lamp", "ring"),
    "white": ("cup", "lamp", "map", "rope", "spoon"),
    "black": ("coin", "drum", "flute", "hat", "key"),
    "brown": ("box", "drum", "flute", "rope", "spoon"),
    "silver": ("bell", "coin", "key", "ring", "spoon"),
}
PLACES: Mapping[str, tuple[str, ...]] = {
    "on a farm": ("kitchen", "garden", "barn"),
    "in a town": ("market", "library", "park"),
    "in a castle": ("tower", "hall", "cellar"),
    "by the sea": ("harbour", "cave", "lighthouse"),
}
NOBODY = "nobody"


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the end of a story, with its answer."""

    text: str
    answer: str


@dataclass(slots=True)
class StoryWorld:
    """Who is where and who has what. People and things are numbered, and each person carries at most one thing."""

    people: list[str] = field(default_factory=list)  # "Aunt Kate"
    whereabouts: list[str] = field(default_factory=list)  # of each person
    things: list[str] = field(default_factory=list)  # "the red ball"
    holders: list[int | None] = field(default_factory=list)  # of each thing
    resting: list[str] = field(default_factory=list)  # where each thing was last put down

    def load(self, person: int) -> int | None:
        """Return the thing that a person carries."""
        return self.holders.index(person) if person in self.holders else None

    def company(self, person: int) -> list[int]:
        """Return the other people in the place of a person."""
        here = self.whereabouts[person]
        return [other for other, place in enumerate(self.whereabouts) if place == here and other != person]

    def place(self, thing: int) -> str:
        """Return the place of a thing, carried or not."""
        holder = self.holders[thing]
        return self.resting[thing] if holder is None else self.whereabouts[holder]

    def list_loose(self, place: str) -> list[int]:
        """Return the things that can be picked up at a place."""
        return [i for i, holder in enumerate(self.holders) if holder is None and self.resting[i] == place]

    def person_is(self, person: int) -> str:
        """Describe where a person is, and with what."""
        load = self.load(person)
        ending = "" if load is None else f" with {self.things[load]}"
        return f"{self.people[person]} was in the {self.whereabouts[person]}{ending}."

    def person_has(self, person: int) -> str:
        """Describe what a person carries."""
        load = self.load(person)
        return f"{self.people[person]} had {'nothing' if load is None else self.things[load]}."

    def thing_is(self, thing: int) -> str:
        """Describe where a thing is, and with whom."""
        holder = self.holders[thing]
        ending = "" if holder is None else f" with {self.people[holder]}"
        return f"{self.things[thing]} was in the {self.place(thing)}{ending}."

    def questions(self) -> Iterator[Question]:
        """Yield every possible question about the current state."""
        for thing, treasure in enumerate(self.things):
            holder = self.holders[thing]
            yield Question(f"Who has {treasure}?", NOBODY if holder is None else self.people[holder])
            yield Question(f"Where is {treasure}?", f"in the {self.place(thing)}")
        for person, name in enumerate(self.people):
            load = self.load(person)
            yield Question(f"Where is {name}?", f"in the {self.whereabouts[person]}")
            yield Question(f"What does {name} have?", "nothing" if load is None else self.things[load])


_NUMBERS = ("Two", "Three")
_OPENINGS = (" First", " Then", " Next", " Soon", " At last")  # one for each event that a story can have
_FEWEST_EVENTS = 2
_CLOSING = " In the end"


@dataclass(frozen=True, slots=True)
class Story:
    """A story, the choices that made it, and questions about its end.

    `choices` are the indices of the options taken wherever there was more than one. `log_probability` is the natural
    logarithm of the probability of exactly this text.
    """

    text: str
    choices: tuple[int, ...]
    log_probability: float
    questions: tuple[Question, ...]


# Takes the pieces of the text so far and the next options, and returns the index of the option to take.
Chooser = Callable[[Sequence[str], Sequence[str]], int]


@dataclass(slots=True)
class _Writer:
    """The grammar: which options there are, given the story so far. It does not know how choices are made."""

    choose: Chooser
    pieces: list[str] = field(default_factory=list)  # of the text
    choices: list[int] = field(default_factory=list)
    num_texts: int = 1  # n_1 n_2 ..., exact: the logarithm is taken once, at the end
    world: StoryWorld = field(default_factory=StoryWorld)
    places: tuple[str, ...] = ()

    def say(self, text: str) -> None:
        """Add text that follows from the story so far."""
        self.pieces.append(text)

    def pick(self, options: Sequence[str]) -> int:
        """Choose one of `options` and add it; a single option is not a choice."""
        index = 0
        if len(options) > 1:
            index = self.choose(self.pieces, options)
            self.choices.append(index)
            self.num_texts *= len(options)
        self.pieces.append(options[index])
        return index

    def write(self) -> None:
        """Write one story."""
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
        """Introduce the friends and what they carry, and a thing without an owner."""
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
            # The first friend always has something, so that a treasure can change hands in every story.
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
        """Choose two words that occur together and that no other name in the story contains."""
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
        """Choose one of the people, or things, that have these `numbers`."""
        return numbers[self.pick([words[number] for number in numbers])]

    def _event(self) -> None:
        """Let one of the friends do something that is possible in the current state."""
        world = self.world
        self.say(" ")
        person = self.pick(world.people)
        here, load, company = world.whereabouts[person], world.load(person), world.company(person)
        possible: dict[str, Callable[[int], None]] = {}
        if load is None:
            possible[" went to the "] = self._go
            if world.list_loose(here):
                possible[" picked up "] = self._take
        else:
            treasure = world.things[load]
            possible[f" carried {treasure} to the "] = self._go
            # Treasures that change hands make better stories, so only a person who is alone leaves one behind.
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
        if things := world.list_loose(place):
            self.say(f" {name} saw {' and '.join(world.things[thing] for thing in things)}.")

    def _take(self, person: int) -> None:
        world = self.world
        thing = self._one_of(world.list_loose(world.whereabouts[person]), world.things)
        world.holders[thing] = person
        self.say(f". Now {world.person_has(person)}")

    def _leave(self, person: int) -> None:
        world = self.world
        thing, place = world.holders.index(person), world.whereabouts[person]
        world.holders[thing], world.resting[thing] = None, place
        self.say(f"{place}. Now {world.thing_is(thing)}")

    def _give(self, person: int) -> None:
        """Give the carried thing to another person, who returns what they carried themselves."""
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
        """Return the things in other places, which a person can look for."""
        here = self.world.whereabouts[person]
        return [thing for thing in range(len(self.world.things)) if self.world.place(thing) != here]

    def _recall(self) -> None:
        """Ask a question about the current state, and answer it."""
        world = self.world
        form = self.pick((" Where was ", " Who had ", " What did "))
        if form == 0:
            topic = self.pick(world.people + world.things)
            thing = topic - len(world.people)
            self.say("? " + (world.person_is(topic) if thing < 0 else _capitalize(world.thing_is(thing))))
        elif form == 1:
            thing = self.pick(world.things)
            holder = world.holders[thing]
            name = _capitalize(NOBODY) if holder is None else world.people[holder]
            self.say(f"? {name} had {world.things[thing]}.")
        else:
            person = self.pick(world.people)
            self.say(f" have? {world.person_has(person)}")

    def _close(self) -> None:
        """Describe where everyone and everything is at the end; nothing of it is a choice."""
        world = self.world
        for person in range(len(world.people)):
            self.say(f" {world.person_is(person)}")
        for thing, holder in enumerate(world.holders):
            if holder is None:
                self.say(f" {_capitalize(world.thing_is(thing))}")


def _capitalize(text: str) -> str:
    return text[0].upper() + text[1:]


def _write(choose: Chooser) -> Story:
    writer = _Writer(choose)
    writer.write()
    return Story(
        text="".join(writer.pieces),
        choices=tuple(writer.choices),
        log_probability=-math.log(writer.num_texts),
        questions=tuple(writer.world.questions()),
    )


def write_story(seed: int, index: int) -> Story:
    """Return story number `index` of corpus `seed`. It depends on nothing else."""
    # random() is the only method that Python promises not to change between versions.
    uniform = random.Random(f"oelm stories {seed} {index}").random  # noqa: S311  (a corpus, not a secret)
    return _write(lambda _pieces, options: int(uniform() * len(options)))


def generate_stories(seed: int, count: int | None = None, start: int = 0) -> Iterator[Story]:
    """Yield `count` stories from number `start` on (None: without end)."""
    for index in count_from(start) if count is None else range(start, start + count):
        yield write_story(seed, index)


# Questions about the stories with their answers: labelled text that needs no network.
#
# A story ends with who is where with what, and a question asks for one of these facts. The answer is a person, a thing
# or a place in the ending, or "nobody" or "nothing".

QUESTIONS = "story-questions"
TRAIN_STORIES, HELD_OUT_STORIES = 2000, 60
_ENDING = "In the end"


def question_tables(seed: int) -> dict[str, list[Mapping[str, Any]]]:
    """Return the rows of train, val and test, which have no stories in common."""
    tables: dict[str, list[Mapping[str, Any]]] = {}
    first = 0
    for split, count in (("train", TRAIN_STORIES), ("val", HELD_OUT_STORIES), ("test", HELD_OUT_STORIES)):
        tables[split] = [
            {"ending": _ending(story), "question": question.text, "answer": question.answer}
            for story in generate_stories(seed, count, first)
            for question in story.questions
        ]
        first += count
    return tables


def _ending(story: Story) -> str:
    return story.text[story.text.rindex(_ENDING) :].strip()
