"""The clock of an execution that makes several calls at once: it stands still only while all of them wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from hypothesis import given
from hypothesis import strategies as st
from tarsy.agent import concurrent_waits


@given(st.lists(st.tuples(st.integers(min_value=0, max_value=3), st.booleans()), max_size=40))
def test_time_stands_still_only_while_every_call_waits(steps: Sequence[tuple[int, bool]]) -> None:
    depth = 0

    class Still:
        def __enter__(self) -> None:
            nonlocal depth
            depth += 1

        def __exit__(self, *_: object) -> None:
            nonlocal depth
            depth -= 1

    together = concurrent_waits.ConcurrentWaits(Still)
    calls: dict[int, AbstractContextManager[None]] = {}
    waiting: dict[int, AbstractContextManager[None]] = {}
    for number, ends in steps:
        if number not in calls:
            calls[number] = together.call()
            calls[number].__enter__()
        elif number in waiting:
            waiting.pop(number).__exit__(None, None, None)
        elif ends:
            calls.pop(number).__exit__(None, None, None)
        else:
            waiting[number] = together.pause_time()
            waiting[number].__enter__()
        assert depth == (1 if calls and len(waiting) == len(calls) else 0)
    for call in (*waiting.values(), *calls.values()):
        call.__exit__(None, None, None)
    assert depth == 0
