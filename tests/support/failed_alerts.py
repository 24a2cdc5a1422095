"""Alerts whose investigation failed: notifications, cool-downs that pass, and what became of them."""

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


def named(attempt: int) -> str:
    return NAME if attempt == 1 else naming.suffixed(NAME, str(attempt))


def refuse(_: object) -> model.HttpError:
    """As a provider whose key is wrong."""
    return model.HttpError(status=401, message="the key was revoked")


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
