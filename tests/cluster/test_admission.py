"""What kubectl makes is admitted: once, with the chain of that moment, or refused with what there is."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support import manifests, queue
from tarsy.config import check, platform, providers
from tarsy.controller import investigations, workqueue
from tarsy.kube import client, watch
from tarsy.store import database as databases
from tarsy.store import history
from tarsy_dev import children
from tarsy_dev.controlplane import ControlPlane


def reconciler(
    cluster: client.Cluster, database: databases.Database, *, mask: Callable[[str], str] = str
) -> investigations.Reconciler:
    agents = dict.fromkeys(("KubernetesAgent", "AnotherAgent", "SynthesisAgent", "ChatAgent"), platform.Agent())
    provider = providers.GoogleProvider(type="google", model="gemini-2.5-flash")
    index = functools.partial(
        check.ChainIndex,
        platform=platform.Platform(
            defaults=platform.Defaults(llm_provider="only"), llm_providers={"only": provider}, agents=agents
        ),
        unusable_providers={},
    )
    return investigations.Reconciler(cluster=cluster, database=database, index=index, mask=mask, workers=1)


def key(seen: watch.Seen) -> investigations.Key:
    return investigations.Key(namespace=seen.namespace, name=seen.name, uid=seen.uid)


@pytest.fixture
def admission(cluster: client.Cluster, database: databases.Database) -> investigations.Reconciler:
    return reconciler(cluster, database)


class Kubectl:
    """What a person does in the test's namespace."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace

    def __call__(self, *args: str, manifest: dict[str, Any] | None = None) -> str:
        return self._plane.kubectl(*args, input=json.dumps(manifest) if manifest else None, namespace=self._namespace)

    def investigate(self, alert_type: str) -> watch.Seen:
        """Make an investigation; what the watch says of it."""
        manifest = manifests.investigation(alertType=alert_type)
        made = json.loads(self("create", "-f", "-", "-o", "json", manifest=manifest))["metadata"]
        return watch.Seen(
            namespace=made["namespace"], name=made["name"], uid=made["uid"], generation=made["generation"]
        )

    def chain(self, name: str, *alert_types: str, agent: str = "KubernetesAgent") -> None:
        manifest = manifests.chain(*alert_types, name=name, stages=[manifests.stage("analysis", agent=agent)])
        self("apply", "-f", "-", manifest=manifest)


@pytest.fixture
def kubectl(plane: ControlPlane, namespace: str) -> Kubectl:
    return Kubectl(plane, namespace)


async def test_what_kubectl_made_is_masked_beside_the_loop(
    cluster: client.Cluster, database: databases.Database, kubectl: Kubectl
) -> None:
    threads = set[threading.Thread]()

    def mask(text: str) -> str:
        threads.add(threading.current_thread())
        return text

    kubectl.chain("crash", "KubePodCrashLooping")
    seen = kubectl.investigate("KubePodCrashLooping")
    await reconciler(cluster, database, mask=mask).reconcile(key(seen))
    assert threads
    assert threading.main_thread() not in threads


async def test_what_kubectl_made_is_admitted_once_whoever_sees_it(
    admission: investigations.Reconciler,
    cluster: client.Cluster,
    database: databases.Database,
    kubectl: Kubectl,
) -> None:
    kubectl.chain("pod-crash", "PodCrash")
    seen = kubectl.investigate("PodCrash")
    another_replica = reconciler(cluster, database)
    await asyncio.gather(admission.reconcile(key(seen)), another_replica.reconcile(key(seen)))
    before = await queue.summary(database, seen.uid)
    await admission.reconcile(key(seen))
    await reconciler(cluster, database).reconcile(key(seen))
    assert await queue.summary(database, seen.uid) == before
    assert (before.state, before.chain_name, before.chain_namespace, before.stage_names) == (
        "queued",
        "pod-crash",
        seen.namespace,
        ("analysis",),
    )
    assert await queue.claim(database) is not None
    assert await queue.claim(database) is None


async def test_it_runs_the_chain_that_was_there_when_it_was_admitted(
    admission: investigations.Reconciler, database: databases.Database, kubectl: Kubectl
) -> None:
    kubectl.chain("pod-crash", "PodCrash")
    seen = kubectl.investigate("PodCrash")
    await admission.reconcile(key(seen))
    kubectl.chain("pod-crash", "PodCrash", agent="AnotherAgent")
    await admission.reconcile(key(seen))
    kubectl("delete", "chain", "pod-crash")
    journal = await queue.opened(database, await queue.claimed(database))
    assert [stage.agent for stage in journal.record.snapshot.chain.stages] == ["KubernetesAgent"]
    assert (await queue.summary(database, seen.uid)).chain_generation == 1


async def test_without_a_chain_it_is_refused_after_the_grace_with_the_types_there_are(
    admission: investigations.Reconciler,
    database: databases.Database,
    kubectl: Kubectl,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kubectl.chain("b", "b")
    kubectl.chain("a", "a", "c")
    seen = kubectl.investigate("X")
    with pytest.raises(workqueue.LaterError) as later:
        await admission.reconcile(key(seen))
    assert 0 < later.value.seconds <= 1
    assert await history.summary(database, UUID(seen.uid)) is None

    monkeypatch.setattr(investigations, "CHAIN_GRACE", 0.0)
    await admission.reconcile(key(seen))
    refused = await queue.summary(database, seen.uid)
    assert (refused.state, refused.ending, refused.reason) == ("ended", "Failed", "ChainNotFound")
    assert refused.message == "No chain found for alert type 'X'. Available alert types: a, b, c"
    assert await queue.claim(database) is None


async def test_a_chain_that_comes_within_the_grace_is_found(
    admission: investigations.Reconciler, database: databases.Database, kubectl: Kubectl
) -> None:
    seen = kubectl.investigate("PodCrash")
    with pytest.raises(workqueue.LaterError):
        await admission.reconcile(key(seen))
    kubectl.chain("pod-crash", "PodCrash")
    await admission.reconcile(key(seen))
    assert (await queue.summary(database, seen.uid)).chain_name == "pod-crash"


async def test_an_object_that_is_gone_or_another_one_by_now_is_left_alone(
    admission: investigations.Reconciler, database: databases.Database, kubectl: Kubectl
) -> None:
    kubectl.chain("pod-crash", "PodCrash")
    first = kubectl.investigate("PodCrash")
    kubectl("delete", "inv", "web-crash")
    await admission.reconcile(key(first))
    second = kubectl.investigate("PodCrash")
    await admission.reconcile(key(first))
    for left_alone in (first, second):
        assert await history.summary(database, UUID(left_alone.uid)) is None
    await admission.reconcile(key(second))
    assert (await queue.summary(database, second.uid)).name == "web-crash"


@pytest.fixture
def nowhere(plane: ControlPlane, tmp_path: Path) -> Path:
    """A kubeconfig for an API server that is away."""
    (nobody,) = children.free_ports(1)
    path = tmp_path / "config"
    path.write_text(plane.kubeconfig().read_text().replace(plane.url, f"https://127.0.0.1:{nobody}"))
    return path


async def test_while_cluster_or_database_is_away_nothing_is_lost_and_nothing_is_refused(
    admission: investigations.Reconciler,
    cluster: client.Cluster,
    database: databases.Database,
    kubectl: Kubectl,
    nowhere: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(investigations, "CHAIN_GRACE", 0.0)
    kubectl.chain("pod-crash", "PodCrash")
    seen = kubectl.investigate("PodCrash")
    no_cluster = await client.connect(nowhere)
    with pytest.raises(client.ClusterDownError):
        await reconciler(no_cluster, database).reconcile(key(seen))
    await no_cluster.close()
    no_database = databases.Database(f"postgresql://postgres@127.0.0.1:{children.free_ports(1)[0]}/postgres")
    away = reconciler(cluster, no_database)
    for _ in range(2):  # what was not kept is not remembered as admitted
        with pytest.raises(databases.StoreDownError):
            await away.reconcile(key(seen))
    await no_database.close()
    assert await history.summary(database, UUID(seen.uid)) is None
    await admission.reconcile(key(seen))
    assert (await queue.summary(database, seen.uid)).state == "queued"
