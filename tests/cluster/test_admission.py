"""Admission of kubectl's objects: once, with the chain of that moment, or refused with a list of what exists."""

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
from support import former, manifests, queue
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, providers
from tarsy.controller import investigations, workqueue
from tarsy.kube import client, objects, watch
from tarsy.store.base import databases
from tarsy.store.reads import summaries
from tarsy_dev import children
from tarsy_dev.controlplane import Administrator


def reconciler(
    cluster: client.Cluster, database: databases.Database, *, mask: Callable[[str], str] = str
) -> investigations.Reconciler:
    agents = dict.fromkeys(("KubernetesAgent", "AnotherAgent", "SynthesisAgent", "ChatAgent"), platforms.Agent())
    provider = providers.GoogleProvider(type="google", model="gemini-2.5-flash")
    index = functools.partial(
        chain_index.ChainIndex,
        platform=platforms.Platform(
            defaults=platforms.Defaults(llm_provider="only"), llm_providers={"only": provider}, agents=agents
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
    """Actions of a user in the test's namespace."""

    def __init__(self, plane: Administrator, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace

    def __call__(self, *args: str, manifest: dict[str, Any] | None = None) -> str:
        return self._plane.kubectl(*args, input=json.dumps(manifest) if manifest else None, namespace=self._namespace)

    def investigate(self, alert_type: str) -> watch.Seen:
        """Make an investigation; what the watch says of it."""
        manifest = manifests.investigation(alertType=alert_type)
        made = self._plane.create(manifest, namespace=self._namespace)["metadata"]
        return watch.Seen(
            namespace=made["namespace"], name=made["name"], uid=made["uid"], generation=made["generation"]
        )

    def chain(self, name: str, *alert_types: str, agent: str = "KubernetesAgent") -> None:
        manifest = manifests.chain(*alert_types, name=name, stages=[manifests.stage("analysis", agent=agent)])
        self("apply", "-f", "-", manifest=manifest)


@pytest.fixture
def kubectl(plane: Administrator, namespace: str) -> Kubectl:
    return Kubectl(plane, namespace)


async def test_object_made_with_kubectl_is_masked_off_the_event_loop(
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


async def test_object_made_with_kubectl_is_admitted_once_by_any_replica(
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


async def test_investigation_runs_the_chain_as_of_its_admission(
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


async def test_object_without_chain_is_refused_after_grace_period_with_known_alert_types(
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
    assert await summaries.load(database, UUID(seen.uid)) is None

    monkeypatch.setattr(investigations, "CHAIN_GRACE", 0.0)
    await admission.reconcile(key(seen))
    refused = await queue.summary(database, seen.uid)
    assert (refused.state, refused.ending, refused.reason) == ("ended", "Failed", "ChainNotFound")
    assert refused.message == "No chain found for alert type 'X'. Available alert types: a, b, c"
    assert await queue.claim(database) is None


async def test_chain_created_within_the_grace_period_is_found(
    admission: investigations.Reconciler, database: databases.Database, kubectl: Kubectl
) -> None:
    seen = kubectl.investigate("PodCrash")
    with pytest.raises(workqueue.LaterError):
        await admission.reconcile(key(seen))
    kubectl.chain("pod-crash", "PodCrash")
    await admission.reconcile(key(seen))
    assert (await queue.summary(database, seen.uid)).chain_name == "pod-crash"


async def test_deleted_or_replaced_object_is_not_admitted(
    admission: investigations.Reconciler, database: databases.Database, kubectl: Kubectl
) -> None:
    kubectl.chain("pod-crash", "PodCrash")
    first = kubectl.investigate("PodCrash")
    kubectl("delete", "inv", "web-crash")
    await admission.reconcile(key(first))
    second = kubectl.investigate("PodCrash")
    await admission.reconcile(key(first))
    for left_alone in (first, second):
        assert await summaries.load(database, UUID(left_alone.uid)) is None
    await admission.reconcile(key(second))
    assert (await queue.summary(database, second.uid)).name == "web-crash"


@pytest.fixture
def nowhere(plane: Administrator, tmp_path: Path) -> Path:
    """A kubeconfig for an API server that is away."""
    (nobody,) = children.free_ports(1)
    path = tmp_path / "config"
    path.write_text(plane.kubeconfig().read_text().replace(plane.url, f"https://127.0.0.1:{nobody}"))
    return path


async def test_outage_of_cluster_or_database_loses_nothing_and_refuses_nothing(
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
    assert await summaries.load(database, UUID(seen.uid)) is None
    await admission.reconcile(key(seen))
    assert (await queue.summary(database, seen.uid)).state == "queued"


def read_object(kubectl: Kubectl, name: str) -> Any:
    return json.loads(kubectl("get", "inv", name, "-o", "json"))


def seen(manifest: Any) -> watch.Seen:
    """The watch's word on that object."""
    metadata = manifest["metadata"]
    return watch.Seen(
        namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"], generation=metadata["generation"]
    )


@pytest.mark.usefixtures("own_plane")
async def test_unreadable_object_ends_failed_once_for_its_generation(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    kubectl: Kubectl,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = manifests.investigation("unreadable", startsAt="2026-11-21T20:26:18+24:00")
    await asyncio.to_thread(former.store, plane, made, namespace=cluster.served.own)
    first = read_object(kubectl, "unreadable")
    await reconciler(cluster, database).reconcile(key(seen(first)))
    failed = read_object(kubectl, "unreadable")
    status = failed["status"]
    remedy = (
        "this version of TARSy cannot read the object: correct it, or delete it and create another: spec.startsAt: "
    )
    assert (status["phase"], status["observedGeneration"]) == ("Failed", 1)
    assert status["message"].startswith(remedy)
    conditions = {condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]}
    assert conditions == {
        "Accepted": ("False", "Unreadable"),
        "Finished": ("True", "Unreadable"),
        "Failed": ("True", "Unreadable"),
        "Stalled": ("True", "Unreadable"),
    }
    assert "unreadable" in kubectl("get", "events", "--field-selector=reason=Failed", "-o", "name")
    listed = await objects.list_investigations(cluster, namespace=cluster.served.own, unfinished=True)
    assert [investigation.name for investigation in listed] == []  # so a new process does not try it again
    assert await queue.rows(database, "SELECT 1 FROM investigations") == []

    await reconciler(cluster, database).reconcile(key(seen(first)))  # of another replica
    assert read_object(kubectl, "unreadable") == failed
    assert [record.__dict__.get("action") for record in caplog.records].count("investigation_unreadable") == 1

    kubectl("patch", "inv", "unreadable", "--type=merge", "--patch", '{"spec": {"ttlSecondsAfterFinished": 5}}')
    await reconciler(cluster, database).reconcile(key(seen(first)))
    assert read_object(kubectl, "unreadable")["status"]["observedGeneration"] == 2


@pytest.mark.usefixtures("own_plane")
async def test_admitted_object_that_becomes_unreadable_continues_and_can_be_cancelled(
    plane: Administrator,
    cluster: client.Cluster,
    database: databases.Database,
    kubectl: Kubectl,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As an older version beside a newer one, whose kinds have more fields."""
    kubectl.chain("pod-crash", "PodCrash")
    made = kubectl.investigate("PodCrash")
    await reconciler(cluster, database).reconcile(key(made))
    extra = {"type": "string", "maxLength": 5}
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/newer"
    crd = ("crd", "alertinvestigations.tarsy.dev", "--type=json", "--patch")
    plane.kubectl("patch", *crd, json.dumps([{"op": "add", "path": path, "value": extra}]))
    try:
        patch = json.dumps({"spec": {"newer": "field", "cancel": True}})
        while "newer" not in read_object(kubectl, made.name)["spec"]:  # a change of a kind is in force some time later
            kubectl("patch", "inv", made.name, "--type=merge", "--patch", patch)
        before = read_object(kubectl, made.name).get("status")
        await reconciler(cluster, database).reconcile(key(made))
        assert (await queue.summary(database, made.uid)).cancel == "user"
        assert read_object(kubectl, made.name).get("status") == before
    finally:
        plane.kubectl("patch", *crd, json.dumps([{"op": "remove", "path": path}]))
        while "newer" in read_object(kubectl, made.name)["spec"]:
            pass
        plane.wait_for_kinds()
