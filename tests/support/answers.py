"""An API server that answers as a test tells it: what a real one answers only at its worst, or not at all."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import test_utils, web
from support import kubeconfigs
from tarsy.kube import client

Answer = Callable[[web.Request], tuple[int, Any] | Awaitable[tuple[int, Any]]]


@contextlib.asynccontextmanager
async def answering(answer: Answer, *, folder: Path) -> AsyncIterator[client.Cluster]:
    """A client of an API server that gives `answer`: a status and a body."""

    async def handle(request: web.Request) -> web.Response:
        reply = answer(request)
        status, body = await reply if inspect.isawaitable(reply) else reply
        return (
            web.Response(text=body, status=status) if isinstance(body, str) else web.json_response(body, status=status)
        )

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handle)
    async with test_utils.TestServer(application) as server:
        cluster = await client.connect(kubeconfigs.write(folder / "kubeconfig", server=str(server.make_url(""))))
        try:
            yield cluster
        finally:
            await cluster.close()


def refusal(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
