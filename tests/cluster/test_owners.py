"""Groups by owner, with real objects: alerts about one workload or node are one investigation."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import apis, installed, manifests, rights
from tarsy.api.alerts import owners as alert_owners
from tarsy.config.model import webhooks
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

TYPE = "kubernetes"
START = datetime(2026, 11, 26, 18, tzinfo=UTC)
TOKEN, OTHERS = "t" * 40, "o" * 40
KSM = {"container": "kube-state-metrics", "job": "kube-state-metrics", "instance": "10.0.0.9:8080"}
CONTAINERS = {"containers": [{"name": "web", "image": "registry.example/web:1"}]}
JOB = {"template": {"spec": {"restartPolicy": "Never", **CONTAINERS}}}
ROLLOUT = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout", "name": "web", "uid": "r", "controller": True}


@pytest.fixture
async def owning(chart_accounts: installed.Installed) -> AsyncIterator[client.Cluster]:
    """The product's client, with the rights of a chart that may read owners."""
    cluster = await client.connect(await chart_accounts.kubeconfig(installed.OWNERS))
    yield cluster
    await cluster.close()


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to look owners up than a notification may wait."""
    monkeypatch.setattr(alert_owners, "SECONDS", 60.0)


@contextlib.asynccontextmanager
async def replica(
    cluster: client.Cluster, database: databases.Database, folder: Path, *, name: str = ""
) -> AsyncIterator[aiohttp.ClientSession]:
    """An API whose one Alertmanager is this cluster's, and of which another is another's, by its token."""
    (folder / "token").write_text(OTHERS)
    others = webhooks.Token(token_file=folder / "token", namespaces=[cluster.served.own], source="others")
    ingest = webhooks.Ingest(tokens=[others], this_cluster=webhooks.ThisCluster(name=name))
    parts = apis.parts(cluster=cluster, database=database, token=TOKEN, ingest=ingest)
    async with apis.served(parts, headers={"Content-Type": "application/json"}) as session:
        yield session


class Objects:
    """The objects of a namespace; the controllers of Kubernetes make their pods."""

    def __init__(self, plane: Administrator, namespace: str) -> None:
        self.namespace = namespace
        self._plane = plane

    def create(
        self, kind: str, name: str, spec: dict[str, Any], *, api: str = "apps/v1", owner: Any = None, **metadata: Any
    ) -> dict[str, Any]:
        """Create an object; the reference to it as a controller."""
        references = {"ownerReferences": [owner]} if owner else {}
        manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": name, **references, **metadata}, "spec": spec}
        made = self._plane.create(manifest, namespace=self.namespace)
        return {"apiVersion": api, "kind": kind, "name": name, "uid": made["metadata"]["uid"], "controller": True}

    def workload(self, name: str, pods: int, *, kind: str = "Deployment", owner: Any = None) -> None:
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": CONTAINERS}
        spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
        self.create(kind, name, spec, owner=owner)

    def pods(self, number: int) -> dict[str, list[str]]:
        """Wait until so many pods of workloads are there; their names, by the workload's."""
        pods: dict[str, list[str]] = {}
        while sum(map(len, pods.values())) < number:
            path = "{range .items[*]}{.metadata.labels.app}{.metadata.labels.job-name} {.metadata.name} {end}"
            words = self._plane.kubectl("get", "pods", "-o", f"jsonpath={path}", namespace=self.namespace).split()
            pods = {}
            for workload, name in zip(words[::2], words[1::2], strict=True):
                pods.setdefault(workload, []).append(name)
        return pods


def alert(number: int, *, status: str = "firing", name: str = TYPE, **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, "alert_type": TYPE, **labels},
        "annotations": {"summary": f"tale{number}"},
        "startsAt": START.isoformat(),
        "fingerprint": f"{number:016x}",
    }


async def notify(api: aiohttp.ClientSession, *alerts: dict[str, Any], token: str = TOKEN) -> list[dict[str, Any]]:
    body = json.loads(manifests.notification()) | {"alerts": alerts, "groupKey": "g"}
    headers = {"Authorization": f"Bearer {token}"}
    while True:  # a sender sends again while other notifications are being taken
        async with api.post("/api/v1/webhooks/alertmanager", data=json.dumps(body), headers=headers) as response:
            receipt = await response.json()
        if response.status == 200:
            return list(receipt["alerts"])
        assert response.status == 503, receipt
        await asyncio.sleep(0.1)


def chain(plane: Administrator, cluster: client.Cluster, **spec: Any) -> None:
    plane.create(manifests.chain(TYPE, grouping={"by": "Owner"}, **spec), namespace=cluster.served.own)


async def test_alerts_with_the_same_owner_join_one_investigation_and_others_do_not(
    plane: Administrator, owning: client.Cluster, database: databases.Database, tmp_path: Path
) -> None:
    chain(plane, owning)
    here, there = Objects(plane, owning.served.own), Objects(plane, f"{owning.served.own}-b")
    plane.create_namespace(there.namespace)
    here.workload("web", 2)
    here.workload("canary", 1, kind="ReplicaSet", owner=ROLLOUT)
    nightly = here.create("CronJob", "nightly", {"schedule": "0 3 * * *", "jobTemplate": {"spec": JOB}}, api="batch/v1")
    here.create("Job", "nightly-1", JOB, api="batch/v1", owner=nightly)
    pods = here.pods(4)
    bare_uid = here.create("Pod", "bare", CONTAINERS, api="v1", labels={"app": "bare"})["uid"]
    here.create("Pod", "metrics-0", CONTAINERS, api="v1", labels={"app": "kube-state-metrics"})
    there.create("Pod", pods["web"][0], CONTAINERS, api="v1")

    a, b = {"namespace": here.namespace}, {"namespace": there.namespace}
    ksm = KSM | a | {"pod": "metrics-0"}
    causes: list[list[dict[str, str]]] = [
        [
            a | {"pod": pods["web"][0]},
            a | {"pod": pods["web"][1], "node": "n1"},
            a | {"deployment": "web"},
            KSM | a | {"deployment": "web", "pod": "metrics-0"},
            ksm | {"exported_namespace": here.namespace, "exported_pod": pods["web"][0]},
        ],
        [b | {"pod": pods["web"][0]}],
        [b | {"deployment": "web"}],
        [a | {"pod": pods["canary"][0]}],
        [a | {"pod": "bare"}, a | {"pod": "bare", "uid": bare_uid}],
        [a | {"pod": pods["nightly-1"][0]}, a | {"job_name": "nightly-1"}, a | {"cronjob": "nightly"}],
        [ksm | {"node": "n1"}, ksm | {"node": "n1", "condition": "Ready"}, {"node": "n1"}],
        [ksm | {"node": "n2"}],
        [a | {"deployment": "web", "cluster": "other"}],
    ]
    alone = [
        a | {"pod": "gone"},
        a | {"pod": "bare", "uid": "another"},
        a | {"pod": "bare", "cluster": "other"},
        ksm,
        ksm | {"node": "n1", "persistentvolume": "pv-1"},
        a | {"job": "nightly-1"},
    ]
    labels = [*(each for cause in causes for each in cause), *alone]
    async with replica(owning, database, tmp_path) as api:
        receipts = await notify(api, *(alert(number, **each) for number, each in enumerate(labels)))
        left = [receipt["id"] for receipt in receipts]
        for cause in causes:
            ids, left = left[: len(cause)], left[len(cause) :]
            assert len(set(ids)) == 1, cause
        assert len({receipt["id"] for receipt in receipts}) == len(causes) + len(alone)
        reasons = [receipt["reason"] for receipt in receipts[-len(alone) :]]
        assert all(reason.startswith("investigated alone: ") for reason in reasons)
        assert f"Pod {here.namespace}/gone is not in the cluster" in reasons[0]
        assert not any(receipt["reason"] for receipt in receipts[: -len(alone)])
        elsewhere = await notify(
            api, alert(100, **a, deployment="web"), alert(101, **a, pod=pods["web"][0]), token=OTHERS
        )
        assert not {receipt["id"] for receipt in elsewhere} & {receipt["id"] for receipt in receipts}, (
            "another cluster's"
        )
        assert "its sender is not among ingest.this_cluster.senders" in elsewhere[1]["reason"]
        assert elsewhere[0]["reason"] == ""


async def test_alerts_of_a_pod_are_investigated_alone_without_the_right_and_say_so(
    plane: Administrator,
    owning: client.Cluster,
    chart_accounts: installed.Installed,
    database: databases.Database,
    tmp_path: Path,
) -> None:
    chain(plane, owning)
    objects = Objects(plane, owning.served.own)
    objects.workload("web", 2)
    pods = objects.pods(2)["web"]
    labels = {"namespace": owning.served.own}
    right = rights.Right(verb="get", group="apps", resource="replicasets")
    async with chart_accounts.without(right, part=installed.OWNERS):
        async with patience.limit():  # until the API server has heard of it
            for number in range(100, 10_000):
                async with replica(owning, database, tmp_path) as api:
                    (answer,) = await notify(api, alert(number, pod=pods[0], **labels))
                if answer["reason"]:
                    break
        assert "TARSy lacks the right to get ReplicaSets: set rbac.owners of the chart" in answer["reason"]
        async with replica(owning, database, tmp_path) as api:
            told_alone = await notify(api, *(alert(number, pod=pod, **labels) for number, pod in enumerate(pods)))
            (named,) = await notify(api, alert(5, deployment="other", **labels))
        assert [receipt["outcome"] for receipt in told_alone] == ["created", "created"]
        assert named["reason"] == ""
