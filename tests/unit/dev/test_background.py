"""The supervisor in the background: a signal that tells it to stop is never lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from types import FrameType

import pytest
from tarsy_dev import background


class Signalling:
    """A trace function that sends SIGTERM at the opcode of that number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Signalling:
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGTERM)
        return self


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.timeout(60)  # one that waits for a lock of its own would wait for ever
@pytest.mark.usefixtures("handlers")
def test_signal_at_any_point_of_waiting_for_it_is_told_by_this_wait_or_the_next() -> None:
    for at in range(1, 10_000):
        stop = background.StopSignals()
        signalling, before = Signalling(at), sys.gettrace()
        sys.settrace(signalling)
        try:
            is_told = stop.wait(0.001)
        finally:
            sys.settrace(before)
        if signalling.left > 0:
            assert not is_told
            assert at > 10
            break
        assert is_told or stop.wait(0)
