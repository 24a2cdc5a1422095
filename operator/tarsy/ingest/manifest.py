"""Builds the AlertInvestigation that one alert asks for."""

from __future__ import annotations

import json
from typing import Any

from tarsy.config import platform
from tarsy.ingest import alertmanager
from tarsy.resources import base, investigation, naming
from tarsy.transcript import messages


class TooLargeError(ValueError):
    """The alert is larger than an object may be."""


def alert_type(alert: alertmanager.Alert, settings: platform.Ingest) -> str:
    """The type that an alert names itself: by its own label, else by its alertname; "" where it has neither."""
    return alert.labels.get(settings.alert_type_label) or alert.labels.get("alertname", "")


def build(
    alert: alertmanager.Alert, notification: alertmanager.Notification, *, alert_type: str, namespace: str
) -> dict[str, Any]:
    """The object of one firing alert, in `namespace`: the alert as JSON, with what its notification knows of it.

    A TooLargeError says by how much it is too large.
    """
    data = messages.storable(
        json.dumps(
            {
                **alert.raw,
                "receiver": notification.receiver,
                "groupLabels": notification.group_labels,
                "externalURL": notification.external_url,
            },
            indent=1,
            ensure_ascii=False,
        )
    )
    if len(data) > investigation.ALERT_DATA_MAX:
        raise TooLargeError(f"the alert has {len(data)} characters, at most {investigation.ALERT_DATA_MAX} are taken")
    fingerprint = naming.hex16(alert.fingerprint or json.dumps(alert.labels, sort_keys=True))
    name = naming.for_alert(
        alertname=alert.labels.get("alertname", ""), fingerprint=fingerprint, starts_at=alert.starts_at
    )
    spec = investigation.Spec(
        alert_type=alert_type, alert_data=data, fingerprint=fingerprint, starts_at=alert.starts_at
    )
    return {
        "apiVersion": base.API_VERSION,
        "kind": investigation.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
