"""The world of the embedded stories: who there is, where they are, who has what, and what can be asked about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

# Changing a table, or its order, changes every story and with it every number measured on them. A row has more
# words than a story can use up.
#
# A title goes with some names only, and a colour with some things. Were all words of a kind interchangeable, a
# model would give them one embedding, and it cannot begin to copy "Tom" before it tells him from the others: in
# a trial it still guessed names by chance when, with these tables, it had long been looking them up.
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
    """Something to ask after a story, with the answer that its end gives."""

    text: str
    answer: str


@dataclass(slots=True)
class World:
    """Who is where and who has what. People and things are numbered; nobody carries two things."""

    people: list[str] = field(default_factory=list)  # "Aunt Kate"
    whereabouts: list[str] = field(default_factory=list)  # of each person
    things: list[str] = field(default_factory=list)  # "the red ball"
    holders: list[int | None] = field(default_factory=list)  # of each thing
    resting: list[str] = field(default_factory=list)  # where each thing was put down last

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
        return [i for i, holder in enumerate(self.holders) if holder is None and self.resting[i] == place]

    def person_is(self, person: int) -> str:
        """Say where a person is, and with what."""
        load = self.load(person)
        ending = "" if load is None else f" with {self.things[load]}"
        return f"{self.people[person]} was in the {self.whereabouts[person]}{ending}."

    def person_has(self, person: int) -> str:
        """Say what a person carries."""
        load = self.load(person)
        return f"{self.people[person]} had {'nothing' if load is None else self.things[load]}."

    def thing_is(self, thing: int) -> str:
        """Say where a thing is, and with whom."""
        holder = self.holders[thing]
        ending = "" if holder is None else f" with {self.people[holder]}"
        return f"{self.things[thing]} was in the {self.place(thing)}{ending}."

    def questions(self) -> Iterator[Question]:
        """Ask everything that can be asked of it."""
        for thing, treasure in enumerate(self.things):
            holder = self.holders[thing]
            yield Question(f"Who has {treasure}?", NOBODY if holder is None else self.people[holder])
            yield Question(f"Where is {treasure}?", f"in the {self.place(thing)}")
        for person, name in enumerate(self.people):
            load = self.load(person)
            yield Question(f"Where is {name}?", f"in the {self.whereabouts[person]}")
            yield Question(f"What does {name} have?", "nothing" if load is None else self.things[load])
