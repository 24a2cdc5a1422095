"""Alerts whose investigation failed, as Alertmanager and people meet them: counted, then investigated anew."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import asyncpg
from support import manifests
from tarsy.resources import naming
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator, Process

WEBHOOK = "/api/v1/webhooks/alertmanager"

NAME = naming.for_alert(
    alertname="KubePodCrashLooping",
    fingerprint="6eb8c03418906421",
    starts_at=datetime(2026, 11, 21, 20, 26, 18, 109994, tzinfo=UTC),
)

SECOND = naming.suffixed(NAME, "2")

CHAIN = manifests.chain(stages=[manifests.stage("analysis", mcpServers=[])])

COOLDOWN = timedelta(minutes=5)


async def notify(process: Process, status: str = "firing") -> dict[str, Any]:
    """Post the notification, and return the receipt's part about the alert."""
    code, receipt = await process.request("POST", WEBHOOK, body=manifests.notification(status))
    assert code == 200, receipt
    (alert,) = receipt["alerts"]
    return dict(alert)


async def outcome(process: Process, status: str = "firing") -> tuple[str, str]:
    alert = await notify(process, status)
    return alert["outcome"], alert["name"]


async def pass_time(operator: Operator, passed: timedelta) -> None:
    """Let the rows that stand for the alert grow older."""
    connection = await asyncpg.connect(operator.database_url)
    try:
        await connection.execute(
            "UPDATE investigations SET admitted_at = admitted_at - $1::interval, ended_at = ended_at - $1::interval,"
            " gone_at = gone_at - $1::interval",
            passed,
        )
    finally:
        await connection.close()


async def test_failed_alert_repeats_during_cool_down_then_gets_a_linked_investigation(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers(model.HttpError(status=401, message="the key was revoked"))
    process = await operator.start()
    await operator.apply(CHAIN)
    assert await outcome(process) == ("created", NAME)
    first = (await operator.finished(NAME))[NAME]
    assert first["status"]["phase"] == "Failed"
    repeated = await notify(process)
    assert (repeated["outcome"], repeated["name"]) == ("repeated", NAME)
    assert repeated["reason"].startswith("its investigation came to nothing: the first firing notification after 20")

    await pass_time(operator, COOLDOWN)
    llm.script = model.answers("root cause")
    assert await outcome(process) == ("created", SECOND)
    second = (await operator.finished(SECOND))[SECOND]
    former = {"name": NAME, "uid": first["metadata"]["uid"]}
    assert (second["status"]["phase"], second["status"]["previous"]) == ("Completed", former)
    _, investigation = await process.request("GET", f"/api/v1/investigations/{second['metadata']['uid']}")
    assert investigation["previous"] == {"id": former["uid"], "name": NAME}
    _, listed = await process.request("GET", "/api/v1/investigations?sort=admitted_at")
    assert [listed_item["previous"] for listed_item in listed["items"]] == [None, {"id": former["uid"], "name": NAME}]

    await pass_time(operator, timedelta(days=2))
    assert await outcome(process) == ("repeated", SECOND), "it has a result"
    assert await outcome(process, "resolved") == ("resolved", SECOND)
