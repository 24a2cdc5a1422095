"""uvicorn's WebSocket connection, with limits that it lacks: on frames, and on clients that do not read.

Frames may be empty, so a read of 64 KiB may have ten thousand of them, and uvicorn answers each ping. So the parser
counts frames of every kind, and stops at the first one beyond the limit. Without a limit for clients that do not read,
the transport would hold the data for them as long as they keep the connection open.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets import websockets_sansio_impl
from websockets import exceptions, frames, server
from websockets.protocol import State

from tarsy.live import backlogs, live_events, web_sockets
from tarsy.serve import http_server, limits, problems

FRAME_MAX = 64 * 1024
"""Bytes of a client's message; a longer one closes the connection (1009)."""
FRAMES_PER_SECOND = 10.0
FRAMES_BURST = 200
"""Frames of a client, of any kind."""
FRAGMENTS_MAX = 16
"""Frames of one message."""
DISCARDED_MAX = 1024 * 1024
"""Bytes that are discarded after a close: an abort before that would keep the reason from a client that still sends."""
PING_SECONDS = 20.0
"""Seconds between two pings. A client that has read everything has to answer a ping within the same time."""
_LINES_MAX = 100
_LINE_MAX = 8000
_TOO_LARGE = f"the request of a WebSocket has at most {_LINES_MAX} lines, of {_LINE_MAX} bytes each"
_NO_HANDSHAKE = "only a GET without a body opens a WebSocket (RFC 6455, section 4.1)"
_log = logging.getLogger("uvicorn.error.websockets")
_log.setLevel(logging.WARNING)  # below that, it logs URLs


class _CountingParser(server.ServerProtocol):
    """The parser of frames, which fails when there are too many."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rates = limits.Rates(per_second=FRAMES_PER_SECOND, burst=FRAMES_BURST)
        self._fragments = 0

    def recv_frame(self, frame: frames.Frame) -> None:
        """Receive a frame. Raises ProtocolError, which ends the parser, if there were too many."""
        if frame.opcode not in frames.CTRL_OPCODES:
            self._fragments = self._fragments + 1 if frame.opcode is frames.Opcode.CONT else 1
        if self._rates.take(""):
            self._refuse(f"more than {FRAMES_PER_SECOND:g} frames a second")
        if self._fragments > FRAGMENTS_MAX:
            self._refuse(f"a message of more than {FRAGMENTS_MAX} frames")
        super().recv_frame(frame)

    def _refuse(self, reason: str) -> None:
        self.fail(web_sockets.POLICY, reason)
        raise exceptions.ProtocolError(reason)


class Protocol(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.logger = _log
        self.conn = _CountingParser(max_size=self.config.ws_max_size, logger=_log)
        self._abort: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._pong = b""
        """The answer to the last ping, while the client does not read."""
        self._discarded = 0

    def data_received(self, data: bytes) -> None:
        """Parse data. The first is the opening request, which the HTTP parser accepted; its limits are lower here."""
        if self.conn.parser_exc is not None:
            self._discarded += len(data)
            if self._discarded > DISCARDED_MAX:
                self.transport.abort()
            return
        lines = [] if self.handshake_initiated else data.split(b"\r\n")
        if len(lines) > _LINES_MAX or any(len(line) > _LINE_MAX for line in lines):
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE)
            return
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn would keep the connection without an answer
            self._refuse(HTTPStatus.BAD_REQUEST, _NO_HANDSHAKE)

    async def run_asgi(self) -> None:
        """Serve the connection, and close it."""
        await super().run_asgi()
        self._abort_soon()

    async def send(self, message: Any) -> None:
        """Send a message of the application; a live event is an encoded frame that clients share."""
        frame = message.get("bytes")
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        if not isinstance(frame, live_events.TextFrame):
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(frame)
        await self.writable.wait()  # until then the backlog holds it

    def shutdown(self) -> None:
        """Close the connection because the process stops."""
        super().shutdown()
        self._abort_soon()

    def pause_writing(self) -> None:
        """Pause, and drop the client if it reads nothing."""
        super().pause_writing()
        self._abort_when_stalled()

    def resume_writing(self) -> None:
        """Resume, and answer the last ping."""
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        if self._pong and not self.close_sent:
            self.transport.write(self._pong)
        self._pong = b""
        self._restart_pong_timer()

    def handle_ping(self) -> None:
        """Answer a ping; a client that does not read gets one answer, to the last ping, when it reads again.

        Source: RFC 6455, section 5.5.3.
        """
        if self.writable.is_set():
            super().handle_ping()
        elif answers := self.conn.data_to_send():  # to all pings that came at once
            self._pong = answers[-1]

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that has read all and does not answer a ping."""
        if not self.writable.is_set():
            self._restart_pong_timer()
            return
        super().keepalive_timeout()
        self._abort_soon()

    def handle_parser_exception(self) -> None:
        """Close the connection of a client that violates the protocol, and parse no more of its data."""
        sent = self.conn.close_sent
        if sent is None:  # before the handshake
            self.transport.abort()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(web_sockets.CLOSE_SECONDS, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        for timer in (self._abort, self._stalled):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Answer a request that opens no WebSocket with a problem, and close the connection."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(problems.raw_response(status, detail))
        self.transport.close()
        self._abort_soon()

    def _abort_when_stalled(self) -> None:
        """Abort the connection if the client reads nothing for STALLED_SECONDS; nothing is written meanwhile."""
        unread = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < unread:
                self._abort_when_stalled()
            else:
                self.transport.abort()

        self._stalled = self.loop.call_later(backlogs.STALLED_SECONDS, check)

    def _restart_pong_timer(self) -> None:
        if self.pong_timer is not None:
            self.pong_timer.cancel()
            self.pong_timer = self.loop.call_later(PING_SECONDS, self.keepalive_timeout)

    def _abort_soon(self) -> None:
        if self._abort is None and not self.disconnected:
            self._abort = self.loop.call_later(web_sockets.CLOSE_SECONDS, self.transport.abort)


def websockets() -> http_server.WebSockets:
    """Return the protocol with its limits, for the server."""
    return http_server.WebSockets(protocol=Protocol, frame_max=FRAME_MAX, ping_seconds=PING_SECONDS)
