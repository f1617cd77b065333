"""Data as a value."""

import pytest
from pydantic import ValidationError

from oelm.spec.run import DataSpec


@pytest.mark.parametrize("size", [256, 65537])
def test_a_vocabulary_that_bytes_or_16_bits_cannot_hold_is_refused(size):
    with pytest.raises(ValidationError):
        DataSpec(vocab_size=size)
