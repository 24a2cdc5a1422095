"""Watches of kopf on a real API server, and what they saw."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import threading
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import manifests
from tarsy.kube import client, watch
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator


def create(plane: Administrator, namespace: str, name: str) -> Any:
    """Create an investigation; the object as the API server has it."""
    made = plane.create(manifests.investigation(name), namespace=namespace)
    del made["metadata"]["managedFields"]  # as kubectl shows it
    return made


class Seen:
    """The objects that were seen, and that they were seen where they belong."""

    watcher: watch.Watcher

    def __init__(self) -> None:
        self.namespaces: set[str] = set()
        self._queue: asyncio.Queue[watch.Seen] = asyncio.Queue()

    def __call__(self, seen: watch.Seen) -> None:
        assert threading.current_thread() is threading.main_thread()
        self.namespaces.add(seen.namespace)
        self._queue.put_nowait(seen)

    async def open(self, *, now: bool) -> None:
        """Wait until the watch is open, or until it is not."""
        async with patience.limit():
            while True:
                if (self.watcher.cut_for() == 0) == now:
                    return
                await asyncio.sleep(0.01)

    async def next_of(self, uid: str) -> watch.Seen:
        """The next that is seen of this object."""
        async with patience.limit():
            while (seen := await self._queue.get()).uid != uid:
                pass
            return seen


def kopf_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "kopf"]


@contextlib.asynccontextmanager
async def watching(cluster: client.Cluster) -> AsyncIterator[Seen]:
    seen = Seen()
    seen.watcher = watch.Watcher(cluster, investigation_seen=seen, chain_seen=seen)
    assert seen.watcher.cut_for() == math.inf
    task = asyncio.create_task(seen.watcher.run())
    try:
        yield seen
    finally:
        task.cancel()
        async with patience.limit():
            with pytest.raises(asyncio.CancelledError):
                await task
        # kopf leaves its TLS connections to the end of its loop; what they would complain of is collected here.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
    assert kopf_threads() == []
