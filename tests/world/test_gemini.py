"""Our Gemini provider over a real socket, by a key and by the tokens of Vertex AI: what only a socket can show."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from aiohttp import test_utils, web
from support import leases
from tarsy.config import platform, providers
from tarsy.llm import gemini, provider, registry, vertexai
from tarsy.llm import model as models
from tarsy.transcript import messages, ports
from tarsy_dev import loopback, model
from tarsy_dev.model import tokens

TASK = "Investigation: tarsy/web-crash\n\npod web-0 in namespace shop restarts every minute"
SYSTEM = "You are KubernetesAgent, the agent of stage 'analysis' of chain 'pod-crash'."
REQUEST = ports.Request(
    tools=(), messages=(messages.Message(role="system", text=SYSTEM), messages.Message(role="user", text=TASK))
)
BROKEN = {"candidates": [{"content": {"parts": [{"text": {"no": "text"}}]}}]}


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """It would close sockets too, at some time."""
    gc.disable()
    yield
    gc.enable()


class Limited(Protocol):
    """Gemini at an address, within limits."""

    def __call__(self, url: str, **limits: object) -> contextlib.AbstractAsyncContextManager[models.LimitedModel]: ...


@pytest.fixture(scope="module")
def token_uri() -> Iterator[str]:
    with loopback.background(model.serve()) as running:
        yield f"{running.server.url}/token"


@pytest.fixture(params=["google", "vertexai"])
def limited(request: pytest.FixtureRequest, tmp_path: Path, token_uri: str) -> Limited:
    @contextlib.asynccontextmanager
    async def asked(url: str, **limits: object) -> AsyncIterator[models.LimitedModel]:
        http = registry.session()
        source: provider.Provider
        if request.param == "google":
            google = providers.GoogleProvider(type="google", model="gemini-2.5-flash", base_url=url)
            source = gemini.Gemini("ours", google, api_key="k", http=http)
        else:
            key_file = tokens.account(tmp_path / "key.json", token_uri=token_uri)
            vertex = providers.VertexAIProvider(
                type="vertexai", model="gemini-2.5-flash", base_url=url, credentials_file=key_file
            )
            source = vertexai.build("ours", vertex, environment={}, http=http)
        try:
            yield models.LimitedModel("ours", source, limits=platform.Limits.model_validate(limits))
        finally:
            await source.close()
            await http.close()

    return asked


@pytest.mark.parametrize(
    ("fault", "limits", "kind"),
    [
        (model.Flood(), {"answer": 1024}, "rejected"),
        (model.Flood(), {"answer": 10**9, "iteration": "200ms"}, "timeout"),
        (model.Hang(after=2), {"idle": "50ms", "iteration": "51ms"}, "timeout"),
        (model.Hang(), {"iteration": "50ms"}, "timeout"),
    ],
    ids=["a flood over its limit", "a flood over its time", "silence in the middle", "silence"],
)
async def test_a_stream_that_is_left_early_closes_its_socket(
    limited: Limited, fault: model.Misbehaviour, limits: dict[str, object], kind: str
) -> None:
    async with model.serve(model.answers(fault)) as server, limited(server.url, **limits) as asked:
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(REQUEST, leases.SCOPE)
        left = time.time()
        assert error.value.failure.kind == kind
        request = await server.wait_for(lambda requests: next((r for r in requests if r.ended), None), timeout=5)
    assert request.end == "client closed"
    assert request.ended is not None
    assert request.ended - left < 1


async def test_a_stream_that_is_not_the_apis_is_left_at_once(limited: Limited) -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: ")
        writer.write(json.dumps(BROKEN).encode() + b"\r\n\r\n")
        while await reader.read(65536):
            pass
        writer.close()
        await writer.wait_closed()
        closed.set()

    listening = loopback.listen(0)
    port = listening.getsockname()[1]
    async with (
        await asyncio.start_server(serve, sock=listening),
        limited(f"http://127.0.0.1:{port}", iteration="200ms") as asked,
    ):
        with pytest.raises(ports.ModelError) as error:
            await asked.ask(REQUEST, leases.SCOPE)
        (attempt, *_) = error.value.call.attempts
        assert "the stream is not the API's" in attempt.error
        async with asyncio.timeout(5):
            await closed.wait()


class Redirecting:
    """A server that sends to `location` whoever asks for a model, and answers everybody who comes elsewhere."""

    def __init__(self, status: int, location: str = "/elsewhere") -> None:
        self.location = location
        self.reached: list[str] = []
        self._status = status

    async def handle(self, request: web.Request) -> web.Response:
        self.reached.append(request.path)
        if request.path.endswith(":streamGenerateContent"):
            return web.Response(status=self._status, headers={"Location": self.location})
        part = {"text": "web-0 is out of memory"}
        answer = {"candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP"}]}
        return web.Response(text=f"data: {json.dumps(answer)}\r\n\r\n", content_type="text/event-stream")

    @contextlib.asynccontextmanager
    async def serve(self, host: str = "127.0.0.1") -> AsyncIterator[str]:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.handle)
        async with test_utils.TestServer(application, host=host) as server:
            yield str(server.make_url("")).rstrip("/")


@pytest.mark.parametrize(
    ("limited", "status"),
    [*(("google", status) for status in (301, 302, 303, 307, 308)), ("vertexai", 307)],
    indirect=["limited"],
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"], ids=["another port", "another name"])
async def test_key_and_conversation_do_not_follow_a_redirect_to_another_origin(
    limited: Limited, status: int, host: str
) -> None:
    first, other = Redirecting(status), Redirecting(status)
    async with first.serve() as url, other.serve(host) as elsewhere, limited(url) as asked:
        first.location = f"{elsewhere}/elsewhere"
        with pytest.raises(ports.ModelError, match="redirects to another origin") as error:
            await asked.ask(REQUEST, leases.SCOPE)
    assert error.value.failure.kind == "fatal"
    assert (len(first.reached), other.reached) == (1, [])


@pytest.mark.parametrize(("limited", "status"), [("google", 307), ("google", 308)], indirect=["limited"])
async def test_a_redirect_within_the_origin_is_followed(limited: Limited, status: int) -> None:
    server = Redirecting(status)
    async with server.serve() as url, limited(url) as asked:
        answer = await asked.ask(REQUEST, leases.SCOPE)
    assert answer.message.text == "web-0 is out of memory"
    assert server.reached[1:] == ["/elsewhere"]


async def test_a_proxy_that_the_environment_names_is_gone_through(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with model.serve(model.answers("By the proxy.")) as server:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        async with limited("http://models.invalid") as asked:
            answer = await asked.ask(REQUEST, leases.SCOPE)
    assert answer.message.text == "By the proxy."
