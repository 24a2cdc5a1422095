"""How owners are looked up: how often the API server is asked, what it may answer, and what is not known then."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support import answers, time_limits, waiting
from tarsy.api.alerts import owners as alert_owners
from tarsy.config.model import webhooks
from tarsy.ingest import owners

OURS = ("token", "TARSY_WEBHOOK_TOKEN")
THIS = webhooks.Ingest(this_cluster=webhooks.ThisCluster(name="a"))


def reference(kind: str, name: str, api: str = "apps/v1", **fields: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "name": name, "uid": f"uid of {name}", "controller": True, **fields}


def pod(name: str, *references: Any, image: str = "web:1", labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "uid": f"uid of {name}", "ownerReferences": list(references)}
    return {"metadata": metadata | {"labels": labels}, "spec": {"containers": [{"image": image}]}}


def behind_proxy(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod with a mesh's proxy before its program."""
    pod["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "istio/proxyv2:1"})
    return pod


class Cluster:
    """An API server with the objects that a test puts into it."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {
            "pods/web-1": pod("web-1", reference("ReplicaSet", "web-5d8")),
            "replicasets/web-5d8": pod("web-5d8", reference("Deployment", "web")),
        }
        self.asked = Counter[str]()
        self.answer: Any = None
        """The answer to everything, if it is set."""
        self.answers = asyncio.Event()
        """Until it is set, nothing is answered."""
        self.answers.set()
        self.now = 0.0

    async def __call__(self, request: web.Request) -> tuple[int, Any]:
        name = "/".join(request.path.split("/")[-2:])
        self.asked[name] += 1
        await self.answers.wait()
        if self.answer is not None:
            return self.answer  # type: ignore[no-any-return]
        manifest = self.objects.get(name)
        return (200, manifest) if manifest else answers.refusal(404, f"{name} not found")

    def clock(self) -> float:
        return self.now


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
async def finder(cluster: Cluster, tmp_path: Path) -> AsyncIterator[alert_owners.Owners]:
    async with answers.answering(cluster, folder=tmp_path) as connected:
        yield alert_owners.Owners(connected, settings=lambda: THIS, clock=cluster.clock)


async def find(finder: alert_owners.Owners, *pods: str, source: tuple[str, str] = OURS, **labels: str) -> list[str]:
    """The owners of pods of the namespace shop, or the kinds of the reasons why they are unknown."""
    named = {name: {"namespace": "shop", "pod": name, "cluster": "a"} | labels for name in pods}
    by_pod = await finder.find_all(named, source=source, mask=str)
    return [owner.kind if isinstance(owner, owners.UnknownError) else str(owner) for owner in by_pod.values()]


async def test_each_object_is_read_once_per_cache_period_for_all_lookups(
    finder: alert_owners.Owners, cluster: Cluster
) -> None:
    for number in range(2, 40):
        cluster.objects[f"pods/web-{number}"] = pod(f"web-{number}", reference("ReplicaSet", "web-5d8"))
    names = [f"web-{number}" for number in range(1, 40)]
    results = await asyncio.gather(*(find(finder, *names) for _ in range(3)))
    assert {owner for each in results for owner in each} == {"Deployment shop/web"}
    assert set(cluster.asked.values()) == {1}
    assert len(cluster.asked) == 40
    cluster.now += alert_owners.FOUND_SECONDS
    await find(finder, "web-1")
    assert (cluster.asked["pods/web-1"], cluster.asked["pods/web-2"]) == (2, 1)


@pytest.mark.parametrize(
    ("changed", "owner"),
    [
        ({"pods/web-1": pod("web-1")}, "Pod shop/web-1"),
        ({"pods/web-1": pod("web-1", reference("Node", "n1", "v1"))}, "Pod shop/web-1"),
        ({"pods/web-1": pod("web-1", reference("StatefulSet", "web"))}, "StatefulSet shop/web"),
        ({"replicasets/web-5d8": pod("web-5d8", reference("Rollout", "web", "argoproj.io/v1"))}, "Rollout shop/web"),
        ({"replicasets/web-5d8": None}, "absent"),
        ({"replicasets/web-5d8": pod("web-5d8") | {"metadata": pod("web-5d8")["metadata"] | {"uid": "x"}}}, "absent"),
        ({"replicasets/web-5d8": pod("web-5d8", reference("ReplicaSet", "web-5d8"))}, "absent"),
        ({"pods/web-1": pod("web-1", image="r/postgres-exporter:1")}, "unnamed"),
        ({"pods/web-1": pod("web-1", image="r/ksm/kube-state-metrics:v2@sha256:0")}, "Node n1"),
        ({"pods/web-1": behind_proxy(pod("web-1", image="r/postgres-exporter:1"))}, "unnamed"),
    ],
    ids=str,
)
async def test_controllers_are_followed_to_the_last_that_is_named(
    finder: alert_owners.Owners, cluster: Cluster, changed: dict[str, Any], owner: str
) -> None:
    cluster.objects |= changed
    assert await find(finder, "web-1", node="n1") == [owner]


async def test_a_uid_has_to_fit(finder: alert_owners.Owners, cluster: Cluster) -> None:
    assert await find(finder, "web-1", uid="uid of web-1") == ["Deployment shop/web"]
    assert await find(finder, "web-1", uid="uid of another") == ["absent"]
    assert await find(finder, "web-1") == ["Deployment shop/web"]


@pytest.mark.parametrize(
    ("source", "labels"),
    [
        (("token", "ingest.tokens.0.token_file"), {}),
        (("author", "TARSY_WEBHOOK_TOKEN"), {}),
        (OURS, {"cluster": "b"}),
        (OURS, {"cluster": ""}),
    ],
)
async def test_owners_of_another_cluster_are_not_looked_up(
    finder: alert_owners.Owners, cluster: Cluster, source: tuple[str, str], labels: dict[str, str]
) -> None:
    ksm = {"node": "n1", "container": "kube-state-metrics"}
    assert await find(finder, "web-1", source=source, **labels) == ["elsewhere"]
    assert await find(finder, "web-1", source=source, deployment="web", **labels) == ["Deployment shop/web"]
    assert await find(finder, "kube-state-metrics-0", source=source, **ksm, **labels) == ["Node n1"]
    assert not cluster.asked


async def test_a_missing_right_is_asked_for_once_in_a_while(finder: alert_owners.Owners, cluster: Cluster) -> None:
    names = [f"web-{number}" for number in range(1, 1000)]
    cluster.answer = answers.refusal(403, "pods is forbidden")
    assert list(finder.facts()) == []
    assert set(await find(finder, *names)) == {"forbidden"}
    (refusal,) = finder.facts()
    assert (refusal.kind, refusal.name, refusal.state) == ("owners", "Pod", "refused")
    asked = cluster.asked.total()
    assert asked <= alert_owners.AT_ONCE
    cluster.answer = None
    assert await find(finder, "web-1") == ["forbidden"]
    assert cluster.asked.total() == asked
    cluster.now += alert_owners.NOT_FOUND_SECONDS
    cluster.answer = answers.refusal(403, "pods is forbidden")
    assert await find(finder, "web-1") == ["forbidden"]
    assert list(finder.facts()) == [refusal], "since the first refusal"
    cluster.answer = None
    cluster.now += alert_owners.NOT_FOUND_SECONDS
    assert await find(finder, "web-1") == ["Deployment shop/web"]
    assert list(finder.facts()) == []


async def test_cached_owner_does_not_hide_that_the_right_is_missing(
    finder: alert_owners.Owners, cluster: Cluster
) -> None:
    assert await find(finder, "web-1") == ["Deployment shop/web"]
    cluster.answer = answers.refusal(403, "pods is forbidden")
    assert await find(finder, "web-2") == ["forbidden"]
    cluster.now += alert_owners.NOT_FOUND_SECONDS
    assert await find(finder, "web-1") == ["Deployment shop/web"]
    assert [fact.name for fact in finder.facts()] == ["Pod"]


@pytest.mark.parametrize(
    "answer",
    [
        (500, "away"),
        (200, "a proxy's page"),
        (200, {}),
        (200, pod("another")),
        (200, {"metadata": pod("web-1")["metadata"]}),
        (200, pod("web-1", {"controller": True})),
        (200, pod("web-1") | {"spec": {"containers": []}}),
        answers.refusal(422, "no"),
    ],
    ids=json.dumps,
)
async def test_invalid_answer_leaves_the_owner_unknown_and_is_not_cached(
    finder: alert_owners.Owners, cluster: Cluster, answer: Any
) -> None:
    cluster.answer = answer
    assert await find(finder, "web-1") == ["unavailable"]
    cluster.answer = None
    assert await find(finder, "web-1") == ["Deployment shop/web"]


async def test_owners_found_in_time_are_kept_if_other_lookups_are_late(
    finder: alert_owners.Owners, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await find(finder, "web-1") == ["Deployment shop/web"]
    cluster.answers.clear()
    limits, asked = time_limits.TimeLimits(monkeypatch), cluster.asked.total()
    finding = asyncio.create_task(find(finder, "web-1", *(f"late-{number}" for number in range(500))))
    await waiting.until(lambda: cluster.asked.total() > asked)
    limits.expire(alert_owners.SECONDS)
    assert await finding == ["Deployment shop/web", *("unavailable" for _ in range(500))]
    assert cluster.asked.total() <= 2 + alert_owners.AT_ONCE
    cluster.answers.set()
