"""A database that is older than its cluster, and a cluster that is older than its database: nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from support import backups, loglines, manifests, queue, stories, waiting
from tarsy.config.check import chain_index
from tarsy.controller import duties, investigations, projector
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy_dev import controlplane, patience
from tarsy_dev import postgres as launcher


class World:
    """Objects of one namespace, as kubectl sees them."""

    def __init__(self, plane: controlplane.Administrator, cluster: client.Cluster) -> None:
        self.plane = plane
        self.cluster = cluster

    def kubectl(self, *args: str, manifest: object = None) -> str:
        text = json.dumps(manifest) if manifest else None
        return self.plane.kubectl(*args, input=text, namespace=self.cluster.served.own)

    def create(self, name: str) -> UUID:
        made = self.kubectl("create", "-f", "-", "-o", "json", manifest=manifests.investigation(name))
        return UUID(json.loads(made)["metadata"]["uid"])

    def status(self, name: str) -> dict[str, Any]:
        object_status: dict[str, Any] = json.loads(self.kubectl("get", "inv", name, "-o", "json")).get("status", {})
        return object_status

    @contextlib.asynccontextmanager
    async def controller(self, database: databases.Database) -> AsyncIterator[duties.Duties]:
        """A controller that has just started; it resyncs when the test says so."""
        index = functools.partial(chain_index.ChainIndex, platform=queue.PLATFORM, unusable_providers={})
        reconciler = investigations.Reconciler(
            cluster=self.cluster, database=database, index=index, mask=str, workers=2
        )
        parts = (reconciler.run(), projector.Projector(cluster=self.cluster, database=database).run())
        tasks = [asyncio.create_task(part) for part in parts]
        yield duties.Duties(
            cluster=self.cluster,
            database=database,
            reconciler=reconciler,
            owner=UUID(int=1),
            platform=lambda: queue.PLATFORM,
            watch_lists=lambda _: 1,
        )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def admitted(self, database: databases.Database, name: str) -> UUID:
        """Create an investigation, and wait until its first status is written."""
        identity = self.create(name)
        async with self.controller(database) as controller:
            await controller.resync()
            await until(lambda: self.shows(name, "Queued"))
        return identity

    async def shows(self, name: str, phase: str) -> bool:
        return (await asyncio.to_thread(self.status, name)).get("phase") == phase


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with patience.limit():
        while not await condition():
            pass  # the condition itself gives way to the others


async def is_written(database: databases.Database) -> bool:
    return not await work.stale(database, limit=1)


async def endings(database: databases.Database) -> dict[str, Any]:
    """The name of each investigation, and how it has ended."""
    return {row[0]: row[1] for row in await queue.rows(database, "SELECT name, ending FROM investigations")}


def restored_lines(log_lines: loglines.LogLines) -> list[tuple[str, str]]:
    """Return the log's lines about restored investigations: action and name."""
    actions = ("transcript_lost", "status_aligned", "status_refused", "resync_alarm")
    return sorted(
        (line["action"], line["investigation"].partition("/")[2])
        for line in log_lines()
        if line.get("action") in actions
    )


async def test_restored_older_database_repeats_no_lost_work_and_logs_what_is_lost(
    plane: controlplane.Administrator,
    admin: client.Cluster,
    database: databases.Database,
    postgres: launcher.Access,
    tmp_path: Path,
    log_lines: loglines.LogLines,
) -> None:
    world = World(plane, admin)
    world.kubectl("create", "-f", "-", manifest=manifests.chain())
    await world.admitted(database, "running")
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started(), stories.started())
    await world.admitted(database, "deleted-later")
    dump = backups.dump(database.url, tmp_path / "tarsy.dump")

    await journal.commit(stories.asks("k8s.get"))
    await journal.commit(stories.answers())
    await queue.execute(database, "UPDATE work SET revision = revision + 5, stale = true WHERE state = 'leased'")
    cancelled = await world.admitted(database, "ended-later")
    await work.cancel(database, cancelled, why="user")
    await world.admitted(database, "queued-later")
    async with world.controller(database):
        await until(lambda: is_written(database))
    world.kubectl("delete", "inv", "deleted-later")
    before = {name: world.status(name) for name in ("running", "ended-later", "queued-later")}
    assert before["ended-later"]["phase"] == "Cancelled"
    log_lines()

    restored = databases.Database(backups.restore(dump, postgres.create_database("restored")))
    lost = {("transcript_lost", "ended-later"), ("transcript_lost", "queued-later")}
    try:
        for expected in (lost | {("status_aligned", "running")}, lost):  # the second start changes nothing any more
            async with world.controller(restored) as controller:
                await controller.resync()
                await until(lambda: world.shows("queued-later", "Failed"))
                await until(lambda: ended(restored, "deleted-later"))
                await until(lambda: is_ahead(world, before["running"]["sequence"]))
                await until_told(log_lines, expected)
                await controller.resync()
                await until(lambda: is_written(restored))
            assert set(restored_lines(log_lines)) <= expected
            assert world.status("ended-later") == before["ended-later"], "its result is left"
            failed = world.status("queued-later")
            finished = next(condition for condition in failed["conditions"] if condition["type"] == "Finished")
            assert (failed["phase"], finished["reason"]) == ("Failed", "TranscriptLost")
        assert await endings(restored) == {"running": None, "deleted-later": "Cancelled"}
        await queue.let_leases_pass(restored)
        claim = await queue.claimed(restored)
        assert claim.name.endswith("/running"), "and it goes on from its last commit"
        assert await queue.claim(restored) is None
    finally:
        await restored.close()
        postgres.drop_database("restored")


async def until_told(log_lines: loglines.LogLines, expected: set[tuple[str, str]]) -> None:
    """Wait until the log has told of these, and of no others; the second start waits for nothing else of them."""
    logged: set[tuple[str, str]] = set()

    def are_told() -> bool:
        logged.update(restored_lines(log_lines))
        return logged >= expected

    await waiting.until(are_told)
    assert logged == expected


async def ended(database: databases.Database, name: str) -> bool:
    return bool((await endings(database))[name])


async def is_ahead(world: World, sequence: int) -> bool:
    return bool((await asyncio.to_thread(world.status, "running"))["sequence"] > sequence)


async def test_an_older_cluster_gets_the_statuses_of_its_database_and_runs_nothing_again(
    own_plane: controlplane.ControlPlane, database: databases.Database, tmp_path: Path, log_lines: loglines.LogLines
) -> None:
    own_plane.create_namespace("tarsy")
    cluster = await client.connect(own_plane.kubeconfig(namespace="tarsy"))
    world = World(own_plane, cluster)
    try:
        world.kubectl("create", "-f", "-", manifest=manifests.chain())
        ends = await world.admitted(database, "ends")
        await world.admitted(database, "goes")
        await asyncio.to_thread(turn_back, own_plane, keep=tmp_path / "snapshot")

        await work.cancel(database, ends, why="user")
        await world.admitted(database, "is-new")
        world.kubectl("delete", "inv", "goes")
        async with world.controller(database) as controller:
            await controller.resync()
            await until(lambda: ended(database, "goes"))
            await until(lambda: is_written(database))
        assert world.status("ends")["phase"] == "Cancelled"

        await asyncio.to_thread(turn_back, own_plane, to=tmp_path / "snapshot")
        assert world.status("ends")["phase"] == world.status("goes")["phase"] == "Queued"
        log_lines()
        async with world.controller(database) as controller:
            await controller.resync()
            await controller.resync()  # of those whose status shows no end
            for name in ("ends", "goes"):
                await until(lambda name=name: world.shows(name, "Cancelled"))  # type: ignore[misc]
            await until(lambda: ended(database, "is-new"))
        assert restored_lines(log_lines) == [("status_aligned", "ends"), ("status_aligned", "goes")]
        assert set((await endings(database)).values()) == {"Cancelled"}
        assert await queue.claim(database) is None
    finally:
        await cluster.close()


def turn_back(plane: controlplane.ControlPlane, *, keep: Path | None = None, to: Path | None = None) -> None:
    """Stop the control plane to keep a copy of etcd's files, or to put one back, and start it again."""
    plane.stop()
    files = plane.folder / "etcd"
    if to:
        shutil.rmtree(files)
        shutil.copytree(to, files)
    elif keep:
        shutil.copytree(files, keep)
    plane.start()
