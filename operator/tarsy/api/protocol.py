"""HTTP on a connection, with what uvicorn has no limits for: how slowly a request may come, and how many may be open.

Whoever reaches the port can open connections, before any token is asked for. One that is silent, or sends a byte now
and then, costs a place for ten seconds at most. One that does not read its answers has no such limit yet.
"""

from __future__ import annotations

import asyncio
import json
import resource
from http import HTTPStatus

import h11
from uvicorn.protocols.http import h11_impl

from tarsy.api import problems

REQUEST_SECONDS = 10.0
"""A request has to arrive within this, headers and body; a connection's first one from when it is opened."""
DISCARDED_MAX = 1024 * 1024
"""Bytes that still come of a body when its request has been answered: who closes at once may not be heard."""
CONNECTIONS_MAX = 4096
FILES_BESIDE = 1024
"""Files that the process needs beside its connections."""

_SAID = (
    "HTTP/1.1 {status:d} {title}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
)


class Protocol(h11_impl.H11Protocol):
    """One connection."""

    _deadline: asyncio.TimerHandle | None = None
    _discarded = 0
    """Bytes of a body that came after the answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve the connection, unless there are too many."""
        full = len(self.connections) >= CONNECTIONS_MAX
        super().connection_made(transport)
        if full:
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, f"{CONNECTIONS_MAX} connections are open already")
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what has come of a request."""
        if self.transport.is_closing():
            return
        self._wait()
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._discarded += len(data)
            if self._discarded > DISCARDED_MAX:
                self.transport.close()
                return
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._relax()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over."""
        self._relax()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Go on with the next request, of which something may have come already."""
        self._discarded = 0
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._relax()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's word for it says no more
        """Refuse what is no HTTP."""
        self._end(HTTPStatus.BAD_REQUEST, "this is no HTTP request: a line of it cannot be read")

    def _wait(self) -> None:
        """Have the deadline run from now, unless it does."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _relax(self) -> None:
        """A request has arrived."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._deadline = None
        self._end(HTTPStatus.REQUEST_TIMEOUT, f"the request has to arrive within {REQUEST_SECONDS:g} s")

    def _end(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection; it is told why, unless it is in the middle of an answer."""
        if self.transport.is_closing():
            return
        answering = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not answering:
            body = json.dumps(problems.body(status, detail))
            title, kind = problems.phrase(status), problems.MEDIA_TYPE
            said = _SAID.format(status=status, title=title, kind=kind, length=len(body), body=body)
            self.transport.write(said.encode())
        self.transport.close()


def allow_files() -> None:
    """Let the process have as many open files as its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
