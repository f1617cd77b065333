"""Which arms say what content is worth, found by their methods."""

from __future__ import annotations

from oelm.spec.method import named_method
from oelm.spec.study import find_content_arms, is_nearly_position_only, missing_arms


def arms(*names: str, width: int | None = 96) -> list[tuple[str, str, tuple[str, ...], bool]]:
    found = find_content_arms({name: named_method(name) for name in names}, reference="baseline", width=width)
    return [(each.trained, each.position, each.frozen, each.is_exact) for each in found]


def test_arms_of_one_position_scheme_are_found_whatever_they_are_called() -> None:
    names = ("baseline", "baseline+features", "oelm-fast", "oelm-features", "oelm-freeze", "position-only", "uniform")
    assert arms(*names) == [("baseline+features", "position-only", ("oelm-fast", "oelm-features"), True)]


def test_each_position_scheme_has_arms_of_its_own() -> None:
    names = ("baseline-bias", "oelm-bias", "position-only-bias", "baseline-features", "oelm-fast", "position-only")
    assert arms(*names) == [
        ("baseline-bias", "position-only-bias", ("oelm-bias",), True),
        ("baseline-features", "position-only", ("oelm-fast",), True),
    ]


def test_uniform_attention_and_half_frozen_arms_have_no_role() -> None:
    assert arms("baseline", "oelm-freeze", "uniform") == []
    assert arms("baseline+features", "position-only", "oelm-q-only+features", "oelm-every:4+features") == [
        ("baseline+features", "position-only", (), True)
    ]


def test_the_trained_arm_with_the_fewest_other_repairs_is_the_reference_of_content() -> None:
    names = ("baseline+low-rank=3+bias", "baseline+bias+mix", "baseline+bias", "position-only-bias")
    assert arms(*names)[0][0] == "baseline+bias"


def test_small_frozen_projections_stand_in_for_none_only_while_nothing_can_enlarge_them() -> None:
    assert is_nearly_position_only(named_method("oelm-random+bias+mix"), 96)
    assert not is_nearly_position_only(named_method("oelm-random+bias+mix"), 512), "0.2 nats at width 512"
    assert not is_nearly_position_only(named_method("oelm-random+low-rank=3+bias"), 96)
    assert not is_nearly_position_only(named_method("oelm-random"), 96)
    assert not is_nearly_position_only(named_method("oelm-random+bias"), None)
    both = ("baseline+bias", "oelm-random+bias", "position-only-bias")
    assert arms(*both) == [("baseline+bias", "position-only-bias", ("oelm-random+bias",), True)]


def test_the_missing_arms_are_named() -> None:
    def missing(*names: str) -> tuple[str, ...]:
        return missing_arms({name: named_method(name) for name in names})

    assert missing("baseline", "oelm-freeze") == ("position-only", "baseline+features")
    assert missing("baseline", "oelm-bias", "baseline-bias") == ("position-only-bias",)
    assert missing("baseline", "position-only") == ("baseline+features",)
    assert missing("baseline+features", "position-only") == ()
