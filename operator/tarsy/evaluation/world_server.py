"""The read-only API server of a recorded world, on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from tarsy.evaluation import worlds
from tarsy.serve import http_server

_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
"""kubernetes-mcp-server asks before each list whether it may; in a world it may read everything."""

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class WorldServer:
    """The application (ASGI)."""

    def __init__(self, world: worlds.World) -> None:
        self._world = world
        self.misses: list[str] = []
        """The requests that the world could not answer, in order of arrival."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        answer = self._answer(scope)
        if answer.is_miss:
            self.misses.append(f"{scope['method']} {scope['path']}")
        content_type, body = answer.content
        if "apidiscovery.k8s.io" in str(answer.body.get("apiVersion")) if isinstance(answer.body, dict) else False:
            content_type += ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, scope: MutableMapping[str, Any]) -> worlds.Answer:
        if scope["method"] == "POST" and scope["path"] == _REVIEW:
            review = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {}}
            return worlds.Answer(status=201, body={**review, "spec": {}, "status": {"allowed": True}})
        if scope["method"] != "GET":
            body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403}
            return worlds.Answer(status=403, body={**body, "message": "this account may only read"})
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        return self._world.answer(scope["path"], query, accept=accept)


@contextlib.asynccontextmanager
async def serve(world: worlds.World, *, kubeconfig: Path) -> AsyncIterator[WorldServer]:
    """Serve `world` on a free port of 127.0.0.1, and write a kubeconfig that leads there."""
    application = WorldServer(world)
    bound = http_server.bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{bound.getsockname()[1]}"
    serving = asyncio.create_task(http_server.serve(application, bound))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "cluster",
        "clusters": [{"name": "cluster", "cluster": {"server": address}}],
        "users": [{"name": "reader", "user": {}}],
        "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": "reader", "namespace": "default"}}],
    }
    await asyncio.to_thread(kubeconfig.write_text, json.dumps(config), encoding="utf-8")
    try:
        yield application
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        bound.close()
