"""Receivers of messages on loopback: HTTP servers that note each request and answer as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request as a receiver has it."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes


Answer = Callable[[Request], Awaitable[web.StreamResponse] | web.StreamResponse]


@dataclass(kw_only=True)
class Receiver:
    """A receiver, and the requests that it had; `answer` makes its answers."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    answer: Answer = lambda _: web.Response(text="ok")
    arrival: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        received = Request(
            method=request.method,
            path=request.path,
            query=dict(request.query),
            headers={name.lower(): value for name, value in request.headers.items()},
            body=await request.read(),
        )
        async with self.arrival:
            self.requests.append(received)
            self.arrival.notify_all()
        answer = self.answer(received)
        return answer if isinstance(answer, web.StreamResponse) else await answer

    async def has(self, count: int) -> list[Request]:
        """Wait until this many requests have arrived; a test's time limit ends the wait."""
        async with self.arrival:
            await self.arrival.wait_for(lambda: len(self.requests) >= count)
        return self.requests


@asynccontextmanager
async def started() -> AsyncIterator[Receiver]:
    """Start a receiver on a port of its own."""
    receiver = Receiver()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()
