"""The models and tools of a process that works: built once the process is there, and anew for another platform file.

What a new file says as before stays what it was: SDK clients, connections to servers, and who waits for a turn. The
rest is built beside it, and exchanged all at once.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from tarsy.config import inforce, platform
from tarsy.llm import registry
from tarsy.store import pins
from tarsy.store import throttle as throttles
from tarsy.telemetry import standing
from tarsy.transcript import ports
from tarsy.worker import generations

if TYPE_CHECKING:
    from tarsy.tools import pool as pools

SETTLE_SECONDS = 10.0
"""How long servers that are new in the platform file are waited for before it is in force."""


@dataclass(kw_only=True)
class Equipment:
    """The models and tools of this process, as the platform file in force wants them."""

    in_force: inforce.InForce
    throttle: throttles.Throttle
    pins: pins.Pins
    """What tools are held against."""
    watched: Callable[[ports.Turn], AbstractContextManager[ports.Stream]]
    http: aiohttp.ClientSession = field(init=False)
    models: registry.Models = field(init=False)
    pool: pools.Pool = field(init=False)
    runtimes: generations.Generations = field(init=False)

    async def begin(self, stack: AsyncExitStack) -> None:
        """Build them; what is in force now has to be so until they are there."""
        now = self.in_force
        self.http = await stack.enter_async_context(registry.session())
        self.models = await asyncio.to_thread(self._models, now.platform, before=None)
        self.pool = await asyncio.to_thread(_pool, now.platform, self.pins)
        first = self._runtime(self.models, self.pool.tools, now.platform, now.unusable)
        self.runtimes = generations.Generations(first, end=self.models.close)
        stack.push_async_callback(self.runtimes.close)

    async def run(self) -> None:
        """Keep servers connected, and close models that nobody has any more, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pool.run())
            group.create_task(self.runtimes.run())

    async def settled(self) -> ports.Runtime:
        """What engines work with, once every server has been tried."""
        await self.pool.tools.settled()
        with self.runtimes.held() as first:
            return replace(first, newest=self.runtimes.held)

    async def prepare(self, platform: platform.Platform, unusable: Mapping[str, str]) -> inforce.Prepared:
        """Build what is new in a platform, and connect to it."""
        async with AsyncExitStack() as undo:
            models = await asyncio.to_thread(self._models, platform, before=self.models)
            undo.push_async_callback(models.close)
            tools = self.pool.prepared(platform)
            undo.callback(self.pool.drop, tools)
            with suppress(TimeoutError):  # one that is away is in force as well
                await asyncio.wait_for(tools.settled(), SETTLE_SECONDS)
            made = undo.pop_all()

        def exchange() -> None:
            self.models = models
            models.hold_at_once()
            self.pool.exchange(tools)
            self.runtimes.exchange(self._runtime(models, tools, platform, unusable), end=models.close)

        return inforce.Prepared(exchange=exchange, drop=made.aclose)

    def facts(self) -> Iterator[standing.Fact]:
        """How those in force stand."""
        yield from self.pool.facts()
        yield from self.models.facts(self.in_force.unusable)

    def _models(self, platform: platform.Platform, *, before: registry.Models | None) -> registry.Models:
        throttle = self.throttle.renewed(platform.llm_providers)
        with _without_collecting():
            return registry.build(platform, environment=os.environ, http=self.http, throttle=throttle, before=before)

    def _runtime(
        self, models: registry.Models, tools: pools.Tools, platform: platform.Platform, unusable: Mapping[str, str]
    ) -> ports.Runtime:
        return ports.Runtime(
            platform=platform,
            model=models.__getitem__,
            toolbox=tools.toolbox,
            watched=self.watched,
            is_usable=lambda name: name not in unusable,
        )


def _pool(settings: platform.Platform, keep: pins.Pins) -> pools.Pool:
    with _without_collecting():
        from tarsy.tools import pool

        return pool.Pool(settings, keep=keep)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """For imports: SDKs take a second, for which nothing else of the process has to wait."""
    gc.disable()  # as while a command is imported; for everybody, but not for long
    try:
        yield
    finally:
        gc.enable()
