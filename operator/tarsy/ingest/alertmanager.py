"""Alertmanager's webhook payload, version 4, as releases 0.25 to 0.34 send it.

Source: Prometheus documentation, "Alerting configuration", `<webhook_config>`. Later releases add fields
(`notification_reason` in 0.32, `routeLabels` in 0.34), so unknown ones are ignored.
"""

from __future__ import annotations

from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tarsy.ingest import payload


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Alert(_Part):
    """One alert of a notification, with the JSON that it came as."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: pydantic.AwareDatetime
    annotations: dict[str, str] = {}
    fingerprint: str = ""
    generator_url: str = Field(default="", alias="generatorURL")
    raw: dict[str, Any] = Field(exclude=True)


class Notification(_Part):
    """One notification: alerts of one group, each with a status of its own."""

    receiver: str
    group_labels: dict[str, str] = {}
    group_key: str = ""
    external_url: str = Field(default="", alias="externalURL")
    truncated_alerts: int = 0
    alerts: list[Alert]


def parse(body: bytes) -> Notification:
    """Read a notification; a payload.PayloadError names what is wrong with it, and where."""
    data = payload.load(body)
    if not isinstance(data, dict) or data.get("version") != "4":
        found = data.get("version") if isinstance(data, dict) else type(data).__name__
        raise payload.PayloadError(f'version: expected "4", Alertmanager\'s webhook format, not {found!r:.60}')
    if isinstance(data.get("alerts"), list):
        data["alerts"] = [{**alert, "raw": alert} if isinstance(alert, dict) else alert for alert in data["alerts"]]
    try:
        return Notification.model_validate(data)
    except pydantic.ValidationError as error:
        raise payload.PayloadError(payload.places(error)) from error
