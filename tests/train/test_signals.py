"""Ctrl-C and SIGTERM."""

import os
import signal

import pytest

from oelm.train.signals import listening


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_is_a_wish_and_ctrl_c_after_it_interrupts(number):
    with listening() as wish:
        assert not wish
        os.kill(os.getpid(), number)
        assert wish.asked == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_what_machines_repeat_is_the_same_wish(first):
    with listening() as wish:
        for number in (first, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert wish.asked == first.name


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with listening():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
