"""Ctrl-C and SIGTERM."""

import os
import signal

import pytest

from oelm.train.signals import listening


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_wish_and_the_second_interrupts(number):
    with listening() as wish:
        assert not wish
        os.kill(os.getpid(), number)
        assert wish.asked == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with listening():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
