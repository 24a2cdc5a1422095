"""A WebSocket's connection, with what uvicorn has no limit for: a client that does not read when it is to be closed.

The transport would wait for it to take what was sent, for as long as it keeps the connection open.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets import websockets_sansio_impl
from websockets.protocol import State

from tarsy.api import problems
from tarsy.api.live import sockets, wire

FRAME_MAX = 64 * 1024
"""Bytes of a message of a client; a longer one closes the connection (1009)."""
PING_SECONDS = 20.0
"""How often a client is asked whether it is there, and within which it has to answer."""
_LINES_MAX = 100
_LINE_MAX = 8000
_TOO_LARGE = f"the request of a WebSocket has at most {_LINES_MAX} lines, of {_LINE_MAX} bytes each"
_log = logging.getLogger("uvicorn.error.websockets")
_log.setLevel(logging.WARNING)  # below that, it tells URLs


class Protocol(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _log
        self._abort: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Take what has come; first of all the request, which was HTTP's, and is read once more by who takes less."""
        lines = [] if self.handshake_initiated else data.split(b"\r\n")
        if len(lines) > _LINES_MAX or any(len(line) > _LINE_MAX for line in lines):
            self.handshake_complete = self.close_sent = True
            self.transport.write(problems.raw(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, _TOO_LARGE))
            self.transport.close()
            self._abort_soon()
        else:
            super().data_received(data)

    async def run_asgi(self) -> None:
        """Serve the connection, and be done with it then."""
        await super().run_asgi()
        self._abort_soon()

    async def send(self, message: Any) -> None:
        """Send what the application says; what many are told is a frame already, which they share."""
        text = message.get("text")
        if not isinstance(text, wire.Text):
            await super().send(message)
            return
        await self.writable.wait()
        if self.disconnected or self.close_sent or self.conn.state is not State.OPEN:
            raise ClientDisconnected
        self.transport.write(text.frame)

    def shutdown(self) -> None:
        """Close the connection because the process stops."""
        super().shutdown()
        self._abort_soon()

    def keepalive_timeout(self) -> None:
        """Close the connection of a client that does not answer."""
        super().keepalive_timeout()
        self._abort_soon()

    def handle_parser_exception(self) -> None:
        """Close the connection of a client that breaks the protocol."""
        super().handle_parser_exception()
        self._abort_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        if self._abort is not None:
            self._abort.cancel()
        super().connection_lost(exc)

    def _abort_soon(self) -> None:
        if self._abort is None and not self.disconnected:
            self._abort = self.loop.call_later(sockets.FAREWELL_SECONDS, self.transport.abort)
