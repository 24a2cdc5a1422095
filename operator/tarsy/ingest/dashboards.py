"""The Grafana dashboard that an alert names, out of its data. Pure.

The alert is data from outside: of an address only the ids are taken, and nothing is ever sent to it.

Sources: Grafana documentation, "Configure the webhook notifier for Alerting" (`dashboardURL`, `panelURL`) and "Link
alert rules to panels" (annotations `__dashboardUid__` and `__panelId__`). Mixins write the annotation `dashboard_url`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from urllib import parse

_UID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_PATH = re.compile(r"/d/([A-Za-z0-9_-]{1,40})(?:/|$)")
_PANEL = re.compile(r"(?:panel-)?([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """A dashboard of Grafana, and perhaps one of its panels."""

    uid: str
    panel: int | None


def find(alert_data: str) -> Dashboard | None:
    """Return the dashboard that alert data names; None if it names none, or does not begin with a JSON object."""
    if "dashboard" not in alert_data and "panelURL" not in alert_data:
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(alert_data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    annotations = document.get("annotations")
    annotations = annotations if isinstance(annotations, dict) else {}
    uid = annotations.get("__dashboardUid__")
    if isinstance(uid, str) and _UID.fullmatch(uid):
        return Dashboard(uid=uid, panel=_panel(annotations.get("__panelId__")))
    addresses = (document.get("panelURL"), document.get("dashboardURL"), annotations.get("dashboard_url"))
    return next(filter(None, map(_at, addresses)), None)


def _at(address: object) -> Dashboard | None:
    """Return the dashboard that an address shows."""
    try:
        url = parse.urlsplit(address if isinstance(address, str) else "")
        panels = parse.parse_qs(url.query, max_num_fields=100).get("viewPanel", [""])
    except ValueError:
        return None
    match = _PATH.search(url.path)
    return Dashboard(uid=match[1], panel=_panel(panels[0])) if match else None


def _panel(number: object) -> int | None:
    match = _PANEL.fullmatch(number) if isinstance(number, str) else None
    return int(match[1]) if match else None
