"""kopf as a watcher, in a thread and on a loop of its own: handlers hand over a key and do nothing else.

No finalizers, no annotations, no daemons, no peering: kopf writes nothing to the cluster, and what is done about a key
is decided elsewhere, by whoever reads the object and the store. Every replica watches.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import kopf

from tarsy.kube import client
from tarsy.resources import base, chain, investigation

RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An object was seen, in this generation, or was seen to go."""

    namespace: str
    name: str
    uid: str
    generation: int
    deleted: bool = False


class WatchError(Exception):
    """The watch ended, or did not begin: the process has to end as well."""


class Watcher:
    """Watches one namespace and calls back on the loop that made the watcher."""

    def __init__(
        self,
        cluster: client.Cluster,
        *,
        namespace: str,
        investigation_seen: Callable[[Seen], None],
        chain_seen: Callable[[Seen], None],
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._callbacks = {investigation.PLURAL: investigation_seen, chain.PLURAL: chain_seen}
        self._main = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = False

    async def run(self) -> None:
        """Watch until cancelled; a WatchError when kopf ends by itself."""
        thread = threading.Thread(target=self._thread, name="kopf", daemon=True)
        thread.start()
        try:
            await self._ended.wait()
        finally:
            self._stopping = True  # before the look at `_loop`: the thread sets that first and looks here afterwards
            if self._loop is not None and self._stop is not None:
                with suppress(RuntimeError):  # its loop has closed: it ended by itself
                    self._loop.call_soon_threadsafe(self._stop.set)
            await asyncio.to_thread(thread.join)
        raise WatchError("kopf ended by itself") from self._error

    def _thread(self) -> None:
        try:
            asyncio.run(self._operator())
        except Exception as error:  # noqa: BLE001 - carried to the main loop, which ends the process
            self._error = error
        finally:
            self._main.call_soon_threadsafe(self._ended.set, context=Context())

    async def _operator(self) -> None:
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self._stopping:
            return
        await kopf.operator(
            registry=self._registry(),
            settings=_settings(),
            namespaces=[self._namespace],
            standalone=True,
            stop_flag=self._stop,
        )

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: object) -> kopf.ConnectionInfo:
            return await self._cluster.credentials()

        @kopf.on.event(base.GROUP, base.VERSION, investigation.PLURAL, registry=registry)
        @kopf.on.event(base.GROUP, base.VERSION, chain.PLURAL, registry=registry)
        async def event(event: kopf.RawEvent, resource: kopf.Resource, **_: object) -> None:
            metadata: Any = event["object"]["metadata"]
            seen = Seen(
                namespace=metadata["namespace"],
                name=metadata["name"],
                uid=metadata["uid"],
                generation=metadata["generation"],
                deleted=event["type"] == "DELETED",
            )
            # An empty context: the default would carry this thread's context variables into the main loop's tasks.
            self._main.call_soon_threadsafe(self._callbacks[resource.plural], seen, context=Context())

        return registry


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.chunk_size = 50  # pages of 500 large objects are 128 MB at once
    settings.watching.server_timeout = 600
    settings.networking.connect_timeout = 10
    settings.networking.request_timeout = 30
    # A list that ends would end the watch, and with it the process, in an outage that outlasts it.
    settings.networking.error_backoffs = itertools.repeat(RETRY_SECONDS)
    settings.queueing.idle_timeout = 1.0
    return settings
