"""Alerts that are grouped, from their webhook to what the API tells of them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
from support import apis, manifests, queue
from tarsy.api import app
from tarsy.kube import client
from tarsy.masking import masker
from tarsy.store.base import databases
from tarsy.web import site
from tarsy_dev.controlplane import Administrator

JSON = {"Content-Type": "application/json"}

START = datetime(2026, 11, 21, 20, tzinfo=UTC)

TYPE = "kubernetes"


@contextlib.asynccontextmanager
async def replica(cluster: client.Cluster, database: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    mask = masker.Masker(groups=["security"]).text
    parts = apis.parts(cluster=cluster, database=database, mask=mask)
    application = app.build(parts)
    site.add(application)
    async with apis.served(parts, application=application, headers=JSON) as session:
        yield session


def grouped(plane: Administrator, cluster: client.Cluster, grouping: dict[str, Any], **spec: Any) -> None:
    plane.create(manifests.chain(TYPE, "Other", grouping=grouping, **spec), namespace=cluster.served.own)


def alert(number: int, *, name: str = TYPE, status: str = "firing", minute: int = 0, **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, **labels},
        "annotations": {"summary": f"tale{number}"},
        "startsAt": (START + timedelta(minutes=minute)).isoformat(),
        "fingerprint": f"{number:016x}",
    }


async def notify(api: aiohttp.ClientSession, *alerts: dict[str, Any], group_key: str = "{}:{}") -> list[dict[str, Any]]:
    """Send a notification; the outcomes of its alerts."""
    body = json.loads(manifests.notification()) | {"alerts": alerts, "groupKey": group_key}
    async with api.post("/api/v1/webhooks/alertmanager", data=json.dumps(body)) as response:
        receipt = await response.json()
        assert response.status == 200, receipt
        return list(receipt.get("alerts", ()))


def objects(plane: Administrator, cluster: client.Cluster) -> int:
    listed = plane.kubectl("get", "inv", "-o", "name", namespace=cluster.served.own)
    return len(listed.split())


async def end(database: databases.Database, ending: str = "Completed", ago: int = 0) -> None:
    await queue.execute(database, "UPDATE work SET state = 'ended' WHERE state <> 'ended'")
    await queue.execute(
        database,
        "UPDATE investigations SET ended_at = clock_timestamp() - make_interval(secs => :ago), ending = :ending"
        " WHERE ended_at IS NULL OR :ago > 0",
        ending=ending,
        ago=ago,
    )


async def split(
    api: aiohttp.ClientSession, investigation: str, fingerprint: int | str, **headers: str
) -> tuple[int, dict[str, Any]]:
    its = fingerprint if isinstance(fingerprint, str) else f"{fingerprint:016x}"
    path = f"/api/v1/investigations/{investigation}/alerts/{its}/investigate"
    async with api.post(path, data="{}", headers=headers) as response:
        return response.status, await response.json()


async def listed(api: aiohttp.ClientSession, investigation: str, query: str = "") -> dict[str, Any]:
    async with api.get(f"/api/v1/investigations/{investigation}/alerts?{query}") as response:
        assert response.status == 200
        answer: dict[str, Any] = await response.json()
        return answer


async def read(api: aiohttp.ClientSession, investigation: str) -> dict[str, Any]:
    async with api.get(f"/api/v1/investigations/{investigation}") as response:
        answer: dict[str, Any] = await response.json()
        return answer
