"""What goes wrong with Claude, and models that behave badly, over a real socket."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import test_utils, web
from support.claude import BUDGET, CALLS, LOOKS, NAME, REQUEST, asking, then
from tarsy.config.model import providers
from tarsy.llm import anthropic, limited_model, provider, registry
from tarsy.transcript import messages, ports
from tarsy_dev import model


@pytest.mark.parametrize(
    ("reply", "error", "code", "text"),
    [
        (model.HttpError(status=401), provider.FatalError, "401", f"check api_key_env or api_key_file .*{NAME}"),
        (model.HttpError(status=403), provider.FatalError, "403", "permission_error.*check api_key_env"),
        (model.HttpError(status=404, message="model: claude-x"), provider.FatalError, "404", "claude-x; check model"),
        (model.HttpError(status=400, message="wrong"), provider.FatalError, "400", "invalid_request_error: wrong"),
        (model.HttpError(status=413), provider.ContextOverflowError, "context_overflow", "request_too_large"),
        (
            model.HttpError(status=400, message="prompt is too long: 210000 tokens > 200000 maximum"),
            provider.ContextOverflowError,
            "context_overflow",
            "210000 tokens > 200000 maximum; set context_tokens",
        ),
        (
            model.HttpError(
                status=400, message="input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000"
            ),
            provider.ContextOverflowError,
            "context_overflow",
            "188240",
        ),
        (model.HttpError(status=429, retry_after=7), provider.RetryableError, "429", "rate_limit_error"),
        (model.HttpError(status=500), provider.RetryableError, "500", "api_error"),
        (model.HttpError(status=529), provider.RetryableError, "529", "overloaded_error: Overloaded"),
        (
            model.StreamError(error=model.HttpError(status=529)),
            provider.RetryableError,
            "overloaded_error",
            "Overloaded",
        ),
        (
            model.StreamError(error=model.HttpError(status=400, message="wrong")),
            provider.FatalError,
            "invalid_request_error",
            "wrong",
        ),
        (
            model.StreamError(error=model.HttpError(status=400, message="prompt is too long: 3 tokens > 2 maximum")),
            provider.ContextOverflowError,
            "context_overflow",
            "too long",
        ),
        (model.Cut(after=None), provider.RetryableError, "connection", "the connection broke"),
        (model.Cut(after=2), provider.RetryableError, "connection", "the connection broke"),
        (model.Garbage(), provider.RetryableError, "protocol", "the stream is not the API's"),
        (model.Garbage(text="[]"), provider.RetryableError, "protocol", "the stream is not the API's"),
    ],
)
async def test_what_goes_wrong_is_told_as_our_own_errors(
    reply: model.Reply, error: type[provider.ProviderError], code: str, text: str
) -> None:
    async with asking(reply) as asked:
        with pytest.raises(error, match=text) as raised:
            await asked.events()
    assert (type(raised.value), raised.value.code) == (error, code)
    assert "secret" not in str(raised.value)
    if isinstance(raised.value, provider.RetryableError):
        assert raised.value.after == (7 if code == "429" else None)
    assert len(asked.server.requests) == 1, "the SDK asks once"


async def test_a_model_that_does_not_take_a_budget_is_told_of_before_anything_is_asked() -> None:
    settings = providers.AnthropicProvider.model_validate({"type": "anthropic", "model": "claude-opus-5"} | BUDGET)
    async with registry.session() as session:
        with pytest.raises(provider.UnusableError, match="claude-opus-5; use adaptive thinking"):
            anthropic.build(NAME, settings, key="secret", session=session)


async def test_wrong_json_in_a_calls_arguments_is_told_to_the_model_as_it_was() -> None:
    broken = model.Answer(thoughts="hm", calls=(*CALLS[1:], replace(CALLS[0], raw='{"namespac')))
    async with asking(model.answers(broken, "the end"), **BUDGET) as asked:
        answer = await asked.ask()
        assert answer.calls[1].arguments == '{"namespac'
        assert (await asked.ask(then(REQUEST, answer))).text == "the end"
    assert asked.sent["messages"][1]["content"][-1]["input"] == {}


@pytest.mark.parametrize("name", ["no such tool!", "kubernetes-server__secrets_list", "x" * 300])
async def test_a_call_of_what_there_is_not_goes_back_as_one_that_is_taken(name: str) -> None:
    async with asking(
        model.answers(model.Answer(thoughts="hm", calls=(model.Call(name=name),)), "ok"), **BUDGET
    ) as asked:
        assert (await asked.ask(then(REQUEST, await asked.ask()))).text == "ok"


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_an_answer_of_nothing_can_be_followed_by_a_question(text: str) -> None:
    async with asking(model.Answer(text="the end"), **BUDGET) as asked:
        nothing = messages.Message(role="assistant", text=text)
        followed = then(REQUEST, nothing, messages.Message(role="user", text="Say something."))
        assert (await asked.ask(followed)).text == "the end"
    assert [message["role"] for message in asked.sent["messages"]] == ["user"]


async def test_ten_megabytes_are_refused() -> None:
    async with asking(model.Flood(megabytes=10)) as asked:
        with pytest.raises(ports.ModelError, match="longer than 1048576 characters"):
            await asked.ask()
        request = await asked.server.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"


@pytest.mark.parametrize("fault", [model.Hang(), model.Hang(after=2)], ids=["before the first byte", "after it"])
async def test_who_leaves_closes_the_socket_at_once(fault: model.Hang) -> None:
    async with asking(fault) as asked:
        task = asyncio.create_task(asked.ask())
        await asked.server.wait_for(
            lambda requests: requests and requests[0].answered and requests[0].pieces == (fault.after or 0)
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        request = await asked.server.wait_for(lambda requests: next((r for r in requests if r.ended), None))
    assert request.end == "client closed"


@pytest.mark.parametrize("fault", [model.Hang(), model.Hang(after=2)], ids=["before the first byte", "after it"])
async def test_silence_ends_an_attempt(fault: model.Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", limited_model.LONGEST_BACKOFF)  # 10 s at least: no retry
    async with asking(fault, limits={"first_byte": "50ms", "idle": "50ms", "iteration": "10s"}) as asked:
        with pytest.raises(ports.ModelError, match="silent") as error:
            await asked.ask()
    assert error.value.failure.kind == "timeout"


async def test_key_and_conversation_do_not_follow_a_redirect_to_another_origin() -> None:
    async with asking(LOOKS) as other:

        async def elsewhere(_: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": f"{other.server.url}/v1/messages"})

        application = web.Application()
        application.router.add_post("/v1/messages", elsewhere)
        async with (
            test_utils.TestServer(application) as first,
            asking(LOOKS, base_url=str(first.make_url("")).rstrip("/")) as asked,
        ):
            with pytest.raises(provider.FatalError, match="redirects to another origin"):
                await asked.events()
    assert other.server.requests == []
