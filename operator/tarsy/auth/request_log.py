"""The log line of each read and of each refused request (`action=audit`), for collectors of logs.

Changes have rows in the audit instead (`store.base.audit`); an export has both. A line says who asked, from where, for
what, and the answer's status. It has the names of the parameters and never their values: a search may quote an alert.
Probes, metrics and static files ask for no caller and have no line. Neither has a request that was not served for
another reason, such as a wrong parameter, too many requests or an unavailable database: nothing was read.
"""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette import types
from starlette.requests import HTTPConnection

REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)
"""An unknown caller, a caller without the right, and an object that does not exist or that the caller may not know."""
_READING = ("GET", "HEAD")
_STATE = "audit"

log = logging.getLogger(__name__)


def note(connection: HTTPConnection, **fields: str) -> None:
    """Add fields to the line of a request: `who`, `address`, `credential`, and the object that it asks for."""
    connection.scope.setdefault("state", {}).setdefault(_STATE, {}).update(fields)


def write(connection: HTTPConnection, *, status: int, **fields: str) -> None:
    """Write the line of a subscription on a WebSocket, which may have many; `fields` name its object."""
    noted = connection.scope.get("state", {}).get(_STATE, {})
    caller = {name: noted[name] for name in ("who", "address", "credential") if name in noted}
    if status in (HTTPStatus.OK, *REFUSALS):
        _write({**caller, **fields, "method": "SUBSCRIBE", "path": connection.scope["path"]}, status)


class RequestLog:
    """Middleware that writes the lines."""

    def __init__(self, app: types.ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        """Serve a request; its line is written when the answer begins, because a stream lasts for hours."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        noted: dict[str, str] = {}
        scope.setdefault("state", {})[_STATE] = noted

        async def send_and_log(message: types.Message) -> None:
            if message["type"] == "http.response.start" and noted:
                status, is_read = message["status"], scope["method"] in _READING
                if status in REFUSALS or (is_read and status < HTTPStatus.BAD_REQUEST):
                    parameters = ",".join(sorted(HTTPConnection(scope).query_params.keys()))
                    fields = {"method": scope["method"], "path": scope["route"].path, **noted}
                    _write(fields | ({"parameters": parameters} if parameters else {}), status)
            await send(message)

        await self._app(scope, receive, send_and_log)


def _write(fields: dict[str, str], status: int) -> None:
    refused = "refused" if status in REFUSALS else "served"
    log.info("request %s", refused, extra={"action": "audit", **fields, "status": int(status)})
