"""uvicorn's HTTP connection, with limits that it lacks: on the number of connections, and on the pace of clients.

Every program that reaches the port can open connections, before any token is asked for. A connection is closed if its
request does not arrive in time. It is aborted if its client does not read the answer. Limits for each address are left
to an ingress.
"""

from __future__ import annotations

import asyncio
import resource
from http import HTTPStatus
from typing import Any

import h11
from fastapi import Request
from uvicorn.protocols.http import h11_impl

from tarsy.serve import answers, problems

REQUEST_SECONDS = 10.0
"""Seconds in which a request has to arrive, headers and body; the first one counts from the opened connection."""
READ_SECONDS = 30.0
"""Seconds in which a written piece, of `answers.PIECE` bytes or less, has to leave the process."""
DISCARDED_MAX = 1024 * 1024
"""Bytes of a body that are discarded after the answer: an abort would hide it from a client that still sends."""
LINGER_SECONDS = 1.0
"""Seconds for which bytes of a refused request are discarded, so that its client can read the reason."""
CONNECTIONS_MAX = 4096
FILES_BESIDE = 1024
"""Files that the process needs beside its connections."""
_READ_LIMIT = "read_seconds"


def limit_reading(request: Request, seconds: float) -> None:
    """Require the client of a request to read each piece of the answer within `seconds`, instead of READ_SECONDS."""
    setattr(request.state, _READ_LIMIT, seconds)


class _Parser(h11.Connection):
    """h11's parser, which refuses a body with two lengths.

    If a request has both, h11 uses Transfer-Encoding. A proxy that uses Content-Length would see the request end
    elsewhere, and take the bytes after that for the next request (RFC 9112, section 6.3).
    """

    problem = "a line of it cannot be parsed"
    """The reason of a refusal, for the client."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the next event. Raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                self.problem = "it has both Content-Length and Transfer-Encoding"
                raise h11.RemoteProtocolError(self.problem)
        return event


class Protocol(h11_impl.H11Protocol):
    """One connection."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self.app = answers.in_pieces(self.app)
        self.conn = self._parser = _Parser(h11.SERVER)
        self._arrival: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._discarded = 0
        self._closing: asyncio.TimerHandle | None = None
        """The timer that closes the connection after a refusal."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve the connection, unless there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # writing is paused while any byte is buffered
        if len(self.connections) > CONNECTIONS_MAX:
            transport.write(
                problems.raw_response(HTTPStatus.SERVICE_UNAVAILABLE, f"{CONNECTIONS_MAX} connections are open already")
            )
            transport.close()
        else:
            self._start_arrival_timer()

    def pause_writing(self) -> None:
        """Abort the connection unless the written bytes leave the process in time."""
        super().pause_writing()
        state = self.scope["state"] if self.scope else {}  # `request.state`
        seconds: float = state.get(_READ_LIMIT, READ_SECONDS)
        self._reading = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer of `pause_writing`."""
        super().resume_writing()
        self._stop_reading_timer()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to the WebSocket protocol, without the timers of requests."""
        self._stop_arrival_timer()
        self._stop_reading_timer()
        self.transport.set_write_buffer_limits()
        super().handle_websocket_upgrade(event)

    def data_received(self, data: bytes) -> None:
        """Parse data; close the connection if too many bytes of a body arrive after the answer."""
        if self.transport.is_closing() or self._closing is not None:
            return
        self._start_arrival_timer()
        if self.cycle is not None and self.cycle.response_complete and self.conn.their_state is h11.SEND_BODY:
            self._discarded += len(data)
            if self._discarded > DISCARDED_MAX:
                self.transport.close()
                return
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_arrival_timer()

    def on_response_complete(self) -> None:
        """Continue with the next request, a part of which may have arrived already."""
        self._discarded = 0
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and not self.transport.is_closing():
            self._start_arrival_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self._stop_arrival_timer()
        self._stop_reading_timer()
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Close the connection, or let it complete its answer first."""
        if self._closing is not None:
            self.transport.close()
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's message is the same for all
        """Refuse a request that cannot be parsed, and close the connection."""
        detail = f"the request cannot be served: {self._parser.problem}"
        self._close(HTTPStatus.BAD_REQUEST, detail)

    def _start_arrival_timer(self) -> None:
        if self._arrival is None:
            self._arrival = self.loop.call_later(REQUEST_SECONDS, self._refuse_late)

    def _stop_arrival_timer(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _stop_reading_timer(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _refuse_late(self) -> None:
        self._arrival = None
        self._close(HTTPStatus.REQUEST_TIMEOUT, f"the request has to arrive within {REQUEST_SECONDS:g} s")

    def _close(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection with a problem, unless it is in the middle of an answer.

        A close while bytes are unread resets the connection, and its client may lose the reason. So only the writing
        half is closed at first (RFC 9112, section 9.6).
        """
        if self.transport.is_closing() or self._closing is not None:
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()
            return
        self.transport.write(problems.raw_response(status, detail))
        self.transport.write_eof()
        self._stop_arrival_timer()
        self._closing = self.loop.call_later(LINGER_SECONDS, self.transport.close)


def allow_files() -> None:
    """Raise the process's limit of open files to the number that its connections need, or as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
