"""Alertmanager's webhook payload, version 4, as releases 0.25 to 0.34 send it.

Source: Prometheus documentation, "Alerting configuration", `<webhook_config>`. Later releases add fields
(`notification_reason` in 0.32, `routeLabels` in 0.34), so unknown ones are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tarsy.ingest import payload
from tarsy.resources import investigations

VERSION = "4"
_UNREADABLE_MAX = 1000
"""Unreadable alerts of a notification whose problems are reported one by one."""
LABELS_MAX = 1000
"""The number of labels, and of annotations, that an alert may have."""
_REQUIRED = frozenset(("status", "labels", "startsAt"))


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)


class Alert(_Part):
    """One alert of a notification, with its JSON."""

    status: Literal["firing", "resolved"]
    labels: dict[str, str]
    starts_at: Annotated[pydantic.AwareDatetime, AfterValidator(investigations.checked_time)]
    annotations: Annotated[dict[str, str], BeforeValidator(lambda value: value or {})] = {}
    fingerprint: str = ""
    generator_url: str = Field(default="", alias="generatorURL")
    raw: dict[str, Any] = Field(exclude=True)

    @property
    def alertname(self) -> str:
        """The label `alertname`, or ""."""
        return self.labels.get("alertname", "")


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """An alert of a notification that cannot be read."""

    alertname: str
    problem: str
    """The problem and its place."""


class Notification(_Part):
    """One notification: the alerts of one group."""

    receiver: str
    group_labels: dict[str, str] = {}
    group_key: str = ""
    external_url: str = Field(default="", alias="externalURL")
    truncated_alerts: int = 0
    """Alerts that the sender left out, because of its receiver's max_alerts."""
    alerts: list[Any]
    """Alert and Unreadable objects, in the sender's order."""

    @property
    def readable(self) -> list[Alert]:
        """The alerts that can be read."""
        return [alert for alert in self.alerts if isinstance(alert, Alert)]


def parse(body: bytes) -> Notification:
    """Parse a notification; a payload.PayloadError names the problem and its place.

    An alert that cannot be read becomes an Unreadable. If no alert can be read, that is a PayloadError.
    """
    return read(body, version=VERSION, sender="Alertmanager")


def read(body: bytes, *, version: str, sender: str) -> Notification:
    """Parse a notification of a sender whose format resembles Alertmanager's and has its own `version`."""
    document = payload.load(body)
    if not isinstance(document, dict) or document.get("version") != version:
        version_found = document.get("version") if isinstance(document, dict) else type(document).__name__
        raise payload.PayloadError(
            f'version: expected "{version}", {sender}\'s webhook format, not {version_found!r:.60}'
        )
    if isinstance(document.get("alerts"), list):
        document["alerts"] = _alerts(document["alerts"])
    try:
        notification = Notification.model_validate(document)
    except pydantic.ValidationError as error:
        raise payload.PayloadError(payload.places(error)) from error
    if notification.alerts and not notification.readable:
        raise payload.PayloadError(
            next(alert.problem for alert in notification.alerts if isinstance(alert, Unreadable))
        )
    return notification


def schema(version: str = VERSION) -> dict[str, Any]:
    """Return the payload's JSON schema, for the API's description."""
    notification = Notification.model_json_schema()
    alert = Alert.model_json_schema()
    del alert["properties"]["raw"]
    alert["required"].remove("raw")
    for labels in ("labels", "annotations"):
        alert["properties"][labels]["maxProperties"] = LABELS_MAX
    notification["properties"]["version"] = {"const": version, "description": "Of the payload's format."}
    notification["properties"]["alerts"]["items"] = alert
    notification["required"] = ["version", *notification["required"]]
    return notification


def _alerts(raw_alerts: list[Any]) -> list[Alert | Unreadable]:
    alerts: list[Alert | Unreadable] = []
    unreadable = 0
    beyond_limit = Unreadable(alertname="", problem=f"one of more than {_UNREADABLE_MAX} that cannot be read")
    for index, raw_alert in enumerate(raw_alerts):
        if unreadable >= _UNREADABLE_MAX and not (isinstance(raw_alert, dict) and raw_alert.keys() >= _REQUIRED):
            alerts.append(beyond_limit)
            continue
        alert = _alert(raw_alert, location=f"alerts.{index}")
        if isinstance(alert, Unreadable):
            unreadable += 1
            alert = beyond_limit if unreadable > _UNREADABLE_MAX else alert
        alerts.append(alert)
    return alerts


def _alert(raw_alert: Any, *, location: str) -> Alert | Unreadable:
    try:
        if problem := _too_many(raw_alert, location=location):
            return Unreadable(alertname=_alertname(raw_alert), problem=problem)
        return Alert.model_validate({**raw_alert, "raw": raw_alert} if isinstance(raw_alert, dict) else raw_alert)
    except pydantic.ValidationError as error:
        return Unreadable(alertname=_alertname(raw_alert), problem=payload.places(error, within=location))


def _too_many(raw_alert: Any, *, location: str) -> str:
    """Return the problem of an alert with too many labels or annotations, or ""."""
    for field in ("labels", "annotations"):
        pairs = raw_alert.get(field) if isinstance(raw_alert, dict) else None
        if isinstance(pairs, dict) and len(pairs) > LABELS_MAX:
            return f"{location}.{field}: more than {LABELS_MAX}"
    return ""


def _alertname(raw_alert: Any) -> str:
    labels = raw_alert.get("labels") if isinstance(raw_alert, dict) else None
    name = labels.get("alertname") if isinstance(labels, dict) else None
    return name if isinstance(name, str) else ""
