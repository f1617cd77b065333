"""Ctrl-C and SIGTERM."""

import os
import signal

import pytest

from oelm.train import loop as module
from oelm.train.loop import catch_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_requests_a_stop_and_ctrl_c_after_it_interrupts(number):
    with catch_signals() as request:
        assert not request
        os.kill(os.getpid(), number)
        assert request.signal == number.name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_repeated_signals_are_one_request(first):
    with catch_signals() as request:
        for number in (first, signal.SIGTERM, signal.SIGHUP, signal.SIGTERM):
            os.kill(os.getpid(), number)
        assert request.signal == first.name


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with catch_signals():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_repeated_after_a_while_ends_even_a_call_that_is_repeated_for_ever(number, monkeypatch):
    with catch_signals() as stop:
        signal.raise_signal(number)
        signal.raise_signal(number)  # soon: nothing
        assert stop.signal == signal.Signals(number).name
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
