"""Alerts that no chain takes, from the webhook to the warnings and to the event at the operator's Deployment."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from support import apis, manifests, queue
from support.masking import NO_SECRETS
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, webhooks
from tarsy.controller import unserved_events
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.intake import unserved
from tarsy_dev.controlplane import Administrator

TOKEN = "ghp_" + "a1B2c3D4e5" * 4
JSON = {"Content-Type": "application/json"}
REMEDY = "name the type in alertTypes of a chain, or set ingest.default_alert_type"
DEPLOYMENT = "tarsy"


@pytest.fixture
async def api(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    parts = apis.parts(cluster=cluster, database=database, mask=platforms.AlertMasking().masker(NO_SECRETS).text)
    async with apis.served(parts, headers=JSON) as session:
        yield session


async def notify(api: aiohttp.ClientSession, *types: str) -> None:
    """Send a notification with one alert of each type."""
    body = json.loads(manifests.notification())
    (alert,) = body["alerts"]
    body["alerts"] = [
        alert | {"labels": {"alertname": name}, "fingerprint": f"{number:016x}"} for number, name in enumerate(types)
    ]
    async with api.post("/api/v1/webhooks/alertmanager", data=json.dumps(body)) as response:
        receipt = await response.json()
        assert (response.status, receipt["counts"]["ignored"]) == (200, len(types)), receipt


async def warned(api: aiohttp.ClientSession) -> dict[str, str]:
    """The warnings about alerts that no chain takes, by their names."""
    async with api.get("/api/v1/system/warnings") as response:
        items = (await response.json())["items"]
    return {warning["name"]: warning["message"] for warning in items if warning["kind"] == "alert-type"}


async def test_alert_types_without_a_chain_are_warnings_until_a_chain_takes_them(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster
) -> None:
    assert await warned(api) == {}
    for _ in range(3):
        await notify(api, "KubePodCrashLooping", TOKEN, "")
    warnings_by_name = await warned(api)
    message = (
        f"no chain takes alerts of this type in namespace {cluster.served.own}: 3 alerts in the last day: {REMEDY}"
    )
    assert warnings_by_name.pop("KubePodCrashLooping") == message
    assert warnings_by_name.pop("(no type)") == message
    ((masked, _),) = warnings_by_name.items()
    assert "[MASKED" in masked
    assert TOKEN[4:20] not in json.dumps(warnings_by_name)
    plane.create(manifests.chain("KubePodCrashLooping"), namespace=cluster.served.own)
    assert "KubePodCrashLooping" not in await warned(api)


def deployment() -> dict[str, Any]:
    labels = {"app": DEPLOYMENT}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "tarsy", "image": "tarsy"}]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": DEPLOYMENT},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": pod},
    }


def telling(cluster: client.Cluster, database: databases.Database, **ingest: Any) -> unserved_events.UnservedEvents:
    index = functools.partial(chain_index.ChainIndex, platform=queue.PLATFORM, unusable_providers={})
    return unserved_events.UnservedEvents(
        cluster=cluster,
        database=database,
        deployment=DEPLOYMENT,
        index=index,
        ingest=lambda: webhooks.Ingest(**ingest),
    )


async def test_deployment_event_names_unserved_alert_types_once_an_hour_over_all_replicas(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    kubectl = functools.partial(plane.kubectl, namespace=cluster.served.own)
    kubectl(
        "create",
        "-f",
        "-",
        input=json.dumps({"kind": "List", "apiVersion": "v1", "items": [deployment(), manifests.chain("Taken")]}),
    )
    first, second = telling(cluster, database), telling(cluster, database)
    await first.post()
    await unserved.count(database, {"Watchdog": 4, "Taken": 1, unserved.OTHERS: 2}, namespace=cluster.served.own)
    for replica in (first, second, first):
        await replica.post()
        await unserved.count(database, {"Watchdog": 1}, namespace=cluster.served.own)

    def events() -> list[dict[str, Any]]:
        uid = json.loads(kubectl("get", "deployment", DEPLOYMENT, "-o", "json"))["metadata"]["uid"]
        events_read = json.loads(kubectl("get", "events", "-o", "json", f"--field-selector=involvedObject.uid={uid}"))
        return [
            listed_event for listed_event in events_read["items"] if listed_event["source"].get("component") == "tarsy"
        ]

    (event,) = events()
    assert (event["type"], event["reason"], event["involvedObject"]["kind"]) == (
        "Warning",
        "AlertsUnserved",
        "Deployment",
    )
    assert event["message"] == (
        f"no chain takes these alerts of the last day: Watchdog in {cluster.served.own} (4), others (2): {REMEDY}. "
        "See /api/v1/system/warnings"
    )
    assert "AlertsUnserved" in kubectl("describe", "deployment", DEPLOYMENT)
    await queue.execute(database, "UPDATE notices SET told_at = told_at - interval '1 hour'")
    await second.post()
    assert len(events()) == 2
