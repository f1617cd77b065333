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
    assert "Did you mean 'alpha'" in str(UnknownName("thing", "alpa", ["alpha", "beta"]))
