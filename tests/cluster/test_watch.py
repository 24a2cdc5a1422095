"""kopf as a watcher: what is there and what comes is seen on the main loop, and its thread ends when told to."""

from __future__ import annotations

import asyncio
import json
import os

import pytest
from support import accounts
from support.watches import create, watching
from tarsy.kube import client, watch
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator


async def test_a_user_without_a_name_can_watch(
    plane: Administrator, cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose user is a number."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 65532)
    async with watching(cluster) as seen:
        await seen.open(now=True)


async def test_objects_that_exist_and_objects_that_come_are_seen_and_left_as_they_are(
    plane: Administrator, cluster: client.Cluster
) -> None:
    before = create(plane, cluster.served.own, "before")
    async with watching(cluster) as seen:
        seen_object = await seen.next_of(before["metadata"]["uid"])
        assert seen_object == watch.Seen(
            namespace=cluster.served.own, name="before", uid=before["metadata"]["uid"], generation=1
        )
        after = create(plane, cluster.served.own, "after")
        assert (await seen.next_of(after["metadata"]["uid"])).name == "after"
        plane.kubectl("delete", "inv", "after", namespace=cluster.served.own)
        again = create(plane, cluster.served.own, "after")
        assert (await seen.next_of(again["metadata"]["uid"])).name == "after"
    now = json.loads(plane.kubectl("get", "inv", "before", "-o", "json", namespace=cluster.served.own))
    assert now == before


async def test_each_served_namespace_is_watched_even_if_created_later(
    plane: Administrator, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    later = f"{namespace}-later"
    cluster = await client.connect(plane.kubeconfig(namespace=namespace), served=[later])
    async with watching(cluster) as seen:
        await seen.open(now=True)
        first = create(plane, namespace, "first")
        await seen.next_of(first["metadata"]["uid"])
        plane.create_namespace(later)
        second = create(plane, later, "second")
        assert (await seen.next_of(second["metadata"]["uid"])).namespace == later
    assert seen.namespaces == {namespace, later}
    await cluster.close()


async def test_watch_refused_in_one_namespace_delays_no_other_namespace(
    plane: Administrator, admin: client.Cluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "REFUSED_SECONDS", 0.0)
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
        await seen.next_of(here["metadata"]["uid"])
        there = create(plane, other, "there")
        elsewhere = await client.connect(plane.kubeconfig(namespace=other))
        await accounts.grant(elsewhere, f"system:serviceaccount:{own}:watcher", may=may)
        assert (await seen.next_of(there["metadata"]["uid"])).namespace == other, "served once the right is there"
        await seen.open(now=True)
        async with patience.limit():
            while [fact.state for fact in seen.watcher.facts()] != ["open"]:  # noqa: ASYNC110 - set in another thread
                await asyncio.sleep(0.01)
        await elsewhere.close()
    refusals = [record.__dict__ for record in caplog.records if record.__dict__.get("action") == "watch_refused"]
    assert sorted((refusal["namespace"], refusal["kind"]) for refusal in refusals) == [
        (other, "agentchains"),
        (other, "alertinvestigations"),
    ], "each is told once"
    await cluster.close()
