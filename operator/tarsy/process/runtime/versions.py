"""The runtime in force, and those that executions still use: a platform file may change while agents work.

An execution keeps the runtime that it began with. So the parts of a runtime (SDK clients) are closed only once no
execution has it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tarsy.transcript import ports

End = Callable[[], Awaitable[None]]


@dataclass(eq=False, kw_only=True)
class _Version:
    runtime: ports.Runtime
    end: End
    users: int = 1
    """Those who work with it, and one while it is in force."""


class Versions:
    """The runtimes of the platform files that there were."""

    def __init__(self, first: ports.Runtime, *, end: End) -> None:
        """`end` lets go of what `first` is made of."""
        self._known = [_Version(runtime=first, end=end)]
        self._unused: asyncio.Queue[_Version] = asyncio.Queue()

    @contextmanager
    def held(self) -> Iterator[ports.Runtime]:
        """The one that is in force now, kept for as long as this is entered."""
        now = self._known[-1]
        now.users += 1
        try:
            yield now.runtime
        finally:
            self._let_go(now)

    def exchange(self, runtime: ports.Runtime, *, end: End) -> None:
        """Have another one in force from now on."""
        before = self._known[-1]
        self._known.append(_Version(runtime=runtime, end=end))
        self._let_go(before)

    async def run(self) -> None:
        """End runtimes that no execution uses any more, until cancelled."""
        while True:
            unused = await self._unused.get()
            self._known.remove(unused)
            await unused.end()

    async def close(self) -> None:
        """End all runtimes, once no execution works any more."""
        while self._known:
            await self._known.pop().end()

    def _let_go(self, version: _Version) -> None:
        version.users -= 1
        if not version.users:
            self._unused.put_nowait(version)
