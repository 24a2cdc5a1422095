"""The webhook payload of Grafana's alerting, version 1, as its releases from 9 on send it.

It is Alertmanager's with more of Grafana's own beside it (`orgId`, `title`, `state`, `message`; of an alert `values`,
`valueString`, `dashboardURL`, `panelURL`, `silenceURL`, `imageURL`), which stays in the alert's data. Its
`generatorURL` may be relative to Grafana's own address.

Source: Grafana documentation, "Configure the webhook notifier for Alerting".
"""

from __future__ import annotations

from typing import Any
from urllib import parse as urls

from tarsy.ingest import alertmanager

VERSION = "1"


def parse(body: bytes) -> alertmanager.Notification:
    """Read a notification; a payload.PayloadError names what is wrong with it, and where.

    One alert that cannot be read costs only itself, unless there is no other.
    """
    notification = alertmanager.read(body, version=VERSION, sender="Grafana")
    alerts = [_at_home(alert, notification.external_url) for alert in notification.alerts]
    return notification.model_copy(update={"alerts": alerts})


def schema() -> dict[str, Any]:
    """The payload's JSON schema, for the API's description."""
    return alertmanager.schema(VERSION)


def _at_home(
    alert: alertmanager.Alert | alertmanager.Unreadable, external_url: str
) -> alertmanager.Alert | alertmanager.Unreadable:
    """The alert with a `generatorURL` that can be followed from anywhere, if there is one."""
    if isinstance(alert, alertmanager.Unreadable) or not alert.generator_url:
        return alert
    try:
        address = urls.urljoin(external_url, alert.generator_url)
    except ValueError:  # one of the two is no address: it stays what it is
        return alert
    return alert.model_copy(update={"generator_url": address})
