"""A Grafana on loopback: the annotations of its dashboards, as its documentation describes their API.

Source: Grafana documentation, "Annotations HTTP API".
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from support import receivers

TOKEN = "glsa_4711_a-token-of-a-service-account"
DASHBOARD = "shop"


@dataclass(kw_only=True)
class Grafana:
    """One dashboard, and its annotations by id."""

    annotations: dict[int, dict[str, Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def answer(self, request: receivers.Request) -> web.StreamResponse:
        self.calls.append(request.method)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return web.json_response({"message": "Invalid API key"}, status=401)
        values = json.loads(request.body) if request.body else {}
        last = request.path.rpartition("/")[2]
        match request.method:
            case "POST" if values["dashboardUID"] != DASHBOARD:
                return web.json_response({"message": "Dashboard not found"}, status=404)
            case "POST" if not values["text"] or len(json.dumps(values["tags"])) > 500:
                return web.json_response({"message": "Failed to save annotation"}, status=400)
            case "POST":
                number = len(self.annotations) + 1
                self.annotations[number] = {"id": number, **values}
                return web.json_response({"message": "Annotation added", "id": number})
            case "PATCH" if int(last) not in self.annotations:
                return web.json_response({"message": "Annotation not found"}, status=404)
            case "PATCH":
                self.annotations[int(last)] |= values
                return web.json_response({"message": "Annotation patched"})
            case _:
                return web.json_response(
                    [annotation for annotation in self.annotations.values() if self._matches(annotation, request.query)]
                )

    @staticmethod
    def _matches(annotation: dict[str, Any], query: dict[str, str]) -> bool:
        return annotation["dashboardUID"] == query["dashboardUID"] and query["tags"] in annotation["tags"]
