"""The server: uvicorn on a socket of ours, without its signal handlers."""

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
"""For so long a thread at work keeps the interpreter from the loop, which asks for it once a turn; by default 5 ms."""


@dataclass(frozen=True, kw_only=True)
class WebSockets:
    """The protocol of WebSockets, and its limits."""

    protocol: type[asyncio.Protocol]
    frame_max: int
    """The bytes of a message."""
    ping_seconds: float
    """Seconds between two pings, and until one has to be answered."""


class Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """Bind the socket ourselves: uvicorn would end the process with SystemExit where the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio leaves Nagle on
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


async def serve(
    app: types.ASGIApp, bound: socket.socket, *, websockets: WebSockets, stopping: Callable[[], None]
) -> None:
    """Serve until cancelled, and call `stopping` then; requests under way are answered first."""
    connections.allow_files()
    sys.setswitchinterval(SWITCH_SECONDS)
    server = Server(
        uvicorn.Config(
            app,
            http=connections.Protocol,
            ws=websockets.protocol,
            ws_max_size=websockets.frame_max,
            ws_per_message_deflate=False,  # it costs memory and time for each of them
            ws_ping_interval=websockets.ping_seconds,
            ws_ping_timeout=websockets.ping_seconds,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # it would take the word of every proxy on this machine for who calls
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
