"""Alerts of a receiver, and objects that another user created under their names."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy.resources import naming

if TYPE_CHECKING:
    from support.operators import Operator, Process

WEBHOOK = "/api/v1/webhooks/alertmanager"

FINGERPRINT = "6eb8c03418906421"

START = "2026-11-21T20:26:18.109994Z"

NAME = naming.for_alert(
    alertname="KubePodCrashLooping",
    fingerprint=FINGERPRINT,
    starts_at=datetime(2026, 11, 21, 20, 26, 18, 109994, tzinfo=UTC),
)


def stranger(name: str = NAME, *, receipt: str | None = None, **spec: Any) -> dict[str, Any]:
    """Return an object as any user may write it who may create investigations."""
    source = {"type": "alertmanager"} | ({"receipt": receipt} if receipt else {})
    return manifests.investigation(name, fingerprint=FINGERPRINT, startsAt=START, source=source, **spec)


async def objects(operator: Operator) -> dict[str, Any]:
    items = json.loads(await operator.kubectl("get", "inv", "-o", "json"))["items"]
    return {manifest["metadata"]["name"]: manifest for manifest in items}


async def notify(process: Process, *, started: str = "2026-11-21T20:26:18.109994018Z") -> tuple[str, str]:
    """Post the notification; return the outcome of the alert, and its name."""
    status, receipt = await process.request("POST", WEBHOOK, body=manifests.notification(startsAt=started))
    assert status == 200, receipt
    (alert,) = receipt["alerts"]
    return alert["outcome"], alert["name"]
