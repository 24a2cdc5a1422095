"""A WebSocket's connection, with what uvicorn has no limit for: a client that does not read when it is to be closed.

The transport would wait for it to take what was sent, for as long as it keeps the connection open.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.websockets import websockets_sansio_impl

from tarsy.api.live import sockets

FRAME_MAX = 64 * 1024
"""Bytes of a message of a client; a longer one closes the connection (1009)."""
PING_SECONDS = 20.0
"""How often a client is asked whether it is there, and within which it has to answer."""
_log = logging.getLogger("uvicorn.error.websockets")
_log.setLevel(logging.WARNING)  # below that, it tells URLs


class Protocol(websockets_sansio_impl.WebSocketsSansIOProtocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.logger = _log
        self._abort: asyncio.TimerHandle | None = None

    async def run_asgi(self) -> None:
        """Serve the connection, and be done with it then."""
        await super().run_asgi()
        self._abort_soon()

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
