"""The models and tools of a worker: built after its start, and for each new platform file.

Unchanged parts of a new file keep their SDK clients, connections and waiting callers. Changed parts are built beside
the former ones, and all are exchanged at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from tarsy.config.model import platforms
from tarsy.llm import registry
from tarsy.masking import known_secrets
from tarsy.process import garbage_collection
from tarsy.process.runtime import platform_file, versions
from tarsy.store.fleet import pins, rate_limits
from tarsy.telemetry import component_states
from tarsy.tools.runbooks import client
from tarsy.transcript import ports
from tarsy.worker import eligibility

if TYPE_CHECKING:
    from tarsy.tools.servers import pool as pools

SETTLE_SECONDS = 10.0
"""The seconds that a new platform file waits for its new servers before it is in force."""


@dataclass(kw_only=True)
class Clients:
    """The models and tools of this process, by the platform file in force."""

    in_force: platform_file.PlatformFile
    throttle: rate_limits.RateLimits
    pins: pins.Pins
    """The store of the pins with which tools are compared."""
    open_stream: Callable[[ports.StreamedCall], AbstractContextManager[ports.Stream]]
    mask: Callable[[str], str]
    """The masking of runbooks."""
    secrets: known_secrets.KnownSecrets
    loopback: bool
    """Whether runbooks may come from this machine itself."""
    http: aiohttp.ClientSession = field(init=False)
    direct: aiohttp.ClientSession = field(init=False)
    models: registry.Models = field(init=False)
    pool: pools.Pool = field(init=False)
    living: versions.Versions = field(init=False)
    eligible: eligibility.Eligibility = field(init=False)

    def __post_init__(self) -> None:
        self.eligible = eligibility.Eligibility(
            platform=lambda: self.in_force.platform,
            unusable=lambda: self.models.unusable(self.in_force.unusable),
        )

    async def begin(self, stack: AsyncExitStack) -> None:
        """Build the models and tools; the platform file in force must not change meanwhile."""
        now = self.in_force
        self.http = await stack.enter_async_context(registry.session())
        self.direct = await stack.enter_async_context(client.session(loopback=self.loopback))
        self.models = await asyncio.to_thread(self._models, now.platform, before=None)
        self.pool = await asyncio.to_thread(self._pool, now.platform)
        read = await asyncio.to_thread(self._runbooks, now.platform)
        first = self._runtime(self.models, self.pool.tools, now.platform, now.unusable, read)
        self.living = versions.Versions(first, [*self.models.shared.values(), *self.pool.tools.servers.values()])
        stack.push_async_callback(self.living.close)

    async def run(self) -> None:
        """Keep servers connected, and close clients that no version has, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.pool.run())
            group.create_task(self.living.run())

    async def settled(self) -> ports.Runtime:
        """Return the runtime for engines, after the first attempt to connect to each server."""
        await self._settled(self.pool.tools)
        with self.living.held() as first:
            return replace(first, newest=self.living.held)

    async def prepare(self, platform: platforms.Platform, unusable: Mapping[str, str]) -> platform_file.Prepared:
        """Build the changed models and tools of a platform, and connect to new servers."""
        models = await asyncio.to_thread(self._models, platform, before=self.models)
        version = self.living.prepared(models.shared.values())
        with ExitStack() as undo:
            undo.callback(self.living.release, version)
            tools = self.pool.prepare(platform)
            version.clients += tools.servers.values()
            read = await asyncio.to_thread(self._runbooks, platform)
            await self._settled(tools)
            undo.pop_all()

        def exchange() -> None:
            self.models = models
            models.apply_limits()
            self.pool.exchange(tools)
            self.living.exchange(version, self._runtime(models, tools, platform, unusable, read))

        return platform_file.Prepared(exchange=exchange, drop=lambda: self.living.release(version))

    async def _settled(self, tools: pools.Tools) -> None:
        with suppress(TimeoutError):  # a server that cannot be reached comes into force as well
            await asyncio.wait_for(tools.wait_tried(), SETTLE_SECONDS)

    def facts(self) -> Iterator[component_states.ComponentState]:
        """Yield the states of the models and tools in force."""
        yield from self.pool.facts()
        yield from self.models.facts(self.in_force.unusable)
        yield from self.eligible.facts()

    def _models(self, platform: platforms.Platform, *, before: registry.Models | None) -> registry.Models:
        throttle = self.throttle.renewed(platform.llm_providers)
        with garbage_collection.paused():
            return registry.build(
                platform, environment=os.environ, http=self.http, secrets=self.secrets, throttle=throttle, before=before
            )

    def _pool(self, platform: platforms.Platform) -> pools.Pool:
        with garbage_collection.paused():
            from tarsy.tools.servers import pool

            return pool.Pool(platform, secrets=self.secrets, pin_store=self.pins)

    def _runbooks(self, platform: platforms.Platform) -> client.Runbooks:
        return client.Runbooks(
            platform.runbooks,
            token=client.token(platform.runbooks, os.environ),
            direct=self.direct,
            proxied=self.http,
            mask=self.mask,
            loopback=self.loopback,
        )

    def _runtime(
        self,
        models: registry.Models,
        tools: pools.Tools,
        platform: platforms.Platform,
        unusable: Mapping[str, str],
        read: client.Runbooks,
    ) -> ports.Runtime:
        return ports.Runtime(
            platform=platform,
            model=models.__getitem__,
            toolbox=tools.toolbox,
            open_stream=self.open_stream,
            runbook=read.read,
            is_usable=lambda name: name not in unusable,
            secrets=self.secrets,
        )
