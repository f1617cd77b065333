"""Repairs as values."""

import pytest
from pydantic import ValidationError

from oelm.spec.repair import RepairSpec


def test_nothing_is_on_by_default_and_what_is_on_is_named():
    assert RepairSpec().active() == ()
    assert RepairSpec(core=True, low_rank=2, key_shift=0.5).active() == ("key_shift", "core", "low_rank")


def test_two_trained_factors_on_one_head_cannot_be_asked_for():
    with pytest.raises(ValidationError, match="leave temperature off"):
        RepairSpec(qk_norm=True, temperature=True)


def test_a_negative_rank_cannot_be_asked_for():
    with pytest.raises(ValidationError):
        RepairSpec(low_rank=-1)
