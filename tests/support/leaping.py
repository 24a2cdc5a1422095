"""A loop whose time passes at once: where everything waits, it leaps to the next timer.

A test marked `leaps` runs on it. Its seconds cost nothing and are exact, however slow or busy the machine is: no timer
is due before all that can be done has been done. `time.monotonic` tells the same seconds. Such a test has no network,
no processes and no threads: the loop would not wait for them.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

_leapt = 1000.0


def seconds() -> float:
    """The time of all such loops."""
    return _leapt


@pytest.hookimpl(tryfirst=True)
def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]] | None:
    """A test that leaps runs on such a loop."""
    return {"leaping": Loop} if item.get_closest_marker("leaps") else None


@pytest.fixture(autouse=True)
def one_clock(request: pytest.FixtureRequest) -> Iterator[None]:
    """In a test that leaps, what it tests has no other clock."""
    with pytest.MonkeyPatch.context() as patched:
        if request.node.get_closest_marker("leaps"):
            patched.setattr(time, "monotonic", seconds)
        yield


class _Selector(selectors.BaseSelector):
    """Looks at its sockets, and leaps where it should have waited for them."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        global _leapt
        ready = self._real.select(None if timeout is None else 0)
        if timeout and not ready:
            _leapt += timeout
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return cast("Mapping[Any, selectors.SelectorKey]", self._real.get_map())


class Loop(asyncio.SelectorEventLoop):
    """A loop that leaps."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def time(self) -> float:
        """The time of all such loops."""
        return seconds()
