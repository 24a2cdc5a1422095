"""The receiver `pagerduty`: a note on the incident that Alertmanager opened for the alert.

Alertmanager names a group of alerts to PagerDuty by the digest of its group key, which its webhooks carry too, so the
incident is found by that. A note cannot be changed: a later message is another note, if its text is another one.

Sources: Alertmanager, `notify/pagerduty` (`dedup_key`); PagerDuty REST API v2: "List incidents" (`incident_key` is also
compared with the keys of an incident's alerts), "Create a note on an incident", "List notes for an incident", "REST API
rate limits" (`ratelimit-reset`).
"""

from __future__ import annotations

import hashlib
import json
import re
import urllib.parse
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from tarsy.config.model import deliveries
from tarsy.deliveries import messages, requests, secrets

INCIDENTS_MAX = 10
"""The incidents of one investigation that have notes: those of the groups of its first alerts."""
ANSWER_MAX = 2 * 1024 * 1024
LISTED_MAX = 5
EARLIEST = timedelta(minutes=10)
"""The time before an investigation within which a resolved incident may be its alert's; earlier ones were others."""
_ID = re.compile(r"[A-Za-z0-9]{1,40}")
_CAUSES = {
    HTTPStatus.UNAUTHORIZED: "it does not accept the API key",
    HTTPStatus.PAYMENT_REQUIRED: "the account may not use its API",
    HTTPStatus.FORBIDDEN: "the API key may not do this; does it only read?",
    HTTPStatus.BAD_REQUEST: "from_email has to be the address of a user of the account",
}


async def send(
    settings: deliveries.PagerDuty, message: messages.Message, attempt: requests.Attempt
) -> Mapping[str, Any]:
    """Write a note on each incident of the alerts that has none with this text. Raises UndeliveredError."""
    if not attempt.group_digests:
        return attempt.sent_as
    calls = _Calls(settings, attempt, secrets.read(settings, "token", attempt.environment))
    content = f"{message.title}\n{message.text}"
    digest = hashlib.sha256(content.encode()).hexdigest()
    notes = dict(attempt.sent_as)
    for key in attempt.group_digests:
        former = notes.get(key, {})
        if former.get("note") == digest:
            continue
        incident = former.get("incident") or await calls.incident(key, since=message.investigation.admitted_at)
        if incident is None:
            continue
        if not attempt.may_be_sent or not await calls.has_note(incident, content):
            await calls.add_note(incident, content)
        notes[key] = {"incident": incident, "note": digest}
        await attempt.keep(notes)
    if not notes:
        raise requests.UndeliveredError(
            "it has no incident of the alert: Alertmanager's receiver has to have pagerduty_configs beside TARSy's "
            "webhook, or a route with the same matchers and group_by",
            of_message=True,
        )
    return notes


class _Calls:
    """Calls of the REST API."""

    def __init__(self, settings: deliveries.PagerDuty, attempt: requests.Attempt, token: str) -> None:
        self._base_url = settings.base_url.rstrip("/")
        self._services = settings.services
        self._client = attempt.client
        self._headers = {
            "Authorization": f"Token token={token}",
            "Accept": "application/vnd.pagerduty+json;version=2",
            "Content-Type": "application/json",
            "From": settings.from_email,
        }

    async def incident(self, key: str, *, since: datetime) -> str | None:
        """Return the id of the newest incident with a key that is open, or not older than the alert.

        A key is one service's own. So none is chosen among incidents of several services. Raises UndeliveredError.
        """
        query = [("incident_key", key), ("sort_by", "created_at:desc"), ("limit", str(LISTED_MAX))]
        query += [("service_ids[]", service) for service in self._services]
        present = [
            incident
            for incident in await self._list("incidents", f"?{urllib.parse.urlencode(query)}")
            if incident.get("status") != "resolved" or _created_at(incident) >= since - EARLIEST
        ]
        services = {_service(incident) for incident in present}
        if len(services) > 1:
            raise requests.UndeliveredError(
                "incidents of several services have the key of the alert: set services of the receiver", of_message=True
            )
        identities = (str(incident.get("id", "")) for incident in present)
        return next((identity for identity in identities if _ID.fullmatch(identity)), None)

    async def has_note(self, incident: str, content: str) -> bool:
        """Return whether an incident has a note with this text."""
        notes = await self._list("notes", f"/{incident}/notes")
        return any(str(note.get("content", "")).split() == content.split() for note in notes)

    async def add_note(self, incident: str, content: str) -> None:
        """Add a note."""
        await self._call("POST", f"/{incident}/notes", {"note": {"content": content}})

    async def _list(self, name: str, path: str) -> list[Mapping[str, Any]]:
        document = await self._call("GET", path)
        listed = document.get(name)
        if not isinstance(listed, list):
            raise requests.UndeliveredError(f"it answers without {name}")
        return [listed_one for listed_one in listed if isinstance(listed_one, dict)]

    async def _call(self, method: str, path: str, values: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        body = None if values is None else json.dumps(values).encode()
        try:
            answer = await self._client.send(
                method, f"{self._base_url}/incidents{path}", headers=self._headers, body=body, answer_max=ANSWER_MAX
            )
        except requests.UndeliveredError as error:
            if cause := _CAUSES.get(error.status or 0):  # type: ignore[call-overload]
                of_message = error.status == HTTPStatus.FORBIDDEN and path.endswith(
                    "/notes"
                )  # of another team, perhaps
                raise requests.UndeliveredError(
                    f"{error}: {cause}", after=error.after, of_message=of_message, status=error.status
                ) from error
            error.of_message |= error.status == HTTPStatus.NOT_FOUND
            raise
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise requests.UndeliveredError("it answers no JSON object")
        return document


def _service(incident: Mapping[str, Any]) -> str:
    service = incident.get("service")
    return str(service.get("id", "")) if isinstance(service, dict) else ""


def _created_at(incident: Mapping[str, Any]) -> datetime:
    try:
        at = datetime.fromisoformat(str(incident.get("created_at", "")))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return at if at.tzinfo else at.replace(tzinfo=UTC)
