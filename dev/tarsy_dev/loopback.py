"""Sockets on 127.0.0.1, and servers in a thread for those who have no event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

HOST = "127.0.0.1"

_BACKLOG = 1024

S = TypeVar("S")
T = TypeVar("T")


def listen(port: int = 0, *, host: str = HOST) -> socket.socket:
    """Listen on a port of the loopback interface, or of another address, 0 for a free one; OSError if it is taken."""
    # Not socket.create_server: asyncio turns Nagle's algorithm off only where the protocol is given, and with it on a
    # reply in several pieces waits 40 ms for the other side's delayed acknowledgement.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


@dataclass(frozen=True, kw_only=True)
class Background(Generic[S]):
    """A server that runs in a thread of its own."""

    server: S
    loop: asyncio.AbstractEventLoop

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the server, such as its `wait_for(..., timeout=...)`, in its loop; wait for the result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()


@contextlib.contextmanager
def background(serving: AbstractAsyncContextManager[S]) -> Iterator[Background[S]]:
    """Run `serving` (what the `serve` of a module here returns) in a thread with its own event loop.

    What it raises when it starts or stops is raised here.
    """
    started: Future[tuple[Background[S], asyncio.Event]] = Future()

    async def main() -> None:
        async with serving as server:
            stop = asyncio.Event()
            started.set_result((Background(server=server, loop=asyncio.get_running_loop()), stop))
            await stop.wait()

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="loopback") as executor:
        finished = executor.submit(asyncio.run, main())
        either: list[Future[Any]] = [started, finished]
        futures.wait(either, return_when=futures.FIRST_COMPLETED)
        if not started.done():
            finished.result()
        running, stop = started.result()
        try:
            yield running
        finally:
            running.loop.call_soon_threadsafe(stop.set)
            finished.result()
