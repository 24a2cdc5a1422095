"""Two clusters whose alerts are alike in all labels: neither's alerts are taken for the other's."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import apis, manifests, queue, waiting
from tarsy.config.model import webhooks
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator

TYPE = "kubernetes"
START = datetime(2026, 11, 26, 18, tzinfo=UTC)
OWN = "t" * 40
SENDERS = {"north-0": "north", "north-1": "north", "south": "south", "other-0": "", "other-1": ""}
"""The names of tokens, and their sources: two Alertmanagers are a pair."""


@pytest.fixture
async def api(
    cluster: client.Cluster, database: databases.Database, tmp_path: Path
) -> AsyncIterator[aiohttp.ClientSession]:
    tokens = []
    for name, source in SENDERS.items():
        (tmp_path / name).write_text(name * 10)
        tokens.append(webhooks.Token(token_file=tmp_path / name, namespaces=[cluster.served.own], source=source))
    parts = apis.parts(cluster=cluster, database=database, token=OWN, ingest=webhooks.Ingest(tokens=tokens))
    async with apis.served(parts, headers={"Content-Type": "application/json"}) as session:
        yield session


def alert(number: int, *, status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": TYPE, "namespace": "shop", **labels},
        "annotations": {"summary": f"tale{number}"},
        "startsAt": START.isoformat(),
        "fingerprint": f"{number:016x}",
    }


async def notify(api: aiohttp.ClientSession, sender: str, *alerts: dict[str, Any]) -> list[dict[str, Any]]:
    body = json.loads(manifests.notification()) | {"alerts": alerts, "groupKey": "g"}
    headers = {"Authorization": f"Bearer {sender * 10 if sender in SENDERS else OWN}"}
    receipt: dict[str, Any] = {}

    async def is_accepted() -> bool:
        """Whether it was taken; a sender sends again while other notifications are being taken."""
        nonlocal receipt
        async with api.post("/api/v1/webhooks/alertmanager", data=json.dumps(body), headers=headers) as response:
            receipt = await response.json()
            assert response.status in (200, 503), receipt
            return response.status == 200

    await waiting.seen(is_accepted)
    return list(receipt["alerts"])


async def test_equal_alerts_of_two_sources_are_two_investigations_and_resolve_apart(
    api: aiohttp.ClientSession, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain(TYPE, onResolved="Cancel"), namespace=cluster.served.own)
    first = {sender: (await notify(api, sender, alert(1)))[0] for sender in ("own", *SENDERS)}
    outcomes = {sender: receipt["outcome"] for sender, receipt in first.items()}
    assert outcomes == {
        "own": "created",
        "north-0": "created",
        "north-1": "repeated",
        "south": "created",
        "other-0": "repeated",
        "other-1": "repeated",
    }, "a source has its own alerts; tokens without one share theirs"
    assert first["north-0"]["id"] == first["north-1"]["id"]
    assert len({receipt["id"] for receipt in first.values()}) == 3
    (resolved,) = await notify(api, "north-1", alert(1, status="resolved"))
    assert (resolved["outcome"], resolved["id"]) == ("resolved", first["north-0"]["id"])
    rows = await queue.rows(database, "SELECT id::text, alert_status FROM investigations")
    assert dict(rows) == {
        first["own"]["id"]: "firing",
        first["north-0"]["id"]: "resolved",
        first["south"]["id"]: "firing",
    }
    assert (await notify(api, "north-0", alert(1, status="resolved")))[0]["id"] == first["north-0"]["id"]
    created = json.loads(plane.kubectl("get", "inv", "-o", "json", namespace=cluster.served.own))["items"]
    assert len({each["spec"]["fingerprint"] for each in created}) == 3
    assert {json.loads(each["spec"]["alertData"])["fingerprint"] for each in created} == {f"{1:016x}"}, "as it was sent"
