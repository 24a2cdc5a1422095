"""Notifications of thousands of alerts, or of megabytes: what can be kept is kept, and everybody else is served."""

from __future__ import annotations

import asyncio
import functools
import gc
import http.client
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support import manifests, pace, queue
from tarsy import process
from tarsy.api import app, health, intake
from tarsy.config import check, platform
from tarsy.kube import client
from tarsy.store import database as databases
from tarsy_dev.controlplane import ControlPlane

BUSY_MAX = 0.1
TICK = 0.005


class Watchdog:
    """Measures for how long the loop does not turn; time that the machine gives to other processes does not count."""

    def __init__(self) -> None:
        self.worst = 0.0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(TICK, self._tick, time.perf_counter(), time.process_time())

    def _tick(self, wall: float, cpu: float) -> None:
        now, used = time.perf_counter(), time.process_time()
        self.worst = max(self.worst, min(now - wall - TICK, used - cpu))
        self._handle = self._loop.call_later(TICK, self._tick, now, used)

    def stop(self) -> None:
        self._handle.cancel()


class API:
    """The API on the loop of the test, asked from another thread."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def post(self, body: bytes, path: str = "/api/v1/webhooks/alertmanager") -> tuple[int, Any]:
        return await asyncio.to_thread(self._post, body, path)

    def _post(self, body: bytes, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=100)
        try:
            connection.request("POST", path, body=body, headers={"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
async def api(
    plane: ControlPlane, cluster: client.Cluster, database: databases.Database, request: pytest.FixtureRequest
) -> AsyncIterator[API]:
    plane.kubectl("apply", "-f", "-", input=json.dumps(manifests.chain("taken")), namespace=cluster.namespace)
    taking = intake.Intake(
        cluster=cluster,
        database=database,
        index=functools.partial(check.ChainIndex, platform=queue.PLATFORM, unusable_providers={}),
        settings=platform.Ingest(),
        max_queued=10_000,
        mask=process.ALERT_MASKER.text,
    )
    readiness = health.Readiness(roles=["api"], database=database, cluster=cluster, watcher=None)
    bound = app.bind("127.0.0.1", 0)
    bound.listen(100)  # whoever connects before the server accepts waits
    application = app.build(taking=taking, database=database, readiness=readiness, token=None)
    serving = asyncio.create_task(app.serve(application, bound, readiness=readiness))
    yield API(bound.getsockname()[1])
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    bound.close()


@pytest.fixture
async def watchdog(api: API) -> AsyncIterator[Watchdog]:
    """Watches the loop from the first answer on: imports and connections are behind it then."""
    await api.post(notification(alert(0)))
    gc.collect()
    gc.freeze()  # what pytest holds is not the operator's to look through
    watching = Watchdog()
    yield watching
    watching.stop()
    gc.unfreeze()


def alert(number: int, *, alert_type: str = "taken", **fields: Any) -> dict[str, Any]:
    return {
        "status": "firing",
        "labels": {"alertname": "Crash", "alert_type": alert_type},
        "startsAt": "2026-11-21T20:26:18Z",
        "fingerprint": f"{number:016x}",
    } | fields


def notification(*alerts: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"version": "4", "receiver": "hook", "alerts": alerts} | fields).encode()


async def test_of_a_large_notification_a_part_is_taken_and_the_rest_when_it_is_sent_again(
    api: API, watchdog: Watchdog, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "NEW_AT_ONCE", 10)
    alerts = [alert(number) for number in range(1, 26)]
    body = notification(alert(100, alert_type="nobody's"), *alerts, alert(1, status="resolved"), {"labels": {}})
    full = "10 are taken of one notification"
    for taken, waiting in ((10, 15), (10, 5)):
        status, problem = await api.post(body)
        assert (status, problem["detail"]) == (
            503,
            f"{taken} new alerts were taken and {waiting} were not, because {full}; send it again",
        )
    status, receipt = await api.post(body)
    assert (status, receipt["counts"]) == (200, {"created": 5, "repeated": 20, "resolved": 1, "ignored": 2})
    first, *outcomes, resolved, last = [one["outcome"] for one in receipt["alerts"]]
    assert (first, resolved, last) == ("ignored", "resolved", "ignored")
    assert Counter(outcomes) == {"repeated": 20, "created": 5}
    assert len(await queue.rows(database, "SELECT 1 FROM investigations")) == 26
    assert watchdog.worst < BUSY_MAX * max(1.0, pace.slowness())


async def test_a_hundred_thousand_empty_alerts_are_answered_at_once_and_logged_in_a_line(
    api: API, watchdog: Watchdog, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    empty = notification(*[{}] * 100_000)
    started = time.process_time()
    status, problem = await api.post(empty)
    assert (status, problem["detail"].startswith("alerts.0.status: Field required")) == (400, True)
    status, receipt = await api.post(notification(*[{}] * 100_000, alert(1)))
    assert time.process_time() - started < 5
    assert (status, receipt["counts"]["ignored"], receipt["counts"]["created"]) == (200, 100_000, 1)
    assert len(receipt["alerts"]) == intake.OUTCOMES_TOLD
    told = [record for record in caplog.records if record.name.startswith("tarsy.")]
    assert [record.__dict__["action"] for record in told] == ["notification", "ignored"]
    assert all(len(record.getMessage()) < 2 * intake.TOLD_MAX for record in told)
    assert watchdog.worst < BUSY_MAX * max(1.0, pace.slowness())


async def test_a_group_key_of_100_kb_is_masked_once_and_little_of_it(
    plane: ControlPlane, api: API, watchdog: Watchdog, cluster: client.Cluster
) -> None:
    alerts = [alert(number) for number in range(1, 1001)]
    key = "{}:{" + 'x="password=hunter2-s3cret",' * 4000 + "}"
    started = time.process_time()
    status, receipt = await api.post(notification(*alerts, groupKey=key))
    print(f"{time.process_time() - started:.1f} s of processor time, the loop busy for {watchdog.worst * 1000:.0f} ms")
    assert (status, receipt["counts"]["created"]) == (200, 1000)
    name = receipt["alerts"][-1]["investigation"].partition("/")[2]
    source = json.loads(plane.kubectl("get", "inv", name, "-o", "json", namespace=cluster.namespace))["spec"]["source"]
    assert len(source["groupKey"]) <= 4096
    assert "s3cret" not in source["groupKey"]
    assert watchdog.worst < BUSY_MAX * max(1.0, pace.slowness())


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/api/v1/webhooks/alertmanager", "[],"),
        ("/api/v1/webhooks/alertmanager", "{},"),
        ("/api/v1/webhooks/alertmanager", '{"a":"b","c":"d"},'),
        ("/api/v1/webhooks/alertmanager", "x"),
        ("/api/v1/alerts", "[],"),
        ("/api/v1/alerts", "x"),
    ],
    ids=["lists", "objects", "labels", "one text", "posted lists", "posted text"],
)
async def test_whatever_ten_megabytes_are_made_of_everybody_else_is_served(
    api: API, watchdog: Watchdog, path: str, unit: str
) -> None:
    size = 10 * 1000 * 1000 if "webhook" in path else 6 * 1000 * 1000
    inner = unit * (size // len(unit))
    many = json.dumps(inner) if unit == "x" else f"[{inner[:-1]}]"
    body = f'{{"version": "4", "receiver": "hook", "alert_type": "taken", "data": {many}, "alerts": []}}'.encode()
    status, _ = await api.post(body, path)
    assert status in ((200, 400) if "webhook" in path else (400, 413, 422))
    print(f"the loop was busy for {watchdog.worst * 1000:.0f} ms")
    assert watchdog.worst < BUSY_MAX * max(1.0, pace.slowness())
