"""An investigation that is followed: Ctrl-C while a command waits for a change."""

from __future__ import annotations

import sys
from types import FrameType

import pytest
from tarsy.cli.client import changes, kubectl


class Interrupting:
    """A trace function that raises KeyboardInterrupt, as Ctrl-C does, at the opcode of that number."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupting:
        frame.f_trace_opcodes = True
        if event == "opcode":
            self._left -= 1
            if self._left == 0:
                raise KeyboardInterrupt
        return self


def test_ctrl_c_at_any_point_of_waiting_for_a_change_raises_only_keyboard_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changes, "TICK_SECONDS", 0.0)
    for at in range(1, 10_000):
        watch = changes.Watch(kubectl.Kubectl(), "shop", "web")
        before = sys.gettrace()
        sys.settrace(Interrupting(at))
        try:
            event = watch.next(None)
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(before)
        assert event == ("tick", None)
        assert at > 10
        break
