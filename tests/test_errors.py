"""The tree of errors."""

import re

import pytest

from oelm import errors
from oelm.errors import OelmError, UnknownName, UsageError

ALL = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OelmError)]


def test_the_drawn_tree_names_every_error():
    drawn = set(re.findall(r"(?:├──|└──|^    )\s*([A-Z]\w+)", errors.__doc__, re.MULTILINE))
    assert drawn == {kind.__name__ for kind in ALL}


@pytest.mark.parametrize("kind", ALL)
def test_what_was_asked_wrongly_exits_with_2_and_what_went_wrong_with_1(kind):
    assert kind.exit_code == (2 if issubclass(kind, UsageError) else 1)


def test_an_unknown_name_without_a_near_one_suggests_nothing():
    assert "Did you mean" not in str(UnknownName("thing", "zzzz", ["alpha", "beta"]))
    assert (
        str(UnknownName("thing", "alpa", ["alpha", "beta"])) == "There is no thing named 'alpa'. Did you mean 'alpha'?"
    )


def test_an_unknown_name_without_a_near_one_lists_a_dozen_names_at_most():
    assert str(UnknownName("thing", "?", ["b", "a"], "Ask.")) == "There is no thing named '?'. Known: a, b. Ask."
    assert "Known: a, b, c, d, e, f, g, h, i, j, k, l and 2 more." in str(UnknownName("thing", "?", "abcdefghijklmn"))
