"""A model server that redirects each request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import test_utils, web


class Redirecting:
    """A server that redirects each request elsewhere, and there answers as the server at `behind` does."""

    def __init__(self, *, status: int = 307, elsewhere: str = "", behind: str = "") -> None:
        self.elsewhere = elsewhere
        self.reached: list[str] = []
        self._status = status
        self._behind = behind

    async def handle(self, request: web.Request) -> web.Response:
        self.reached.append(request.path)
        if not request.path.startswith("/elsewhere"):
            location = f"{self.elsewhere}/elsewhere{request.path_qs}"
            return web.Response(status=self._status, headers={"Location": location})
        path = request.path_qs.removeprefix("/elsewhere")
        headers = {name: value for name, value in request.headers.items() if name not in ("Host", "Content-Length")}
        async with aiohttp.request("POST", self._behind + path, data=await request.read(), headers=headers) as answer:
            return web.Response(body=await answer.read(), headers={"Content-Type": answer.headers["Content-Type"]})

    @contextlib.asynccontextmanager
    async def serve(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        async with test_utils.TestServer(application, host=host) as server:
            yield str(server.make_url("")).rstrip("/")
