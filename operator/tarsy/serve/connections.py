"""HTTP on a connection, with limits that uvicorn lacks: the number of connections, and the pace of clients.

Every program that reaches the port can open connections, before any token is asked for. One that is silent, or sends a
byte now and then, is closed after ten seconds. One that does not read its answer is aborted after thirty, and the
answer is dropped. If all places are taken, an idle connection makes room for the next. A process does not tell one
address from another: that is an ingress's work.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import operator
import resource
from http import HTTPStatus
from typing import Any

import h11
from fastapi import Request
from uvicorn.protocols.http import h11_impl

from tarsy.serve import answers, framing, problems

REQUEST_SECONDS = 10.0
"""A request has to arrive within this, headers and body; a connection's first one from when it is opened."""
READ_SECONDS = 30.0
"""The seconds in which a written piece, of `answers.PIECE` bytes or less, has to leave the process."""
DISCARDED_MAX = 1024 * 1024
"""Bytes that still come of a body when its request has been answered: who closes at once may not be heard."""
CONNECTIONS_MAX = 4096
LOOKED_AT = 256
"""The connections that are looked at for an idle one, when all places are taken."""
FILES_BESIDE = 1024
"""Files that the process needs beside its connections."""
_READ_LIMIT = "read_seconds"

_SAID = (
    "HTTP/1.1 {status:d} {title}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
)


def limit_reading(request: Request, seconds: float) -> None:
    """Have the client of a request take each piece of the answer within `seconds`, instead of READ_SECONDS."""
    setattr(request.state, _READ_LIMIT, seconds)


class Protocol(h11_impl.H11Protocol):
    """One connection."""

    def __init__(self, **arguments: Any) -> None:
        """`arguments` are uvicorn's."""
        super().__init__(**arguments)
        self.app = answers.in_pieces(self.app)
        self._lines = self.conn._receive_buffer = framing.Lines()
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._discarded = 0  # bytes of a body that came after the answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Serve the connection, unless there are too many."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so it is paused while anything is left
        if len(self.connections) > CONNECTIONS_MAX and not self._make_room():
            self._end(HTTPStatus.SERVICE_UNAVAILABLE, f"{CONNECTIONS_MAX} connections are open already")
        else:
            self._wait()

    def pause_writing(self) -> None:
        """Not all that was written is gone: have it read in time."""
        super().pause_writing()
        state = self.scope["state"] if self.scope else {}  # that of the request
        seconds: float = state.get(_READ_LIMIT, READ_SECONDS)
        self._unread = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It is."""
        super().resume_writing()
        self._read()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over, without the deadlines of requests."""
        self._relax()
        self._read()
        self.transport.set_write_buffer_limits()
        super().handle_websocket_upgrade(event)

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

    def on_response_complete(self) -> None:
        """Go on with the next request, of which something may have come already."""
        self._discarded = 0
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0] and not self.transport.is_closing():
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._relax()
        self._read()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's message is the same for all
        """Refuse a request that is no HTTP, or that another parser could read otherwise, and close the connection."""
        problem = self._lines.problem or "a line of it cannot be read"
        self._end(HTTPStatus.BAD_REQUEST, f"this is no HTTP request that can be served: {problem}")

    def _wait(self) -> None:
        """Have the deadline run from now, unless it does."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _relax(self) -> None:
        """A request has arrived."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _read(self) -> None:
        """Nothing is left to be read, or it is not ours to ask for."""
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

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
            answer = _SAID.format(status=status, title=title, kind=kind, length=len(body), body=body)
            self.transport.write(answer.encode())
        self.transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, if there is one; return whether there was."""
        looked_at = itertools.islice(self.connections, LOOKED_AT)
        others = (connection for connection in looked_at if isinstance(connection, Protocol) and connection is not self)
        waiting = ((since, connection) for connection in others if (since := connection._waits_since()) is not None)
        _, first = min(waiting, key=operator.itemgetter(0), default=(None, None))
        if first is not None:
            message = "others need the place of this connection, which asks for nothing"
            first._end(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return first is not None

    def _waits_since(self) -> tuple[int, float] | None:
        """Return the rank for making room: an unfinished request, then a pause between two; or None."""
        if not self.transport.is_closing() and not self.flow.write_paused:
            for rank, timer in enumerate((self._deadline, self.timeout_keep_alive_task)):
                if timer is not None:
                    return rank, timer.when()
        return None


def allow_files() -> None:
    """Let the process have as many open files as its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
