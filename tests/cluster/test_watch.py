"""kopf as a watcher: what is there and what comes is seen on the main loop, and its thread ends when told to."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import accounts, manifests
from tarsy.kube import client, watch
from tarsy_dev import patience, proxy
from tarsy_dev.controlplane import ControlPlane


def create(plane: ControlPlane, namespace: str, name: str) -> Any:
    """Create an investigation; the object as the API server has it."""
    made = plane.create(manifests.investigation(name), namespace=namespace)
    del made["metadata"]["managedFields"]  # as kubectl shows it
    return made


class Seen:
    """What was seen, and that it was seen where it belongs."""

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

    async def of(self, uid: str) -> watch.Seen:
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


async def test_a_user_without_a_name_can_watch(
    plane: ControlPlane, cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose user is a number."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 65532)
    async with watching(cluster) as seen:
        await seen.open(now=True)


async def test_objects_that_exist_and_objects_that_come_are_seen_and_left_as_they_are(
    plane: ControlPlane, cluster: client.Cluster
) -> None:
    before = create(plane, cluster.served.own, "before")
    async with watching(cluster) as seen:
        found = await seen.of(before["metadata"]["uid"])
        assert found == watch.Seen(
            namespace=cluster.served.own, name="before", uid=before["metadata"]["uid"], generation=1
        )
        after = create(plane, cluster.served.own, "after")
        assert (await seen.of(after["metadata"]["uid"])).name == "after"
        plane.kubectl("delete", "inv", "after", namespace=cluster.served.own)
        again = create(plane, cluster.served.own, "after")
        assert (await seen.of(again["metadata"]["uid"])).name == "after"
    now = json.loads(plane.kubectl("get", "inv", "before", "-o", "json", namespace=cluster.served.own))
    assert now == before


@pytest.mark.slow
async def test_only_the_namespace_that_was_asked_for_is_watched(plane: ControlPlane, cluster: client.Cluster) -> None:
    create(plane, "default", f"before-{cluster.served.own}")
    async with watching(cluster) as seen:
        first = create(plane, cluster.served.own, "first")
        await seen.of(first["metadata"]["uid"])
        create(plane, "default", f"after-{cluster.served.own}")
        last = create(plane, cluster.served.own, "last")
        await seen.of(last["metadata"]["uid"])
    assert seen.namespaces == {cluster.served.own}


async def test_each_served_namespace_is_watched_also_one_that_appears_later(
    plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    later = f"{namespace}-later"
    cluster = await client.connect(plane.kubeconfig(namespace=namespace), served=[later])
    async with watching(cluster) as seen:
        await seen.open(now=True)
        first = create(plane, namespace, "first")
        await seen.of(first["metadata"]["uid"])
        plane.create_namespace(later)
        second = create(plane, later, "second")
        assert (await seen.of(second["metadata"]["uid"])).namespace == later
    assert seen.namespaces == {namespace, later}
    await cluster.close()


@pytest.mark.slow
async def test_a_hundred_namespaces_are_listed_and_watched_once_each(plane: ControlPlane, namespace: str) -> None:
    others = [f"{namespace}-{number}" for number in range(100)]
    cluster = await client.connect(plane.kubeconfig(namespace=namespace), served=others)
    plane.create_namespace(others[-1])
    async with watching(cluster) as seen:
        await asyncio.wait_for(seen.watcher.opened.wait(), 120)
        assert len(seen.watcher._open_watches._cut) == 2 * 101
        last = create(plane, others[-1], "last")
        assert (await seen.of(last["metadata"]["uid"])).namespace == others[-1]
        first = create(plane, namespace, "first")
        await seen.of(first["metadata"]["uid"])
        assert seen.watcher.lists == dict.fromkeys((namespace, *others), 1), "no watch made another one list again"
    await cluster.close()


async def test_a_watch_that_is_refused_in_one_namespace_holds_up_no_other(
    plane: ControlPlane, admin: client.Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REFUSED_SECONDS", 0.01)
    caplog.set_level("INFO")
    own, other = admin.served.own, f"{admin.served.own}-other"
    plane.create_namespace(other)
    watching_rights = ["list", "watch"]
    token = await accounts.create(admin, "watcher")
    may = {"alertinvestigations": watching_rights, "agentchains": watching_rights}
    await accounts.grant(admin, f"system:serviceaccount:{own}:watcher", may=may)
    cluster = await client.connect(plane.kubeconfig(namespace=own, user="watcher", token=token), served=[other])
    async with watching(cluster) as seen:
        await asyncio.wait_for(seen.watcher.opened.wait(), 60)
        assert not seen.watcher.is_cut()
        assert {fact.name: fact.state for fact in seen.watcher.facts()} == {own: "open", other: "refused"}
        here = create(plane, own, "here")
        await seen.of(here["metadata"]["uid"])
        there = create(plane, other, "there")
        elsewhere = await client.connect(plane.kubeconfig(namespace=other))
        await accounts.grant(elsewhere, f"system:serviceaccount:{own}:watcher", may=may)
        assert (await seen.of(there["metadata"]["uid"])).namespace == other, "served once the right is there"
        await seen.open(now=True)
        async with patience.limit():
            while [fact.state for fact in seen.watcher.facts()] != ["open"]:  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)
        await elsewhere.close()
    refusals = [record.__dict__ for record in caplog.records if record.__dict__.get("action") == "watch_refused"]
    assert sorted((one["namespace"], one["kind"]) for one in refusals) == [
        (other, "agentchains"),
        (other, "alertinvestigations"),
    ], "each is told once"
    await cluster.close()


@pytest.mark.slow
async def test_a_watch_that_was_cut_says_so_once_and_sees_what_came_meanwhile(
    plane: ControlPlane,
    namespace: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = watch._bounded_log
    monkeypatch.setattr(log, "dropped", 0)
    monkeypatch.setattr(log, "_next_at", -math.inf)
    monkeypatch.setattr(watch, "LOGGED_SECONDS", math.inf)
    async with proxy.serve("127.0.0.1", int(plane.url.rpartition(":")[2])) as between:
        config = json.loads(plane.kubeconfig(namespace=namespace).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{between.port}"
        (tmp_path / "config").write_text(json.dumps(config))
        cluster = await client.connect(tmp_path / "config", served=[f"{namespace}-{number}" for number in range(5)])
        async with watching(cluster) as seen:
            before = await asyncio.to_thread(create, plane, namespace, "before")
            await seen.of(before["metadata"]["uid"])
            await seen.open(now=True)
            between.refuse()
            between.cut()
            await seen.open(now=False)
            assert 0 < seen.watcher.cut_for() < 20
            async with patience.limit():
                while log.dropped < 3 * 2 * 6:  # noqa: ASYNC110 - counted in another thread
                    await asyncio.sleep(0.01)
            during = await asyncio.to_thread(create, plane, namespace, "during")
            between.accept()
            await seen.of(during["metadata"]["uid"])
            await seen.open(now=True)
        await cluster.close()
    assert len([record for record in caplog.records if record.name == watch._REQUESTS_LOGGER]) == 1, "of many"


STOP_AT_ONCE = """
import asyncio, sys, threading
from pathlib import Path
from tarsy.kube import client, watch

async def main():
    cluster = await client.connect(Path(sys.argv[1]))
    for turns in range(4):
        task = asyncio.create_task(
            watch.Watcher(cluster, investigation_seen=print, chain_seen=print).run()
        )
        while all(thread.name != "kopf" for thread in threading.enumerate()):
            await asyncio.sleep(0)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    await cluster.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_stop_right_after_the_start_ends_the_thread(plane: ControlPlane, namespace: str) -> None:
    """In a process of its own: a thread that cannot be told to end would hang this one."""
    kubeconfig = plane.kubeconfig(namespace=namespace)
    done = subprocess.run([sys.executable, "-c", STOP_AT_ONCE, kubeconfig], timeout=90, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
