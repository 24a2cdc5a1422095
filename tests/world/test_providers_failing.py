"""Failures between a provider of LangChain's and its server, through the real SDK over a real socket.

A row of `kinds.KINDS` is a provider; what is one provider's own has a file of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from langchain_core.tracers import langchain
from support import kinds, redirects
from tarsy.llm import provider
from tarsy.transcript import messages
from tarsy_dev import model, patience


@pytest.fixture(params=kinds.KINDS)
def kind(request: pytest.FixtureRequest) -> kinds.Kind:
    return kinds.KINDS[request.param]


@pytest.fixture(autouse=True)
def no_garbage_collector() -> Iterator[None]:
    """It would close sockets too, at some time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("fault", "raised", "code", "words"),
    [
        (model.HttpError(status=400), provider.FatalError, "400", "check model, thinking"),
        (model.HttpError(status=401), provider.FatalError, "401", "check api_key_env or api_key_file of"),
        (model.HttpError(status=404), provider.FatalError, "404", "check model and base_url of llm_providers.mine"),
        (
            model.HttpError(status=400, code="context_length_exceeded"),
            provider.ContextOverflowError,
            messages.CONTEXT_OVERFLOW,
            "set context_tokens of llm_providers.mine",
        ),
        (model.HttpError(status=429, retry_after=7), provider.RetryableError, "429", ""),
        (model.HttpError(status=529), provider.RetryableError, "529", ""),
    ],
    ids=["400", "401", "404", "overflow", "429", "529"],
)
async def test_provider_error_is_reported_with_its_code_and_remedy(
    kind: kinds.Kind, fault: model.HttpError, raised: type[provider.ProviderError], code: str, words: str
) -> None:
    async with model.serve(lambda _: fault) as server, kinds.opened(kind, server.url) as source:
        with pytest.raises(provider.ProviderError) as error:
            await kinds.events(source)
    assert type(error.value) is raised, error.value
    assert error.value.code == code
    assert words in str(error.value)
    if isinstance(error.value, provider.RetryableError):
        assert error.value.after == fault.retry_after
    assert len(server.requests) == 1, "the SDK has not tried again"


async def test_the_key_is_in_no_message(kind: kinds.Kind) -> None:
    fault = model.HttpError(status=401, message="Incorrect API key provided: sk-secret.")
    async with model.serve(lambda _: fault) as server, kinds.opened(kind, server.url) as source:
        with pytest.raises(provider.FatalError, match=r"\*\*\*") as error:
            await kinds.events(source)
    assert "sk-secret" not in str(error.value)
    assert server.requests[0].api_key == model.digest("sk-secret")


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (model.Cut(after=None), provider.RetryableError),
        (model.Cut(after=3), provider.RetryableError),
        (model.StreamError(after=3), provider.RetryableError),
        (model.StreamError(error=model.HttpError(status=500), after=0), provider.RetryableError),
        (model.Garbage(), provider.RetryableError),
        (model.Garbage(text='{"type": 7, "choices": 7}'), provider.RetryableError),
        (model.Answer(text="no", finish="safety"), provider.RejectedError),
        (
            model.StreamError(error=model.HttpError(status=400, code="context_length_exceeded")),
            provider.ContextOverflowError,
        ),
    ],
    ids=["cut at once", "cut", "error", "first an error", "garbage", "wrong", "filtered", "overflow"],
)
async def test_stream_without_answer_is_raised_as_provider_error(
    kind: kinds.Kind, fault: model.Reply, raised: type[provider.ProviderError]
) -> None:
    async with model.serve(lambda _: fault) as server, kinds.opened(kind, server.url) as source:
        assert type(await kinds.refusal(source)) is raised
    assert len(server.requests) == 1


async def test_address_without_listener_is_reported_as_broken_connection(kind: kinds.Kind) -> None:
    async with kinds.opened(kind, "http://127.0.0.1:1") as source:
        with pytest.raises(provider.RetryableError, match=r"the connection broke: .*\[Errno 111\]"):
            await kinds.events(source)


@pytest.mark.parametrize(
    "fault",
    [model.Hang(), model.Hang(after=0), model.Hang(after=8), model.Flood()],
    ids=["before the headers", "before the first byte", "behind it", "in a flood"],
)
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_stream_that_is_left_closes_its_socket_at_once(
    kind: kinds.Kind, fault: model.Misbehaviour, how: str
) -> None:
    async with model.serve(lambda _: fault) as server, kinds.opened(kind, server.url) as source:
        seen = asyncio.Event()

        async def consume() -> None:
            async with aclosing(source.stream(kinds.REQUEST)) as stream:
                async for event in stream:
                    if isinstance(event, provider.Text) and event.text:
                        seen.set()
                        if how == "closed":
                            return

        task = asyncio.create_task(consume())
        hangs = isinstance(fault, model.Hang) and fault.after in (None, 0)
        if hangs:
            await server.wait_for(lambda requests: requests[0].answered if requests else None)
        else:
            async with patience.limit():
                await seen.wait()
        if hangs or how == "cancelled":
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        request = await server.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"


async def test_key_and_conversation_do_not_follow_a_redirect_to_another_origin(kind: kinds.Kind) -> None:
    first, other = redirects.Redirecting(), redirects.Redirecting()
    async with first.serve() as url, other.serve() as elsewhere, kinds.opened(kind, url) as source:
        first.elsewhere = elsewhere
        with pytest.raises(provider.FatalError, match="redirects to another origin"):
            await kinds.events(source)
    assert (len(first.reached), other.reached) == (1, [])


async def test_a_redirect_within_the_origin_is_followed(kind: kinds.Kind) -> None:
    async with model.serve(lambda _: model.Answer(text="There.")) as server:
        redirecting = redirects.Redirecting(behind=server.url)
        async with redirecting.serve() as url, kinds.opened(kind, url) as source:
            assert kinds.text_of(await kinds.events(source)) == "There."
    assert len(redirecting.reached) == 2


async def test_a_proxy_that_the_environment_names_is_gone_through(
    kind: kinds.Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with model.serve(lambda _: model.Answer(text="By the proxy.")) as server:
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.setenv("HTTP_PROXY", server.url)
        async with kinds.opened(kind, "http://models.invalid") as source:
            assert kinds.text_of(await kinds.events(source)) == "By the proxy."


async def test_request_reaches_no_other_server(kind: kinds.Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    async with model.serve(lambda _: model.Answer(text="Yes.")) as server, model.serve() as tracer:
        for variable in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2"):
            monkeypatch.setenv(variable, "true")
        for variable in ("LANGSMITH_ENDPOINT", "LANGCHAIN_ENDPOINT", "LANGSMITH_GATEWAY", "OPENAI_BASE_URL"):
            monkeypatch.setenv(variable, tracer.url)
        monkeypatch.setenv("LANGSMITH_API_KEY", "k")
        async with kinds.opened(kind, server.url) as source:
            assert kinds.text_of(await kinds.events(source)) == "Yes."
        langchain.wait_for_all_tracers()
        assert len(server.requests) == 1
        assert tracer.requests == []
