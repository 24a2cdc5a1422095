"""The HTTP server: uvicorn, on a socket that we bind, without signal handlers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import uvicorn
from starlette import types

from tarsy.serve import connections

SWITCH_SECONDS = 0.0005
"""The interval after which a busy thread hands the interpreter to the event loop; Python's default is 5 ms."""


@dataclass(frozen=True, kw_only=True)
class WebSockets:
    """The protocol class of WebSockets, with its limits."""

    protocol: type[asyncio.Protocol]
    frame_max: int
    """Bytes of a client's message."""
    ping_seconds: float
    """Seconds between two pings, and until a ping has to be answered."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket; uvicorn would end the process with SystemExit if the port is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, because asyncio disables Nagle's algorithm only then.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


async def serve(
    app: types.ASGIApp,
    bound: socket.socket,
    *,
    websockets: WebSockets | None = None,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve until cancelled; then call `stopping`, and finish the requests under way."""
    connections.allow_files()
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(
        uvicorn.Config(
            app,
            http=connections.Protocol,
            ws=websockets.protocol if websockets else "none",
            ws_max_size=websockets.frame_max if websockets else 0,
            ws_per_message_deflate=False,  # memory and time for each connection
            ws_ping_interval=websockets.ping_seconds if websockets else None,
            ws_ping_timeout=websockets.ping_seconds if websockets else None,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # uvicorn would believe every proxy on this machine
            timeout_graceful_shutdown=10,
        )
    )
    serving = asyncio.ensure_future(server.serve(sockets=[bound]))
    try:
        await asyncio.shield(serving)
    finally:
        stopping()
        server.should_exit = True
        await serving
