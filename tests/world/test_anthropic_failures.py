"""Failures of Claude, and models that behave badly, over a real socket."""

from __future__ import annotations

import pytest
from support.claude import BUDGET, NAME, REQUEST, asking, then
from tarsy.config.model import providers
from tarsy.llm import anthropic, limited_model, provider, registry
from tarsy.transcript import messages, ports
from tarsy_dev import model


@pytest.mark.parametrize(
    ("reply", "error", "code", "text"),
    [
        (model.HttpError(status=403), provider.FatalError, "403", "permission_error.*check api_key_env"),
        (model.HttpError(status=404, message="model: claude-x"), provider.FatalError, "404", "claude-x; check model"),
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
    ],
)
async def test_failures_are_raised_as_our_own_errors(
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


async def test_model_without_thinking_budget_support_is_reported_before_any_request() -> None:
    settings = providers.AnthropicProvider.model_validate({"type": "anthropic", "model": "claude-opus-5"} | BUDGET)
    async with registry.session() as session:
        with pytest.raises(provider.UnusableError, match="claude-opus-5; use adaptive thinking"):
            anthropic.build(NAME, settings, key="secret", session=session)


@pytest.mark.parametrize("text", ["", " \n\t"])
async def test_an_answer_of_nothing_can_be_followed_by_a_question(text: str) -> None:
    async with asking(model.Answer(text="the end"), **BUDGET) as asked:
        nothing = messages.Message(role="assistant", text=text)
        followed = then(REQUEST, nothing, messages.Message(role="user", text="Say something."))
        assert (await asked.ask(followed)).text == "the end"
    assert [message["role"] for message in asked.sent["messages"]] == ["user"]


@pytest.mark.parametrize("fault", [model.Hang(), model.Hang(after=2)], ids=["before the first byte", "after it"])
async def test_silence_ends_an_attempt(fault: model.Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", limited_model.LONGEST_BACKOFF)  # 10 s at least: no retry
    async with asking(fault, limits={"first_byte": "50ms", "idle": "50ms", "iteration": "10s"}) as asked:
        with pytest.raises(ports.ModelError, match="silent") as error:
            await asked.ask()
    assert error.value.failure.kind == "timeout"
