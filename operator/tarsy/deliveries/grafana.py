"""The receiver `grafana`: an annotation on the dashboard that the alert names, from the start to the end.

The annotation has the investigation's id as a tag, by which one is found that was created by a process that died before
it noted that. Grafana reads texts as HTML, so texts from outside are escaped.

Source: Grafana documentation, "Annotations HTTP API": `POST` and `GET /api/annotations`, `PATCH /api/annotations/:id`.
"""

from __future__ import annotations

import html
import json
import urllib.parse
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from tarsy.config.model import deliveries
from tarsy.deliveries import messages, requests, secrets

TAG = "tarsy"
_OF_MESSAGE = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""The statuses of a dashboard that does not exist, or that the token may not write to; others may be taken."""


async def send(settings: deliveries.Grafana, message: messages.Message, attempt: requests.Attempt) -> Mapping[str, Any]:
    """Create or change the annotation, if the alert names a dashboard. Raises UndeliveredError."""
    about = message.investigation
    if about.dashboard is None:
        return {}
    address = f"{settings.base_url.rstrip('/')}/api/annotations"
    headers = {
        "Authorization": f"Bearer {secrets.read(settings, 'token', attempt.environment)}",
        "Accept": "application/json",
        "Content-Type": "application/json",
    }

    async def call(method: str, path: str, values: Mapping[str, Any] | None = None) -> Any:
        body = None if values is None else json.dumps(values).encode()
        try:
            answer = await attempt.client.send(method, f"{address}{path}", headers=headers, body=body)
        except requests.UndeliveredError as error:
            error.of_message |= error.status in _OF_MESSAGE
            raise
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise requests.UndeliveredError("it answers no JSON") from None

    number = attempt.sent_as.get("id")
    if number is None and attempt.may_be_sent:
        query = {"dashboardUID": about.dashboard.uid, "tags": _tag(about), "type": "annotation", "limit": "1"}
        existing = await call("GET", f"?{urllib.parse.urlencode(query)}")
        number = _id(existing[0]) if isinstance(existing, list) and existing else None
    values = annotation(message)
    if number is not None:
        try:
            await call("PATCH", f"/{number}", values)
        except requests.UndeliveredError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        else:
            return {"id": number}
    panel = {"dashboardUID": about.dashboard.uid, "panelId": about.dashboard.panel or 0}
    number = _id(await call("POST", "", {**panel, **values}))
    if number is None:
        raise requests.UndeliveredError("it answers without the id of the annotation")
    return {"id": number}


def annotation(message: messages.Message) -> dict[str, Any]:
    """Return the values of the annotation that may change."""
    about = message.investigation
    lines = [html.escape(line) for line in (message.title, *messages.lines_without_links(message))]
    for name, url in (("Runbook", about.links.runbook), ("Investigation", about.links.page)):
        if url:
            lines.append(f'<a href="{html.escape(url)}">{name}</a>')
    started = about.started_at or about.admitted_at
    return {
        "time": _milliseconds(started),
        "timeEnd": _milliseconds(about.ended_at or started),
        "tags": [TAG, _tag(about), about.phase],
        "text": "<br>\n".join(lines),
    }


def _id(answer: object) -> int | None:
    """Return the id of an annotation; None if an answer has none."""
    number = answer.get("id") if isinstance(answer, dict) else None
    return number if isinstance(number, int) else None


def _tag(about: messages.Investigation) -> str:
    return f"{TAG}:{about.id}"


def _milliseconds(time: datetime) -> int:
    return int(time.timestamp() * 1000)
