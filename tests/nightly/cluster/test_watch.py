"""kopf as a watcher: what is there and what comes is seen on the main loop, and its thread ends when told to."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from support.watches import create, watching
from tarsy.kube import client, watch
from tarsy_dev import patience, proxy
from tarsy_dev.controlplane import Administrator


async def test_watch_sees_the_configured_namespace_alone(plane: Administrator, cluster: client.Cluster) -> None:
    create(plane, "default", f"before-{cluster.served.own}")
    async with watching(cluster) as seen:
        first = create(plane, cluster.served.own, "first")
        await seen.next_of(first["metadata"]["uid"])
        create(plane, "default", f"after-{cluster.served.own}")
        last = create(plane, cluster.served.own, "last")
        await seen.next_of(last["metadata"]["uid"])
    assert seen.namespaces == {cluster.served.own}


async def test_a_hundred_namespaces_are_listed_and_watched_once_each(plane: Administrator, namespace: str) -> None:
    others = [f"{namespace}-{number}" for number in range(100)]
    cluster = await client.connect(plane.kubeconfig(namespace=namespace), served=others)
    plane.create_namespace(others[-1])
    async with watching(cluster) as seen:
        await asyncio.wait_for(seen.watcher.opened.wait(), 120)
        assert len(seen.watcher._open_watches._cut) == 2 * 101
        last = create(plane, others[-1], "last")
        assert (await seen.next_of(last["metadata"]["uid"])).namespace == others[-1]
        first = create(plane, namespace, "first")
        await seen.next_of(first["metadata"]["uid"])
        assert seen.watcher.lists == dict.fromkeys((namespace, *others), 1), "no watch made another one list again"
    await cluster.close()


async def test_a_watch_that_was_cut_says_so_once_and_sees_what_came_meanwhile(
    plane: Administrator,
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
            await seen.next_of(before["metadata"]["uid"])
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
            await seen.next_of(during["metadata"]["uid"])
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


def test_a_stop_right_after_the_start_ends_the_thread(plane: Administrator, namespace: str) -> None:
    """In a process of its own: a thread that cannot be told to end would hang this one."""
    kubeconfig = plane.kubeconfig(namespace=namespace)
    done = subprocess.run([sys.executable, "-c", STOP_AT_ONCE, kubeconfig], timeout=90, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
