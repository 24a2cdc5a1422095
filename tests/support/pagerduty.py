"""A PagerDuty on loopback: incidents by the keys of their alerts, and their notes, as its documentation describes them.

Source: PagerDuty REST API v2, "List incidents", "Create a note on an incident", "List notes for an incident", "Errors".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web
from support import receivers

TOKEN = "u+4711-an-api-key"
USER = "tarsy@shop.example"


@dataclass(kw_only=True)
class PagerDuty:
    """Incidents, the oldest first."""

    incidents: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, list[str]] = field(default_factory=dict)
    """The contents of notes by their incidents' ids."""
    calls: list[str] = field(default_factory=list)
    limits: int = 0
    """The number of next calls that are answered 429."""

    def opened(self, *keys: str, status: str = "triggered", ago: timedelta = timedelta(), service: str = "PWEB") -> str:
        """An incident of a service whose alerts have these keys; its id."""
        identity = f"P{len(self.incidents)}AB"
        at = (datetime.now(UTC) - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.incidents.append(
            {"id": identity, "status": status, "created_at": at, "keys": keys, "service": {"id": service}}
        )
        self.notes[identity] = []
        return identity

    def answer(self, request: receivers.Request) -> web.StreamResponse:
        self.calls.append(f"{request.method} {request.path}")
        if self.limits:
            self.limits -= 1
            return web.Response(status=429, headers={"ratelimit-limit": "960", "ratelimit-reset": "7"})
        if request.headers.get("authorization") != f"Token token={TOKEN}":
            return web.Response(status=401, text="HTTP Token: Access denied.")
        if request.headers["accept"] != "application/vnd.pagerduty+json;version=2":
            return self._error(406, "Not Acceptable")
        match request.path.strip("/").split("/"):
            case ["incidents"]:
                hits = [case for case in reversed(self.incidents) if request.query["incident_key"] in case["keys"]]
                assert request.query["sort_by"] == "created_at:desc"
                if service := request.query.get("service_ids[]"):
                    hits = [case for case in hits if case["service"]["id"] == service]
                return web.json_response({"incidents": hits[: int(request.query["limit"])], "more": False})
            case ["incidents", identity, "notes"] if identity in self.notes:
                return self._notes(request, self.notes[identity])
        return self._error(404, "Not Found")

    def _notes(self, request: receivers.Request, notes: list[str]) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"notes": [{"id": "N", "content": content} for content in notes]})
        content = json.loads(request.body)["note"]["content"]
        if request.headers.get("from") != USER:
            return self._error(400, "Invalid Input Provided", ["Requester User Not Found"])
        notes.append(content)
        return web.json_response({"note": {"id": "N", "content": content}}, status=201)

    @staticmethod
    def _error(status: int, message: str, errors: Sequence[str] = ()) -> web.StreamResponse:
        return web.json_response({"error": {"code": 2001, "message": message, "errors": list(errors)}}, status=status)
