"""Grafana's notifications, by the same intake as Alertmanager's: made after its documentation, none is here to send."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import apis, manifests, queue
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator

WEBHOOK = "the token"
CAPTURES = Path(__file__).resolve().parents[1] / "captures"
PATH = "/api/v1/webhooks/grafana"


def recorded(name: str) -> Any:
    return json.loads((CAPTURES / f"grafana/{name}.json").read_text())


class Grafana:
    """A sender of notifications."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, payload: Any, *, method: str = "POST", path: str = PATH) -> tuple[int, Any]:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        async with self._session.request(method, path, data=body) as response:
            return response.status, await response.json(content_type=None)

    async def outcomes(self, payload: Any, *, method: str = "POST") -> list[str]:
        """Return the outcome of each alert of a notification that is accepted."""
        status, receipt = await self.send(payload, method=method)
        assert status == 200, receipt
        return [alert["outcome"] for alert in receipt["alerts"]]


@pytest.fixture
async def grafana(
    cluster: client.Cluster, database: databases.Database, plane: Administrator
) -> AsyncIterator[Grafana]:
    """It has the webhook's token, and there is a chain for what it sends."""
    plane.create(manifests.chain("PodRestarts", "pod-crash"), namespace=cluster.served.own)
    parts = apis.parts(cluster=cluster, database=database, token=WEBHOOK)
    async with apis.served(parts, headers=apis.bearer(WEBHOOK)) as session:
        yield Grafana(session)


async def test_grafana_alert_is_investigated_once_and_its_resolve_is_recorded(
    grafana: Grafana, plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    firing = recorded("grafana-12-webhook-firing")
    assert await grafana.outcomes(firing) == ["created"]
    assert await grafana.outcomes(firing) == ["repeated"]
    assert await grafana.outcomes(firing, method="PUT") == ["repeated"]
    (made,) = json.loads(plane.kubectl("get", "inv", "-o", "json", namespace=cluster.served.own))["items"]
    spec = made["spec"]
    assert (spec["alertType"], spec["fingerprint"], spec["severity"]) == ("pod-crash", "c6eadffa33fcdf37", "critical")
    assert (spec["source"]["type"], spec["source"]["receiver"]) == ("grafana", "tarsy")
    assert spec["source"]["generatorURL"] == "https://grafana.example.com/?orgId=1"
    alert_data = json.loads(spec["alertData"])
    assert (alert_data["values"], alert_data["generatorURL"]) == ({"B": 44.23943737541908, "C": 1}, "?orgId=1")
    assert await grafana.outcomes(recorded("grafana-12-webhook-resolved"), method="PUT") == ["resolved"]
    (row,) = await queue.rows(database, "SELECT alert_status, duplicates, fingerprint FROM investigations")
    assert row == ("resolved", 2, "c6eadffa33fcdf37")


async def test_alert_without_a_chain_is_reported_and_costs_the_others_nothing(grafana: Grafana) -> None:
    assert await grafana.outcomes(recorded("grafana-9-webhook-firing"), method="PUT") == ["created", "created"]
    assert await grafana.outcomes(recorded("grafana-10-webhook-test")) == ["ignored"], "no chain takes TestAlert"
    status, receipt = await grafana.send(recorded("grafana-11-webhook-mixed"))
    assert (status, receipt["truncated"]) == (200, 2)
    assert receipt["alerts"][0]["reason"].startswith("No chain found for alert type 'DatasourceNoData'")


async def test_each_webhook_path_refuses_other_senders_format_and_survives_hostile_input(grafana: Grafana) -> None:
    firing = recorded("grafana-12-webhook-firing")
    alertmanagers = json.loads((CAPTURES / "alertmanager/alertmanager-0.33-webhook-firing.json").read_text())
    status, problem = await grafana.send(alertmanagers)
    assert (status, problem["detail"]) == (400, "version: expected \"1\", Grafana's webhook format, not '4'")
    status, problem = await grafana.send(firing, path="/api/v1/webhooks/alertmanager")
    assert (status, problem["detail"]) == (400, "version: expected \"4\", Alertmanager's webhook format, not '1'")
    alert = firing["alerts"][0]
    hostile: list[Any] = [
        b"",
        b"\xff",
        b"[" * 10_000,
        firing | {"version": "2"},
        firing | {"alerts": "x"},
        firing | {"alerts": [None] * 2_000},
        firing | {"externalURL": "http://["},
        firing | {"externalURL": "\x00\ud800", "groupKey": "\x00" * 10_000},
        firing | {"alerts": [alert | {"generatorURL": "//[" + "x" * 100_000}]},
        firing | {"alerts": [alert | {"startsAt": "0001-01-01T00:00:00Z", "fingerprint": "\x00"}]},
        firing | {"alerts": [alert | {"startsAt": "9999-12-31T23:59:59-14:00", "fingerprint": "f" * 10_000}]},
        firing | {"alerts": [alert | {"labels": {"alertname": "\x00" * 5_000, "alert_type": "x" * 5_000}}]},
        firing | {"alerts": [alert | {"values": {str(number): [1e308] for number in range(10_000)}}]},
    ]
    for payload in hostile:
        status, answer = await grafana.send(payload)
        assert status in (200, 400), answer
