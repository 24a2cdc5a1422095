"""The webhook payload of Grafana's alerting, version 1, as releases from 9 on send it.

It is Alertmanager's payload with more fields (`orgId`, `title`, `state`, `message`; in alerts `values`, `valueString`,
`dashboardURL`, `panelURL`, `silenceURL`, `imageURL`). Those of alerts stay in the alert's data. `generatorURL` may be
relative to Grafana's address.

Source: Grafana documentation, "Configure the webhook notifier for Alerting".
"""

from __future__ import annotations

from typing import Any
from urllib import parse as urls

from tarsy.ingest import alertmanager

VERSION = "1"


def parse(body: bytes) -> alertmanager.Notification:
    """Parse a notification, as `alertmanager.parse` does."""
    notification = alertmanager.read(body, version=VERSION, sender="Grafana")
    alerts = [_with_absolute_url(alert, notification.external_url) for alert in notification.alerts]
    return notification.model_copy(update={"alerts": alerts})


def schema() -> dict[str, Any]:
    """Return the payload's JSON schema, for the API's description."""
    return alertmanager.schema(VERSION)


def _with_absolute_url(
    alert: alertmanager.Alert | alertmanager.Unreadable, external_url: str
) -> alertmanager.Alert | alertmanager.Unreadable:
    """Return the alert with an absolute `generatorURL`."""
    if isinstance(alert, alertmanager.Unreadable) or not alert.generator_url:
        return alert
    try:
        address = urls.urljoin(external_url, alert.generator_url)
    except ValueError:  # one of the two is no URL
        return alert
    return alert.model_copy(update={"generator_url": address})
