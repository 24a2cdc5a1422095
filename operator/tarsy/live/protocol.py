"""A WebSocket's connection, with what uvicorn has no limit for: how many frames come, and a client that does not read.

Frames may be empty, so a read of 64 KiB may be ten thousand of them, and uvicorn answers each ping. They are counted
where they are parsed, whatever they are, and behind the one that is too many nothing is parsed. What is sent to a
client that does not read would wait in the transport for as long as it keeps the connection open.
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

from tarsy.live import outbox, sockets, wire
from tarsy.serve import http_server, problems, rates

FRAME_MAX = 64 * 1024
"""Bytes of a message of a client; a longer one closes the connection (1009)."""
FRAMES_PER_SECOND = 10.0
FRAMES_BURST = 200
"""Frames of a client, of any kind."""
FRAGMENTS_MAX = 16
"""Frames of one message."""
DISCARDED_MAX = 1024 * 1024
"""Bytes that still come of a client that was told why it is closed: who closes at once may not be heard."""
PING_SECONDS = 20.0
"""How often a client is asked whether it is there, and within which it has to answer once it has read the rest."""
_LINES_MAX = 100
_LINE_MAX = 8000
_TOO_LARGE = f"the request of a WebSocket has at most {_LINES_MAX} lines, of {_LINE_MAX} bytes each"
_NO_HANDSHAKE = "this is no request that opens a WebSocket: it is a GET without a body (RFC 6455, section 4.1)"
_log = logging.getLogger("uvicorn.error.websockets")
_log.setLevel(logging.WARNING)  # below that, it tells URLs


class _Counted(server.ServerProtocol):
    """Parses frames until there are too many."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._rates = rates.Rates(per_second=FRAMES_PER_SECOND, burst=FRAMES_BURST)
        self._fragments = 0

    def recv_frame(self, frame: frames.Frame) -> None:
        """Take a frame; a ProtocolError, which ends the parser, where it is too many."""
        if frame.opcode not in frames.CTRL_OPCODES:
            self._fragments = self._fragments + 1 if frame.opcode is frames.Opcode.CONT else 1
        if self._rates.take(""):
            self._refuse(f"more than {FRAMES_PER_SECOND:g} frames a second")
        if self._fragments > FRAGMENTS_MAX:
            self._refuse(f"a message of more than {FRAGMENTS_MAX} frames")
        super().recv_frame(frame)

    def _refuse(self, reason: str) -> None:
        self.fail(sockets.POLICY, reason)
        raise exceptions.ProtocolError(reason)


class Protocol(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _log
        self.conn = _Counted(max_size=self.config.ws_max_size, logger=_log)
        self._abort: asyncio.TimerHandle | None = None
        self._progress: asyncio.TimerHandle | None = None
        self._pong = b""
        """The answer to the last ping, while there is no room for it."""
        self._discarded = 0

    def data_received(self, data: bytes) -> None:
        """Take what has come; first of all the request, which was HTTP's, and is read once more by who takes less."""
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
        if not self.handshake_initiated:  # uvicorn would say nothing, and keep the connection
            self._refuse(HTTPStatus.BAD_REQUEST, _NO_HANDSHAKE)

    async def run_asgi(self) -> None:
        """Serve the connection, and be done with it then."""
        await super().run_asgi()
        self._abort_soon()

    async def send(self, message: Any) -> None:
        """Send what the application says; what many are told is a frame already, which they share."""
        frame = message.get("bytes")
        if self.handshake_complete and self.close_sent:
            raise ClientDisconnected
        if not isinstance(frame, wire.Frame):
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(frame)
        await self.writable.wait()  # until then it is held

    def shutdown(self) -> None:
        """Close the connection because the process stops."""
        super().shutdown()
        self._abort_soon()

    def pause_writing(self) -> None:
        """Too much of what was written is there still: have it read, some of it each time."""
        super().pause_writing()
        self._mind_progress()

    def resume_writing(self) -> None:
        """Most of it is gone."""
        super().resume_writing()
        if self._progress is not None:
            self._progress.cancel()
            self._progress = None
        if self._pong and not self.close_sent:
            self.transport.write(self._pong)
        self._pong = b""
        self._ask_on()

    def handle_ping(self) -> None:
        """Answer it; where no room is, the last one alone and later. Source: RFC 6455, section 5.5.3."""
        if self.writable.is_set():
            super().handle_ping()
        elif answers := self.conn.data_to_send():  # to all that came at once; none for the others of these
            self._pong = answers[-1]

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that does not answer; what it has to read first is another's question."""
        if not self.writable.is_set():
            self._ask_on()
            return
        super().keepalive_timeout()
        self._abort_soon()

    def handle_parser_exception(self) -> None:
        """Close the connection of a client that breaks the protocol, and take no more of what it says."""
        sent = self.conn.close_sent
        if sent is None:  # it began before it was let in
            self.transport.abort()
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": sent.code, "reason": sent.reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.close_timer is None:
            self.close_timer = self.loop.call_later(sockets.FAREWELL_SECONDS, self.transport.abort)
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        for timer in (self._abort, self._progress):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def _refuse(self, status: HTTPStatus, detail: str) -> None:
        """Close the connection, of which no WebSocket comes, and say why."""
        self.handshake_complete = self.close_sent = True
        self.transport.write(problems.raw(status, detail))
        self.transport.close()
        self._abort_soon()

    def _mind_progress(self) -> None:
        """Drop the connection of who takes nothing; what waits does not grow, since nothing is written meanwhile."""
        waits = self.transport.get_write_buffer_size()

        def check() -> None:
            if self.transport.get_write_buffer_size() < waits:
                self._mind_progress()
            else:
                self.transport.abort()

        self._progress = self.loop.call_later(outbox.PROGRESS_SECONDS, check)

    def _ask_on(self) -> None:
        """Have the answer to a ping of ours arrive within the time that begins now."""
        if self.pong_timer is not None:
            self.pong_timer.cancel()
            self.pong_timer = self.loop.call_later(PING_SECONDS, self.keepalive_timeout)

    def _abort_soon(self) -> None:
        if self._abort is None and not self.disconnected:
            self._abort = self.loop.call_later(sockets.FAREWELL_SECONDS, self.transport.abort)


def websockets() -> http_server.WebSockets:
    """Return the protocol with its limits, for the server."""
    return http_server.WebSockets(protocol=Protocol, frame_max=FRAME_MAX, ping_seconds=PING_SECONDS)
