"""Notifications of thousands of alerts, or of megabytes: what can be kept is kept, and everybody else is served."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import sqlalchemy
from support import apis, manifests, pace, queue, scrapes
from support.masking import NO_SECRETS
from tarsy.api import app
from tarsy.api.alerts import concurrency, notifications
from tarsy.config.model import platforms
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.telemetry import metrics
from tarsy_dev.controlplane import Administrator

ALERT_MASKER = platforms.AlertMasking().masker(NO_SECRETS)
BUSY_MAX = 0.5
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

    def __init__(self, port: int, *, services: app.Services | None = None) -> None:
        self._port = port
        self.services = services

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

    def begin(self) -> tuple[int, str | None, Any]:
        """Begin a notification whose body never comes; return its status, Retry-After and answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=100)
        try:
            connection.putrequest("POST", "/api/v1/webhooks/alertmanager")
            connection.putheader("Content-Length", "100")
            connection.endheaders()
            response = connection.getresponse()
            return response.status, response.headers["Retry-After"], json.loads(response.read())
        finally:
            connection.close()


@pytest.fixture
async def api(
    plane: Administrator, cluster: client.Cluster, database: databases.Database, request: pytest.FixtureRequest
) -> AsyncIterator[API]:
    plane.create(manifests.chain("taken"), namespace=cluster.served.own)
    parts = apis.parts(
        cluster=cluster,
        database=database,
        mask=lambda text: ALERT_MASKER.text(text),  # as it is by then: a test may have put another one there
    )
    application = app.build(parts)
    async with apis.listening(parts, application=application) as url:
        yield API(int(url.rpartition(":")[2]), services=application.services)


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


async def test_large_notification_is_taken_in_part_and_the_rest_when_it_is_sent_again(
    api: API, watchdog: Watchdog, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "NEW_MAX", 10)
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
    assert (status, receipt["counts"]) == (
        200,
        {"created": 5, "joined": 0, "repeated": 20, "resolved": 1, "ignored": 2},
    )
    first, *outcomes, resolved, last = [alert_outcome["outcome"] for alert_outcome in receipt["alerts"]]
    assert (first, resolved, last) == ("ignored", "resolved", "ignored")
    assert Counter(outcomes) == {"repeated": 20, "created": 5}
    assert len(await queue.rows(database, "SELECT 1 FROM investigations")) == 26
    assert watchdog.worst < BUSY_MAX * max(1.0, pace.slowness())


def counted_refusals() -> float:
    return scrapes.total(metrics.render("")[0].decode(), "tarsy_webhook_refused_total") or 0.0


async def test_notifications_beyond_those_that_are_taken_at_once_are_refused_and_taken_when_sent_again(
    api: API, database: databases.Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table of receipts is locked, so that those under way wait, each with the first of its ten alerts."""
    monkeypatch.setattr(app, "STATEMENT_SECONDS", 600.0)
    monkeypatch.setattr(concurrency, "BURST_SECONDS", 0.0)
    at_once = concurrency.ALERTS_AT_ONCE // concurrency.AT_ONCE
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = CAST('receipts' AS regclass)"
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("LOCK TABLE receipts IN SHARE MODE"))
        starts = [f"2026-11-21T20:26:{second}Z" for second in range(10, 20)]
        bodies = [notification(*(alert(number, startsAt=at) for at in starts)) for number in range(at_once)]
        under_way = [asyncio.create_task(api.post(body)) for body in bodies]
        while await queue.rows(database, waiting) != [(at_once,)]:  # noqa: ASYNC110 - it is in the database
            await asyncio.sleep(0.01)
        before = counted_refusals()
        for number in range(100, 103):
            status, problem = await api.post(notification(alert(number)))
            assert (status, problem["detail"]) == (503, concurrency.REFUSAL)
        # it is not parsed
        assert (await api.post(b"no JSON"))[0] == 503
        assert counted_refusals() - before == 4
        # while one waits, others are refused before they are read
        monkeypatch.setattr(concurrency, "WAIT_SECONDS", 600.0)
        first = asyncio.create_task(api.post(notification(alert(103))))
        assert api.services
        while not api.services.alert_intake.notification_slots.are_full:  # noqa: ASYNC110 - it has to be read first
            await asyncio.sleep(0.01)
        status, after, problem = await asyncio.to_thread(api.begin)
        assert (status, after, problem["detail"]) == (503, "1", concurrency.REFUSAL)
        assert counted_refusals() - before == 5
    assert (await first)[0] == 200
    assert {status for status, _ in await asyncio.gather(*under_way)} == {200}
    assert len(await queue.rows(database, "SELECT 1 FROM investigations")) == at_once + 1
    refusals = [record for record in caplog.records if record.__dict__.get("action") == "notifications_refused"]
    assert [record.__dict__["count"] for record in refusals] == [1], "one line a minute"
    assert (await api.post(b"no JSON"))[0] == 400
    for number in range(100, 103):
        assert (await api.post(notification(alert(number))))[0] == 200
    assert len(await queue.rows(database, "SELECT 1 FROM investigations")) == at_once + 4


SENDERS, NOTIFICATIONS, ALERTS = 6, 20, 10
QUEUED_MAX = 100
GROUPED = 500
BY_CLUSTER = {"by": "Labels", "labels": ["cluster"]}


async def test_flood_of_several_senders_stores_each_accepted_alert_once_and_drains(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    """The queue is far too short for it, and the pool of connections small: senders are told to send again."""
    plane.create(manifests.chain("taken", grouping={"by": "Alert"}), namespace=cluster.served.own)
    plane.create(manifests.chain("grouped", name="grouped", grouping=BY_CLUSTER), namespace=cluster.served.own)
    answers = Counter[int]()
    taken: list[str] = []
    is_sent = False

    async def insist(body: bytes) -> Any:
        """Send a notification until it is taken: the queue may be full."""
        while True:
            status, receipt = await flooded.post(body)
            answers[status] += 1
            if status == 200:
                return receipt

    async def send(sender: int) -> None:
        for number in range(NOTIFICATIONS):
            first = (sender * NOTIFICATIONS + number) * ALERTS
            receipt = await insist(notification(*(alert(first + offset) for offset in range(ALERTS))))
            taken.extend(alert_outcome["name"] for alert_outcome in receipt["alerts"])

    async def drain() -> int:
        """Do what workers do, without a model."""
        ended = 0
        while (claim := await queue.claim(database)) is not None or not is_sent:
            if claim is None:
                await asyncio.sleep(0.01)
                continue
            async with database.begin() as connection:
                await work.end(connection, claim.investigation, "Failed", reason="Test", message="ended")
            ended += 1
        return ended

    small = databases.Database(database.url, pool_size=2)
    try:
        parts = apis.parts(cluster=cluster, database=small, max_queued=QUEUED_MAX)
        async with apis.listening(parts) as url, asyncio.TaskGroup() as tasks:
            flooded = API(int(url.rpartition(":")[2]))
            draining = tasks.create_task(drain())
            await asyncio.gather(*map(send, range(SENDERS)))
            created = number_of_objects(plane, cluster)
            for number in range(GROUPED // 50):
                labels = {"alertname": "Crash", "alert_type": "grouped", "cluster": "c"}
                many = [alert(10**6 + number * 50 + offset, labels=labels) for offset in range(50)]
                await insist(notification(*many))
            is_sent = True
        expected = SENDERS * NOTIFICATIONS * ALERTS
        assert (set(answers), created) == ({200, 503}, expected)
        assert draining.result() == expected + 1
        assert len(taken) == len(set(taken)) == expected
        rows = await queue.rows(database, "SELECT name FROM investigations WHERE alert_type = 'taken'")
        assert sorted(name for (name,) in rows) == sorted(taken)
        ((identified,),) = await queue.rows(database, "SELECT count(*) FROM identities")
        assert identified == expected + GROUPED
        assert await queue.rows(database, "SELECT DISTINCT state FROM work") == [("ended",)]
        assert number_of_objects(plane, cluster) == expected + 1, "one object for all alerts of a group"
    finally:
        await small.close()


def number_of_objects(plane: Administrator, cluster: client.Cluster) -> int:
    return len(plane.kubectl("get", "inv", "-o", "name", namespace=cluster.served.own).splitlines())


class Defect:
    """A mask that fails where some text holds `word`."""

    def __init__(self, word: str, mask: Callable[[str], str]) -> None:
        self._word = word
        self._mask = mask

    def __call__(self, text: str) -> str:
        if self._word in text:
            raise ZeroDivisionError("a defect in masking")
        return self._mask(text)


async def test_defect_met_by_one_alert_affects_only_that_alert_and_is_logged_once(
    api: API, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, database: databases.Database
) -> None:
    monkeypatch.setattr(ALERT_MASKER, "text", Defect("p01son", ALERT_MASKER.text))
    bad: dict[str, Any] = {"annotations": {"note": "p01son"}}
    body = notification(alert(1), alert(2, **bad), alert(3), alert(4, **bad))
    status, receipt = await api.post(body)
    assert status == 200
    assert [alert_outcome["outcome"] for alert_outcome in receipt["alerts"]] == [
        "created",
        "ignored",
        "created",
        "ignored",
    ]
    assert receipt["alerts"][1]["reason"] == notifications.DEFECT
    records = [record for record in caplog.records if record.__dict__.get("action") == "alert_defect"]
    assert [record.exc_info and record.exc_info[0] for record in records] == [ZeroDivisionError]
    assert len(await queue.rows(database, "SELECT 1 FROM investigations")) == 2


async def test_fields_shared_by_all_alerts_are_withheld_where_a_defect_prevents_masking(
    api: API, monkeypatch: pytest.MonkeyPatch, database: databases.Database
) -> None:
    monkeypatch.setattr(ALERT_MASKER, "text", Defect("p01son", ALERT_MASKER.text))
    status, receipt = await api.post(
        notification(alert(1), alert(2), groupLabels={"note": "p01son"}, receiver="p01son")
    )
    assert (status, receipt["counts"]["created"]) == (200, 2)
    for (alert_data,) in await queue.rows(database, "SELECT alert_data FROM investigations"):
        assert json.loads(alert_data)["receiver"] == "[MASKED:withheld]"


async def test_a_receiver_is_masked_and_cut_in_the_object_and_in_the_log(
    api: API, caplog: pytest.LogCaptureFixture, plane: Administrator, cluster: client.Cluster
) -> None:
    caplog.set_level(logging.INFO)
    receiver = "password=hunter2-s3cret " * 1000
    status, receipt = await api.post(notification(alert(1), receiver=receiver, truncatedAlerts=3))
    assert status == 200
    name = receipt["alerts"][0]["name"]
    source = json.loads(plane.kubectl("get", "inv", name, "-o", "json", namespace=cluster.served.own))["spec"]["source"]
    log_messages = [record.getMessage() for record in caplog.records if record.name.startswith("tarsy.")]
    assert len(log_messages) == 2
    for text in (source["receiver"], *log_messages):
        assert len(text) < 500
        assert "s3cret" not in text


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/api/v1/webhooks/alertmanager", "[],"),
        ("/api/v1/webhooks/alertmanager", "x"),
        ("/api/v1/alerts", "[],"),
    ],
    ids=["lists", "one text", "posted lists"],
)
async def test_ten_megabyte_request_of_any_content_does_not_block_other_callers(
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
