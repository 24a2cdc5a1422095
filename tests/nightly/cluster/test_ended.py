"""Ended investigations cost nothing, neither at idle nor at a start, and only the store says which have ended."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import re
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support import finished, manifests, queue
from tarsy.config.check import chain_index
from tarsy.controller import duties, investigations
from tarsy.kube import client, watch
from tarsy.store.base import databases
from tarsy.store.reads import summaries
from tarsy_dev import patience, proxy
from tarsy_dev.controlplane import Administrator

UID_BYTES = 16
"""The fewest bytes of a uid, however well a list is compressed."""


class Controller:
    """A controller, as far as investigations go: it watches and reconciles; its duties are run by the test."""

    def __init__(self, cluster: client.Cluster, database: databases.Database, between: proxy.Proxy) -> None:
        self.between = between
        """The proxy that its requests pass through."""
        index = functools.partial(chain_index.ChainIndex, platform=queue.PLATFORM, unusable_providers={})
        self.reconciler = investigations.Reconciler(
            cluster=cluster, database=database, index=index, mask=str, workers=2
        )
        self.watcher = watch.Watcher(cluster, investigation_seen=self.reconciler.seen, chain_seen=lambda _: None)
        self.duties = duties.Duties(
            cluster=cluster,
            database=database,
            reconciler=self.reconciler,
            owner=UUID(int=1),
            platform=lambda: queue.PLATFORM,
            watch_lists=self.watcher.lists.__getitem__,
        )

    async def watching(self) -> None:
        """Wait until its watch is open."""
        async with patience.limit():
            while self.watcher.cut_for() > 0:  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)


@pytest.fixture
async def start(
    plane: Administrator, namespace: str, database: databases.Database, tmp_path: Path
) -> AsyncIterator[Callable[[], Awaitable[Controller]]]:
    """Starts a controller, whose watch then is open."""
    async with contextlib.AsyncExitStack() as stack:

        async def starting() -> Controller:
            between = await stack.enter_async_context(proxy.serve("127.0.0.1", int(plane.url.rpartition(":")[2])))
            config = json.loads(plane.kubeconfig(namespace=namespace).read_text())
            config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{between.port}"
            (tmp_path / "config").write_text(json.dumps(config))
            cluster = await client.connect(tmp_path / "config")
            stack.push_async_callback(cluster.close)
            controller = Controller(cluster, database, between)
            await stack.enter_async_context(running(controller.reconciler.run(), controller.watcher.run()))
            await controller.watching()
            return controller

        yield starting
    with warnings.catch_warnings():  # kopf leaves its TLS connections to the end of its loop
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@contextlib.asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part) for part in parts]
    yield
    for task in tasks:
        task.cancel()
    async with patience.limit():
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with patience.limit():
        while not await condition():
            pass  # the condition itself gives way to the others


def reads(plane: Administrator) -> int:
    """How often the API server was asked for one investigation so far."""
    counted = plane.kubectl("get", "--raw", "/metrics")
    amounts = re.findall(
        r'^apiserver_request_total\{.*resource="alertinvestigations".*verb="GET".*\} (\S+)$', counted, re.MULTILINE
    )
    return round(sum(map(float, amounts)))


def create(plane: Administrator, namespace: str, manifest: dict[str, Any]) -> str:
    return str(plane.create(manifest, namespace=namespace)["metadata"]["uid"])


async def ending(database: databases.Database, uid: str) -> str | None:
    """How it has ended, or None; "unknown" where it was never admitted."""
    summary = await summaries.load(database, UUID(uid))
    return summary.ending if summary else "unknown"


async def test_start_and_idle_pass_do_not_look_at_each_investigation(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    start: Callable[[], Awaitable[Controller]],
) -> None:
    count = 1000
    await finished.create(cluster, database, count=count)
    create(plane, cluster.served.own, manifests.chain())
    before = reads(plane)
    controller = await start()
    opened = controller.between.bytes_down
    await controller.duties.resync()
    everything = controller.between.bytes_down - opened
    assert everything > UID_BYTES * count
    uid = create(plane, cluster.served.own, manifests.investigation("last"))
    await until(lambda: is_open(database, uid))
    assert reads(plane) - before < 10

    passed = controller.between.bytes_down
    await controller.duties.resync()
    idle = controller.between.bytes_down - passed
    assert opened < everything
    assert idle < UID_BYTES * count


async def is_open(database: databases.Database, uid: str) -> bool:
    return await ending(database, uid) is None
