"""Seeds that belong to a purpose."""

from hypothesis import given
from hypothesis import strategies as st

from oelm.spec.run import derived_seed


@given(st.integers(0, 2**31), st.integers(0, 2**31), st.text(), st.text())
def test_seeds_are_repeatable_in_range_and_distinct(seed, other, purpose, another):
    value = derived_seed(seed, purpose)
    assert value == derived_seed(seed, purpose)
    assert 0 <= value < 2**63
    if (seed, purpose) != (other, another):
        assert value != derived_seed(other, another)


def test_words_do_not_run_together():
    assert derived_seed(1, "ab", "c") != derived_seed(1, "a", "bc")
