"""Contents of a provider's answers: joined, bounded, storable, counted and priced."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from support import scrapes
from support.limited_models import (
    HALF,
    HANG,
    PRICE,
    REQUEST,
    SCOPE,
    USAGE,
    WHOLE,
    Provider,
    Step,
    errors,
    failure,
    limited,
)
from tarsy.config.model import providers
from tarsy.llm import answers, limited_model, provider
from tarsy.masking import known_secrets
from tarsy.transcript import messages, ports, token_estimate

pytestmark = pytest.mark.leaps


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.0)


async def test_stream_pieces_become_one_answer() -> None:
    call = provider.Call("k8s.get", '{"name": "web-0"}')
    stream = (provider.Thinking("hm "), *WHOLE[:3], provider.Thinking("so"), call, call, provider.Finish([{"s": "x"}]))
    answer = await limited(Provider(stream)).ask(REQUEST, SCOPE)
    asked = messages.ToolCall(id="", name="k8s.get", arguments='{"name": "web-0"}')
    assert answer.message == messages.Message(
        role="assistant",
        text="It is memory.",
        thinking="hm so",
        calls=(asked, asked),
        provider_state=messages.ProviderState(provider="first", data=[{"s": "x"}]),
    )
    assert (answer.call.provider, answer.call.model, answer.call.attempts) == ("first", "fake-1", ())


async def test_the_last_count_of_tokens_is_the_calls() -> None:
    early = provider.Usage(messages.Usage(input_tokens=100, total_tokens=100))
    answer = await limited(Provider((early, *WHOLE))).ask(REQUEST, SCOPE)
    assert answer.call.usage == USAGE


async def test_model_and_id_of_the_last_response_are_the_calls_without_secrets() -> None:
    named = (provider.Response("fake-1-0925"), provider.Response("", "r-sk-secret-1"), provider.Response("fake-1-1125"))
    secrets = known_secrets.KnownSecrets(["sk-secret-1"])
    call = (await limited(Provider((*named, *WHOLE)), secrets=secrets).ask(REQUEST, SCOPE)).call
    assert (call.response_model, call.response_id) == ("fake-1-1125", secrets.mask("r-sk-secret-1"))
    assert "sk-secret-1" not in call.response_id
    failed = (await failure(Provider((provider.Response("fake-1-0925"), provider.FatalError("blocked"))))).call
    assert failed
    assert (failed.response_model, failed.response_id) == ("fake-1-0925", "")


async def test_text_that_the_store_cannot_hold_is_replaced() -> None:
    call = provider.Call("k8s\x00.g\ud83d", '{"a\x00": "\ud83d"}')
    chunks = (provider.Text("a\x00\ud83d"), provider.Text("\udca5"), provider.Thinking("\ud800"))
    answer = await limited(Provider((*chunks, call, provider.Finish(None)))).ask(REQUEST, SCOPE)
    assert (answer.message.text, answer.message.thinking) == ("a\ufffd\U0001f4a5", "\ufffd")
    asked = messages.ToolCall(id="", name="k8s\ufffd.g\ufffd", arguments='{"a\ufffd": "\ufffd"}')
    assert answer.message.calls == (asked,)


@pytest.mark.parametrize("state", [math.nan, json.loads(300 * "[" + 300 * "]")])
async def test_answer_with_unstorable_provider_state_is_rejected(state: object) -> None:
    error = await failure(Provider((provider.Text("hm"), provider.Finish([state]))))
    assert error.failure.kind == "rejected"
    assert "cannot be stored as JSON" in error.failure.text


@pytest.mark.parametrize("kind", [provider.RetryableError, provider.RejectedError, provider.FatalError])
async def test_error_is_kept_as_storable_text(kind: type[provider.ProviderError]) -> None:
    """Errors quote what a server sent, whole bodies included."""
    odd = "a\x00b\ud800 " + "x" * 1_000_000
    error = await failure(Provider((kind(odd, code=odd),)), iteration="20ms")
    for text in (error.failure.text, *errors(error.call)):
        assert "a\ufffdb\ufffd x" in text
        assert len(text) < 10_000
    for code in (error.failure.code, *(attempt.code for attempt in error.call.attempts)):
        assert code.startswith("a\ufffdb\ufffd x") or code == ""
        assert len(code) <= 100


@pytest.mark.parametrize("raised", [provider.RejectedError("flooded"), provider.FatalError("blocked")])
async def test_a_refused_answer_costs_what_it_cost(raised: provider.ProviderError) -> None:
    error = await failure(Provider((provider.Usage(USAGE), raised)))
    assert error.call.usage == USAGE


@pytest.mark.parametrize("count", [-1, -(10**400), 10**12, 10**400])
async def test_a_count_that_cannot_be_is_bounded(count: int) -> None:
    counted = messages.Usage(input_tokens=count, output_tokens=count, thinking_tokens=count, total_tokens=count)
    call = (await limited(Provider((provider.Usage(counted), *WHOLE[2:])), price=PRICE).ask(REQUEST, SCOPE)).call
    bound = min(max(count, 0), answers.TOKENS_MAX)
    assert call.usage == messages.Usage(
        input_tokens=bound, output_tokens=bound, thinking_tokens=bound, total_tokens=bound
    )
    assert call.cost == pytest.approx(bound * (2 + 2 * 10) / 1e6)


@pytest.mark.parametrize(
    "piece", [provider.Text("x" * 600), provider.Thinking("x" * 600), provider.Call("t", "x" * 600)]
)
async def test_a_flood_is_cut_off(piece: provider.StreamEvent) -> None:
    error = await failure(Provider((piece, piece, HANG)), answer=1024)
    assert (error.failure.kind, error.failure.text) == ("rejected", "first: the answer is longer than 1024 characters")


@pytest.mark.parametrize(("kind", "of"), [(provider.Text, "answer"), (provider.Thinking, "thoughts")])
async def test_a_model_that_goes_round_in_circles_is_cut_off(
    kind: type[provider.Text | provider.Thinking], of: str
) -> None:
    begun = (provider.Usage(HALF), provider.Text("It is memory. "), provider.Thinking("hm "))
    again = (kind("I look at the pod again, and then I look at its log.\n"),) * 120
    error = await failure(Provider((*begun, *again, HANG)))
    text = f"the last 6000 characters of its {of} are one passage of 53 over and over"
    assert error.failure == messages.Failure(kind="rejected", text=f"first: the model repeated itself: {text}")
    assert error.call.usage == HALF


async def test_too_many_calls_in_one_answer_are_refused() -> None:
    call = provider.Call("k8s.get", "{}")
    error = await failure(Provider((call, call, call, HANG)), answer_calls=2)
    text = "first: the answer asks for more than 2 tool calls"
    assert (error.failure.kind, error.failure.text) == ("rejected", text)


COSTS: dict[str, tuple[tuple[tuple[Step, ...], ...], float]] = {
    "an answer": ((WHOLE,), 100 * 2 + 29 * 10),
    "with a broken attempt": (
        ((provider.Usage(HALF), provider.RetryableError("503")), WHOLE),
        100 * 2 + 7 * 10 + 100 * 2 + 29 * 10,
    ),
    "that nobody counted": (((provider.Text("so"), provider.Finish(None)),), 0.0),
    "a failure": (((provider.Usage(HALF), provider.FatalError("blocked")),), 100 * 2 + 7 * 10),
    "what is empty for good": (((provider.Usage(HALF), provider.Finish(None)),), 4 * (100 * 2 + 7 * 10)),
}


@pytest.mark.parametrize(("tries", "millionths"), COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("price", [PRICE, None], ids=["with a price", "without"])
async def test_a_call_costs_what_all_its_requests_do_by_the_providers_price(
    tries: tuple[tuple[Step, ...], ...], millionths: float, price: providers.Price | None
) -> None:
    try:
        call = (await limited(Provider(*tries), price=price).ask(REQUEST, SCOPE)).call
    except ports.ModelError as error:
        call = error.call
    assert call.cost == (None if price is None else pytest.approx(millionths / 1e6))


CALLING = messages.Message(
    role="assistant",
    thinking="is never sent" * 9,
    calls=(messages.ToolCall(id="0.0", name="k8s.get", arguments="{}"),),
    provider_state=messages.ProviderState(provider="first", data=["x" * 1000]),
)


GET = messages.ToolSpec(name="k8s.get", description="Gets it.", parameters={"type": "object"})


@pytest.mark.parametrize(
    ("request_", "tokens"),
    [
        (REQUEST, 2),
        (replace(REQUEST, messages=(messages.Message(role="user", text="1234567"),)), 3),
        (replace(REQUEST, messages=(CALLING,)), 3),
        (replace(REQUEST, messages=(), tools=(GET,)), 11),
    ],
    ids=["a prompt", "rounded up", "calls", "tools"],
)
def test_a_token_is_three_characters_by_estimate(request_: ports.Request, tokens: int) -> None:
    assert token_estimate.tokens(request_) == tokens


async def test_results_of_native_tools_are_stored_in_order() -> None:
    events = (
        provider.CodeExecution("print('\x00')", "\ud83d", "python", "OUTCOME_OK"),
        provider.Text("It is memory."),
        provider.Grounding("web_search", (provider.Source("a\n title", "https://a"),), ("oom\x00",)),
        provider.Finish(None),
    )
    answer = await limited(Provider(events)).ask(REQUEST, SCOPE)
    assert answer.message.native == (
        messages.NativeResult(
            tool="code_execution",
            content="\ufffd",
            details={"code": "print('\ufffd')", "language": "python", "outcome": "OUTCOME_OK"},
        ),
        messages.NativeResult(
            tool="web_search",
            content="a title https://a",
            details={"queries": ["oom\ufffd"], "sources": [{"title": "a\n title", "url": "https://a"}]},
        ),
    )


LONG = "a" * 600


@pytest.mark.parametrize(
    "event",
    [
        provider.CodeExecution(LONG, LONG),
        provider.CodeExecution(LONG, ""),
        provider.CodeExecution("", LONG),
        provider.CodeExecution("", ""),
        provider.Grounding("google_search", (provider.Source(LONG, ""),)),
        provider.Grounding("google_search", (provider.Source("", LONG),)),
        provider.Grounding("google_search", (), (LONG,)),
        provider.Grounding("url_context", ()),
    ],
)
async def test_results_of_native_tools_count_as_a_part_of_the_answer(event: provider.StreamEvent) -> None:
    model_error = await failure(Provider((*[event] * 40, provider.Text("so"), provider.Finish(None))), answer=1024)
    assert (model_error.failure.kind, "longer than 1024 characters" in model_error.failure.text) == ("rejected", True)


async def test_calls_tokens_costs_errors_and_retries_are_counted_those_of_failed_requests_too() -> None:
    since = scrapes.Since()
    refused = (provider.Usage(HALF), provider.RetryableError("busy", code="429"))
    scope = replace(SCOPE, chain="pod-crash")
    await limited(Provider(refused, WHOLE), price=PRICE).ask(REQUEST, scope)
    model = {"provider": "first", "model": "fake-1"}
    assert since("tarsy_model_calls_total", **model, chain="pod-crash", outcome="answered") == 1
    assert since("tarsy_model_calls_total", **model) == 1
    assert since("tarsy_model_request_errors_total", **model, code="429") == 1
    assert since("tarsy_model_retries_total", **model) == 1
    tokens = [since("tarsy_model_tokens_total", **model, kind=kind) for kind in ("input", "output", "thinking")]
    assert tokens == [200, 27, 9]
    assert since("tarsy_model_cost_total", **model) == pytest.approx((200 * 2 + 36 * 10) / 1e6)
    assert since("tarsy_model_call_seconds_count", **model) == 1
    assert since("tarsy_model_slot_wait_seconds_count", provider="first") == 2


@pytest.mark.parametrize(
    ("code", "label"),
    [("503", "503"), (messages.CONTEXT_OVERFLOW, "context_overflow"), ("", "other"), ("web-0 in shop", "other")],
)
async def test_a_code_that_a_provider_invents_is_no_label(code: str, label: str) -> None:
    since = scrapes.Since()
    await failure(Provider((provider.RetryableError("no", code=code),)))
    assert since("tarsy_model_request_errors_total", code=label) == limited_model.ATTEMPTS
    assert since("tarsy_model_request_errors_total") == limited_model.ATTEMPTS
    assert since("tarsy_model_calls_total", outcome="fatal") == 1
