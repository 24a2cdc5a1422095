"""The resync: what the watch missed is found, and what looks like a mistake of ours stops nothing."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import accounts, manifests, queue, stories
from support.masking import NO_SECRETS
from tarsy.config.check import chain_index
from tarsy.config.model import platforms
from tarsy.controller import duties, investigation_statuses, investigations
from tarsy.kube import calls, client, objects, rights
from tarsy.resources import investigations as kind
from tarsy.resources import namespaces
from tarsy.store.base import databases
from tarsy.store.fleet import leader
from tarsy.store.queue import questions, work
from tarsy.store.reads import summaries
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator


class World:
    """Objects of the test's namespace, and the duties that keep the store in step with them."""

    def __init__(
        self,
        plane: Administrator,
        cluster: client.Cluster,
        database: databases.Database,
        platform: platforms.Platform = queue.PLATFORM,
    ) -> None:
        self._plane = plane
        self._namespace = cluster.served.own
        self._database = database
        index = functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={})
        self.reconciler = investigations.Reconciler(
            cluster=cluster, database=database, index=index, mask=str, workers=2
        )
        self.duties = duties.Duties(
            cluster=cluster,
            database=database,
            reconciler=self.reconciler,
            owner=UUID(int=1),
            platform=lambda: platform,
        )

    def create(self, manifest: dict[str, Any]) -> str:
        """Create an object; its uid."""
        return str(self._plane.create(manifest, namespace=self._namespace)["metadata"]["uid"])

    def investigate(self, name: str) -> str:
        return self.create(manifests.investigation(name))

    def delete(self, name: str) -> None:
        self._plane.kubectl("delete", "inv", name, namespace=self._namespace)

    async def ending(self, uid: str) -> str | None:
        """How it has ended, or None; "unknown" where it was never admitted."""
        summary = await summaries.load(self._database, UUID(uid))
        return summary.ending if summary else "unknown"

    async def until(self, uid: str, ending: str | None) -> None:
        async with patience.limit():
            while await self.ending(uid) != ending:
                pass  # the read itself gives way to the others


@pytest.fixture
async def world(plane: Administrator, cluster: client.Cluster, database: databases.Database) -> AsyncIterator[World]:
    world = World(plane, cluster, database)
    world.create(manifests.chain())
    reconciling = asyncio.create_task(world.reconciler.run())
    yield world
    reconciling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reconciling


async def test_resync_admits_objects_missed_by_the_watch_and_cancels_deleted_ones(world: World) -> None:
    present, gone = world.investigate("kept"), world.investigate("gone")
    await world.duties.resync()
    for uid in (present, gone):
        await world.until(uid, None)
    world.delete("gone")
    await world.duties.resync()
    await world.until(gone, "Cancelled")
    assert await world.ending(present) is None


async def test_a_question_about_an_object_that_went_unnoticed_is_ended(
    world: World, database: databases.Database
) -> None:
    uids = [world.investigate(name) for name in ("kept", "gone")]
    await world.duties.resync()
    for uid in uids:
        await world.until(uid, None)
    for _ in uids:
        await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
    for uid in uids:
        assert await questions.ask(database, UUID(uid), "Why?", max_queued=10, by=queue.CALLER) == 1
    world.delete("gone")
    await world.duties.resync()
    ended = "SELECT CAST(investigation AS text), reason FROM runs WHERE number = 1 AND ended_at IS NOT NULL"
    async with patience.limit():
        while not await queue.rows(database, ended):
            pass
    assert await queue.rows(database, ended) == [(uids[1], "ObjectDeleted")]
    assert [await world.ending(uid) for uid in uids] == ["Completed", "Completed"]


async def test_many_absences_at_once_cancel_nothing_and_raise_the_alarm(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    uids = {f"crash-{number}": world.investigate(f"crash-{number}") for number in range(duties.HARMLESS_ABSENCES + 1)}
    await world.duties.resync()
    for uid in uids.values():
        await world.until(uid, None)
    for name in uids:
        world.delete(name)
    with caplog.at_level(logging.CRITICAL):
        await world.duties.resync()
    assert [record.__dict__["action"] for record in caplog.records] == ["resync_alarm"]
    assert [await world.ending(uid) for uid in uids.values()] == [None] * len(uids)


async def test_a_namespace_that_is_gone_or_made_again_ends_its_investigations_and_no_others(
    world: World, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    other = f"{cluster.served.own}-other"
    plane.create_namespace(other)
    admin = await client.connect(plane.kubeconfig(namespace=cluster.served.own), served=[other])
    only = queue.PLATFORM.llm_providers["only"].model_copy(update={"allowed_namespaces": ["*"]})
    served = World(plane, admin, database, queue.PLATFORM.model_copy(update={"llm_providers": {"only": only}}))
    present = world.investigate("kept")
    uids = {}
    for number in range(duties.HARMLESS_ABSENCES + 2):
        manifest = manifests.investigation(f"crash-{number}", namespace=other)
        uids[number] = str((await objects.create_investigation(admin, manifest)).investigation.metadata.uid)
    reconciling = asyncio.create_task(served.reconciler.run())
    await served.duties.resync()
    for uid in (present, *uids.values()):
        await served.until(uid, None)
    # The control plane has no controller that would end a namespace and what is in it.
    plane.kubectl("delete", "inv", "--all", namespace=other)
    plane.kubectl("delete", "namespace", other, "--wait=false", namespace=other)
    body = await calls.get(admin, f"/api/v1/namespaces/{other}")
    body["spec"]["finalizers"] = []
    await calls.request(admin, "PUT", f"/api/v1/namespaces/{other}/finalize", body=body)
    plane.create_namespace(other)
    await served.duties.resync()
    assert {await served.ending(uid) for uid in uids.values()} == {"Cancelled"}, "however many they are"
    assert await served.ending(present) is None
    again = await objects.create_investigation(admin, manifests.investigation("again", namespace=other))
    await served.duties.resync()
    await served.until(str(again.investigation.metadata.uid), None)
    reconciling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reconciling
    await admin.close()


async def test_namespace_without_rights_is_reported_once_and_delays_no_other(
    plane: Administrator, admin: client.Cluster, database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    own, others = admin.served.own, [f"{admin.served.own}-first", f"{admin.served.own}-last"]
    for name in others:
        plane.create_namespace(name)
    token = await accounts.create(admin, "operator")
    await accounts.empower(admin, "operator", rights.ALL)
    cluster = await client.connect(plane.kubeconfig(namespace=own, user="operator", token=token))
    async with patience.limit():
        while await rights.missing(cluster, rights.ALL):
            pass  # the API server has not heard of them yet
    names = (others[0], own, others[1])
    world = World(plane, replace(cluster, served=namespaces.Served(names=names, own=own, default=own)), database)
    world.create(manifests.chain())
    reconciling = asyncio.create_task(world.reconciler.run())
    uid = world.investigate("here")
    for _ in range(3):
        await world.duties.resync()
    await world.until(uid, None)
    refused = [
        record.__dict__["namespace"] for record in caplog.records if record.__dict__.get("action") == "duty_refused"
    ]
    assert refused == others, "each once"
    reconciling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reconciling
    await cluster.close()


async def test_a_database_of_another_cluster_is_left_alone(
    world: World, database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    await leader.remember_cluster(database, "another cluster's uid")
    uid = world.investigate("here")
    with caplog.at_level(logging.CRITICAL):
        await world.duties.resync()
    assert [record.__dict__["action"] for record in caplog.records] == ["other_cluster"]
    assert await world.ending(uid) == "unknown"


async def test_duties_wait_without_our_kinds_and_say_what_is_missing(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, admin: client.Cluster
) -> None:
    """As who may ask for any kind: to the others one that is not there is one that they may not ask for."""
    monkeypatch.setattr(duties, "EVERY_SECONDS", 0.0)
    uid = world.investigate("web-crash")
    monkeypatch.setattr(world.duties, "_cluster", admin)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "PLURAL", "notinstalled")
        running = asyncio.create_task(world.duties.run())
        async with patience.limit():
            while "duties_wait" not in [record.__dict__.get("action") for record in caplog.records]:
                assert not running.done()
                await asyncio.sleep(0)
    assert "the kinds of tarsy.dev/v1alpha1 are not installed: kubectl apply -f crds/" in caplog.text
    await world.until(uid, None)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_cancel_by_spec_reaches_the_store_and_the_generation_is_noted(
    world: World, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    uid = world.investigate("web-crash")
    await world.duties.resync()
    await world.until(uid, None)
    plane.kubectl(
        "patch", "inv", "web-crash", "--type=merge", '--patch={"spec":{"cancel":true}}', namespace=cluster.served.own
    )
    await world.duties.resync()
    await world.until(uid, "Cancelled")
    summary = await summaries.load(database, UUID(uid))
    assert summary is not None
    assert (summary.generation, summary.reason) == (2, "CancelledByUser")


async def test_status_written_after_its_object_was_read_is_not_taken_for_a_restored_cluster(
    world: World, cluster: client.Cluster, database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def write_status(summary: summaries.Summary) -> None:
        status = investigation_statuses.build(summary, secrets=NO_SECRETS)
        where = {"namespace": summary.namespace, "name": summary.name, "uid": str(summary.id)}
        assert await objects.apply_status(cluster, **where, status=status) == "written"
        await work.projected(database, summary.id, revision=summary.revision)

    uid = UUID(world.investigate("web-crash"))
    await world.duties.resync()
    await world.until(str(uid), None)
    await write_status(await queue.summary(database, uid))
    await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
    ended = await queue.summary(database, uid)
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("LOCK TABLE investigations"))
        key = investigations.Key(namespace=cluster.served.own, name="web-crash", uid=str(uid))
        reconciling = asyncio.create_task(world.reconciler.reconcile(key))
        await queue.blocked(database)  # it has read the object, whose status does not show the end
        await write_status(ended)
    await reconciling
    after = await queue.summary(database, uid)
    assert (after.revision, after.stale) == (ended.revision, False)
    assert "restored" not in caplog.text
