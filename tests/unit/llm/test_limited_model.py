"""Limits and retries around a provider, which is here a small one of the test's own."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from support import leases, scrapes
from tarsy.config.model import platforms, providers
from tarsy.llm import answers, limited_model, provider
from tarsy.masking import known_secrets
from tarsy.transcript import entries, messages, ports, token_estimate

pytestmark = pytest.mark.leaps

REQUEST = ports.Request(tools=(), messages=(messages.Message(role="user", text="alert"),))
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
USAGE = messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=9, total_tokens=129)
HALF = messages.Usage(input_tokens=100, output_tokens=7, total_tokens=107)
WHOLE = (provider.Text("It is "), provider.Usage(USAGE), provider.Text("memory."), provider.Finish(None))
HANG = "hang"

Step = provider.StreamEvent | provider.ProviderError | str


class Provider:
    """Streams one of its tries after the other, the last one for ever."""

    model = "fake-1"

    def __init__(self, *tries: tuple[Step, ...]) -> None:
        self._tries = tries
        self.requests = 0
        self.open = 0
        self.most_open = 0
        self.opened = asyncio.Event()
        self.ended = asyncio.Event()

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        assert request == REQUEST
        steps = self._tries[min(self.requests, len(self._tries) - 1)]
        self.requests += 1
        self.open += 1
        self.opened.set()
        self.most_open = max(self.most_open, self.open)
        try:
            for step in steps:
                if isinstance(step, provider.ProviderError):
                    raise step
                if isinstance(step, str):
                    await asyncio.Event().wait()
                else:
                    await asyncio.sleep(0)
                    yield step
        finally:
            self.open -= 1
            self.ended.set()

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.0)


def limited(source: Provider, **limits: object) -> limited_model.LimitedModel:
    return limited_model.LimitedModel("first", source, limits=platforms.Limits.model_validate(limits))


def throttled(source: Provider, throttle: ports.Throttle, **limits: object) -> limited_model.LimitedModel:
    parsed_limits = platforms.Limits.model_validate(limits)
    return limited_model.LimitedModel("first", source, limits=parsed_limits, throttle=throttle)


async def failure(source: Provider, *, scope: ports.Scope = SCOPE, **limits: object) -> ports.ModelError:
    with pytest.raises(ports.ModelError) as error:
        await limited(source, **limits).ask(REQUEST, scope)
    assert source.open == 0
    return error.value


def errors(call: entries.ModelCall) -> list[str]:
    return [attempt.error for attempt in call.attempts]


async def test_the_pieces_of_a_stream_become_one_answer() -> None:
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
    model = limited_model.LimitedModel("first", Provider((*named, *WHOLE)), limits=platforms.Limits(), secrets=secrets)
    call = (await model.ask(REQUEST, SCOPE)).call
    assert (call.response_model, call.response_id) == ("fake-1-1125", secrets.mask("r-sk-secret-1"))
    assert "sk-secret-1" not in call.response_id
    failed = (await failure(Provider((provider.Response("fake-1-0925"), provider.FatalError("blocked"))))).call
    assert failed
    assert (failed.response_model, failed.response_id) == ("fake-1-0925", "")


async def test_names_of_the_response_are_no_sign_of_an_answer() -> None:
    """The limit of silence before an answer is that of the first byte, not the shorter one within an answer."""
    source = Provider((provider.Response("fake-1-0925"), HANG))
    error = await failure(source, first_byte="10ms", idle="1h", iteration="1h", retries=0)
    assert "0.01 s" in error.failure.text


async def test_text_that_the_store_cannot_hold_is_replaced() -> None:
    call = provider.Call("k8s\x00.g\ud83d", '{"a\x00": "\ud83d"}')
    chunks = (provider.Text("a\x00\ud83d"), provider.Text("\udca5"), provider.Thinking("\ud800"))
    answer = await limited(Provider((*chunks, call, provider.Finish(None)))).ask(REQUEST, SCOPE)
    assert (answer.message.text, answer.message.thinking) == ("a\ufffd\U0001f4a5", "\ufffd")
    asked = messages.ToolCall(id="", name="k8s\ufffd.g\ufffd", arguments='{"a\ufffd": "\ufffd"}')
    assert answer.message.calls == (asked,)


@pytest.mark.parametrize("state", [math.nan, json.loads(300 * "[" + 300 * "]")])
async def test_an_answer_whose_state_cannot_be_kept_is_rejected(state: object) -> None:
    error = await failure(Provider((provider.Text("hm"), provider.Finish([state]))))
    assert error.failure.kind == "rejected"
    assert "cannot be stored as JSON" in error.failure.text


async def test_temporary_error_is_retried_and_attempts_are_recorded() -> None:
    half = (provider.Text("half"), provider.Usage(HALF), provider.RetryableError("503"))
    source = Provider((provider.RetryableError("429"),), half, WHOLE)
    answer = await limited(source).ask(REQUEST, SCOPE)
    assert answer.message.text == "It is memory.", "nothing of a failed attempt may be left in the answer"
    assert answer.call.attempts == (
        entries.Attempt(error="429", provider="first"),
        entries.Attempt(error="503", usage=HALF, provider="first"),
    )
    assert answer.call.usage == USAGE


@pytest.mark.parametrize(
    ("failed", "counts"),
    [
        ((provider.Text("half"), provider.Usage(HALF), provider.RetryableError("503")), (HALF.total_tokens, False)),
        ((provider.Text("half"), provider.RetryableError("503")), (0, False)),
        ((provider.Usage(HALF), provider.Finish(None)), (HALF.total_tokens, True)),
    ],
    ids=["cut short after a first count", "cut short", "empty, but whole"],
)
async def test_count_of_a_whole_answer_alone_replaces_the_maximum_in_budgets(
    failed: tuple[Step, ...], counts: tuple[int, bool]
) -> None:
    async def reserve(*_: object, **_options: object) -> str:
        return f"request {next(numbers)}"

    numbers = itertools.count(1)
    call = (await limited(Provider(failed, WHOLE)).ask(REQUEST, replace(SCOPE, reserve=reserve))).call
    assert [(each.request, each.tokens, each.is_whole) for each in call.settled] == [
        ("request 1", *counts),
        ("request 2", USAGE.total_tokens, True),
    ]


async def test_requests_that_wait_for_room_in_their_budget_hold_up_no_other_of_the_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is one slot. The budget of the first has room once the second has been answered."""
    monkeypatch.setattr(limited_model, "ROOM_RETRY_SECONDS", 0.001)
    answered, refused = asyncio.Event(), asyncio.Event()

    async def reserve(*_: object, **_options: object) -> str | None:
        refused.set()
        return "request" if answered.is_set() else None

    model = limited(Provider(WHOLE), provider_calls=1)
    async with asyncio.timeout(60):
        waiting = asyncio.create_task(model.ask(REQUEST, replace(SCOPE, reserve=reserve)))
        await refused.wait()
        await model.ask(REQUEST, SCOPE)
        assert not waiting.done()
        answered.set()
        assert [count.request for count in (await waiting).call.settled] == ["request"]


async def test_request_waits_a_minute_at_most_for_room_in_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "ROOM_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(limited_model, "ROOM_SECONDS", 0.01)
    asked: list[bool] = []

    async def reserve(*_: object, may_wait: bool, **_options: object) -> str | None:
        asked.append(may_wait)
        if may_wait:
            return None
        raise ports.BudgetError("used up", code=messages.BUDGET)

    source = Provider(WHOLE)
    error = await failure(source, scope=replace(SCOPE, reserve=reserve), provider_calls=1)
    assert (error.failure.text, source.requests) == ("used up", 0)
    assert asked == [True] * (len(asked) - 1) + [False]
    assert len(asked) > 1


async def test_request_that_has_no_room_in_its_budget_takes_nothing_of_the_rate_limit() -> None:
    async def reserve(*_: object, **_options: object) -> str:
        raise ports.BudgetError("used up", code=messages.BUDGET)

    throttle = Throttle()
    with pytest.raises(ports.ModelError, match="used up"):
        await throttled(Provider(WHOLE), throttle).ask(REQUEST, replace(SCOPE, reserve=reserve))
    assert throttle.taken == []


async def test_reservation_of_a_repeated_request_names_those_that_have_failed() -> None:
    numbers = itertools.count(1)
    ended: list[list[str]] = []

    async def reserve(*_: object, **options: Any) -> str:
        ended.append(options["ended"])
        return f"request {next(numbers)}"

    failed = (provider.RetryableError("503"),)
    await limited(Provider(failed, failed, WHOLE)).ask(REQUEST, replace(SCOPE, reserve=reserve))
    assert ended == [[], ["request 1"], ["request 1", "request 2"]]


async def test_an_outage_is_outlasted_for_eight_attempts_and_no_more() -> None:
    source = Provider(*[(provider.RetryableError("503"),)] * 7, WHOLE)
    answer = await limited(source).ask(REQUEST, SCOPE)
    assert (answer.message.text, len(answer.call.attempts)) == ("It is memory.", 7)
    error = await failure(Provider((provider.RetryableError("503 overloaded"),)))
    assert (error.failure.kind, len(error.call.attempts)) == ("fatal", 8)
    assert error.failure.text == "first gave no answer in 8 attempts; the last one: 503 overloaded"


async def test_retries_end_with_the_iterations_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.01)
    source = Provider((provider.RetryableError("503 overloaded"),))
    error = await failure(source, iteration="300ms")
    assert error.failure.kind == "timeout"
    assert "an iteration has 0.3 s" in error.failure.text
    assert error.failure.text.endswith(f" (failed attempts: {source.requests}; the last one: 503 overloaded)")
    assert errors(error.call) == ["503 overloaded"] * source.requests
    assert 5 <= source.requests <= 7, "waits of 5 ms at least and 10 ms at most, then doubled"
    assert error.call.seconds <= 0.3


async def test_the_provider_says_how_long_to_wait_at_least() -> None:
    answer = await limited(Provider((provider.RetryableError("429", after=0.05),), WHOLE)).ask(REQUEST, SCOPE)
    assert answer.call.seconds == pytest.approx(0.05)


async def test_a_provider_that_asks_for_more_time_than_is_left_is_given_up_at_once() -> None:
    source = Provider((provider.RetryableError("429", after=121),))
    error = await failure(source)
    assert error.failure == messages.Failure(
        kind="timeout",
        text="first did not answer, and there is no time to ask again in 121 s: an iteration has 120 s "
        "(failed attempts: 1; the last one: 429)",
    )
    assert (source.requests, error.call.seconds) == (1, 0)


@pytest.mark.parametrize(
    ("raised", "kind"), [(provider.RejectedError("blocked"), "rejected"), (provider.FatalError("blocked"), "fatal")]
)
async def test_permanent_error_is_not_retried(raised: provider.ProviderError, kind: str) -> None:
    source = Provider((raised,))
    error = await failure(source)
    assert (error.failure.kind, error.failure.text, source.requests) == (kind, "first: blocked", 1)


@pytest.mark.parametrize("kind", [provider.RetryableError, provider.RejectedError, provider.FatalError])
async def test_an_error_is_kept_as_text_that_the_store_can_hold(kind: type[provider.ProviderError]) -> None:
    """Errors quote what a server sent, whole bodies included."""
    error = await failure(Provider((kind("a\x00b\ud800 " + "x" * 1_000_000),)), iteration="20ms")
    for text in (error.failure.text, *errors(error.call)):
        assert "a\ufffdb\ufffd x" in text
        assert len(text) < 10_000


@pytest.mark.parametrize("raised", [provider.RejectedError("flooded"), provider.FatalError("blocked")])
async def test_a_refused_answer_costs_what_it_cost(raised: provider.ProviderError) -> None:
    error = await failure(Provider((provider.Usage(USAGE), raised)))
    assert error.call.usage == USAGE


@pytest.mark.parametrize("events", [(HANG,), (provider.Thinking("hm"), HANG)], ids=["first byte", "idle"])
async def test_silence_is_a_broken_stream(events: tuple[Step, ...]) -> None:
    longer = {"first_byte": "5s"} if len(events) == 2 else {"idle": "5s"}
    answer = await limited(Provider(events, WHOLE), **{"first_byte": "20ms", "idle": "20ms", **longer}).ask(
        REQUEST, SCOPE
    )
    assert errors(answer.call) == ["the provider was silent for 0.02 s"]


async def test_a_sign_of_life_is_no_beginning_of_an_answer() -> None:
    source = limited(Provider((provider.Text(""), HANG), WHOLE), first_byte="20ms", idle="5s")
    answer = await source.ask(REQUEST, SCOPE)
    assert errors(answer.call) == ["the provider was silent for 0.02 s"]
    assert answer.call.seconds == pytest.approx(0.02)


@pytest.mark.parametrize("count", [-1, -(10**400), 10**12, 10**400])
async def test_a_count_that_cannot_be_is_bounded(count: int) -> None:
    counted = messages.Usage(input_tokens=count, output_tokens=count, thinking_tokens=count, total_tokens=count)
    priced = limited_model.LimitedModel(
        "first", Provider((provider.Usage(counted), *WHOLE[2:])), limits=platforms.Limits(), price=PRICE
    )
    call = (await priced.ask(REQUEST, SCOPE)).call
    bound = min(max(count, 0), answers.TOKENS_MAX)
    assert call.usage == messages.Usage(
        input_tokens=bound, output_tokens=bound, thinking_tokens=bound, total_tokens=bound
    )
    assert call.cost == pytest.approx(bound * (2 + 2 * 10) / 1e6)


@pytest.mark.parametrize("events", [(), (provider.Text("It is"),)])
async def test_a_stream_that_ends_without_a_finish_is_tried_again(events: tuple[Step, ...]) -> None:
    answer = await limited(Provider(events, WHOLE)).ask(REQUEST, SCOPE)
    assert errors(answer.call) == ["the answer ended before it was whole"]


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


async def test_text_and_thoughts_are_watched_each_by_itself() -> None:
    """Half of the answer is quoted in the thoughts: neither is long enough to be one passage over and over."""
    line = "I look at the pod again, and then I look at its log.\n"
    pieces = (provider.Text(line), provider.Thinking(line)) * 110
    answer = await limited(Provider((*pieces, provider.Finish(None)))).ask(REQUEST, SCOPE)
    assert answer.message.text == answer.message.thinking == line * 110


async def test_a_broken_attempt_counts_for_nothing_in_the_next_ones_circles() -> None:
    half = (provider.Text("I look at the pod again, and again. " * 100),)
    answer = await limited(Provider((*half, provider.RetryableError("503")), (*half, provider.Finish(None)))).ask(
        REQUEST, SCOPE
    )
    assert len(answer.call.attempts) == 1


async def test_too_many_calls_in_one_answer_are_refused() -> None:
    call = provider.Call("k8s.get", "{}")
    error = await failure(Provider((call, call, call, HANG)), answer_calls=2)
    text = "first: the answer asks for more than 2 tool calls"
    assert (error.failure.kind, error.failure.text) == ("rejected", text)


async def test_attempts_are_recorded_when_the_iterations_time_is_over() -> None:
    source = Provider((provider.RetryableError("429"),), (provider.Usage(USAGE), HANG))
    error = await failure(source, iteration="20ms")
    text = "first did not answer within 0.02 s (failed attempts: 1; the last one: 429)"
    assert error.failure == messages.Failure(kind="timeout", text=text)
    assert (errors(error.call), error.call.usage) == (["429"], USAGE)


async def test_waiting_for_a_slot_does_not_count_as_silence() -> None:
    source = Provider((HANG,), WHOLE)
    limits = limited(source, provider_calls=1, iteration="50ms")
    first, second = await asyncio.gather(*(limits.ask(REQUEST, SCOPE) for _ in range(2)), return_exceptions=True)
    assert isinstance(first, ports.ModelError), "it has used up its time, and the other waited for as long"
    assert isinstance(second, ports.Answer)


async def test_a_repeat_is_sent_only_while_the_lease_holds() -> None:
    source = Provider((provider.RetryableError("429"),), WHOLE)

    async def lost_meanwhile() -> None:
        if source.requests == 1:
            raise ports.LeaseLostError

    with pytest.raises(ports.LeaseLostError):
        await limited(source).ask(REQUEST, ports.Scope(execution="e", ensure_lease=lost_meanwhile))
    assert source.requests == 1


async def test_lease_is_checked_after_the_wait_for_a_slot() -> None:
    source = Provider((HANG,))
    limits = limited(source, provider_calls=1)
    holding = asyncio.create_task(limits.ask(REQUEST, SCOPE))
    await source.opened.wait()
    source.opened.clear()
    asked: list[int] = []

    async def seen() -> None:
        asked.append(source.open)

    waiting = asyncio.create_task(limits.ask(REQUEST, ports.Scope(execution="e", ensure_lease=seen)))
    await asyncio.sleep(0)
    assert asked == []
    holding.cancel()
    await source.opened.wait()
    assert asked == [0], "right before it sent, and not while the other one was served"
    waiting.cancel()


@pytest.mark.parametrize("tries", [((HANG,),), ((provider.RetryableError("503", after=19),),)], ids=["stream", "wait"])
async def test_cancellation_closes_the_stream_and_frees_its_slot(tries: tuple[tuple[Step, ...], ...]) -> None:
    source = Provider(*tries, WHOLE)
    limits = limited(source, provider_calls=1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await limits.ask(REQUEST, SCOPE)
    assert (source.requests, source.open) == (1, 0)
    assert (await limits.ask(REQUEST, SCOPE)).message.text == "It is memory."


async def test_calls_to_one_provider_at_once_are_limited() -> None:
    source = Provider(WHOLE)
    limits = limited(source, provider_calls=2)
    await asyncio.gather(*(limits.ask(REQUEST, SCOPE) for _ in range(6)))
    assert (source.requests, source.most_open) == (6, 2)


async def test_request_that_waits_for_a_retry_releases_its_slot() -> None:
    source = Provider((provider.RetryableError("429", after=19),), WHOLE)
    limits = limited(source, provider_calls=1)
    waiting = asyncio.create_task(limits.ask(REQUEST, SCOPE))
    async with asyncio.timeout(60):
        await source.ended.wait()
        assert (await limits.ask(REQUEST, SCOPE)).message.text == "It is memory."
    assert not waiting.done()
    waiting.cancel()


BEFORE_FALLBACK = replace(SCOPE, has_fallback=True)


async def test_provider_is_tried_four_times_if_another_is_left_to_ask() -> None:
    source = Provider((provider.RetryableError("503 overloaded", code="503"),))
    error = await failure(source, scope=BEFORE_FALLBACK)
    text = "first gave no answer in 4 attempts; the last one: 503 overloaded"
    assert error.failure == messages.Failure(kind="fatal", text=text, code="503")
    assert (source.requests, len(error.call.attempts), error.call.retries) == (4, 4, 3)
    source = Provider(*[(provider.RetryableError("503"),)] * 3, WHOLE)
    answer = await limited(source).ask(REQUEST, BEFORE_FALLBACK)
    assert (answer.message.text, len(answer.call.attempts), answer.call.retries) == ("It is memory.", 3, 3)


async def test_each_attempt_has_its_provider_and_the_providers_error_code() -> None:
    source = Provider(
        (provider.RetryableError("429: slow down", code="429"),), (provider.FatalError("401: the key", code="401"),)
    )
    error = await failure(source)
    assert error.call.attempts == (entries.Attempt(error="429: slow down", provider="first", code="429"),)
    assert error.failure == messages.Failure(kind="fatal", text="first: 401: the key", code="401")
    assert error.call.retries == 1


@pytest.mark.parametrize("kind", [provider.RetryableError, provider.RejectedError, provider.FatalError])
async def test_a_code_is_kept_as_text_that_the_store_can_hold(kind: type[provider.ProviderError]) -> None:
    error = await failure(Provider((kind("no", code="a\x00b\ud800" + "x" * 10_000),)), iteration="20ms")
    for code in (error.failure.code, *(attempt.code for attempt in error.call.attempts)):
        assert code.startswith("a\ufffdb\ufffdx") or code == ""
        assert len(code) <= 100


EMPTY: dict[str, tuple[Step, ...]] = {
    "nothing": (),
    "white space": (provider.Text(" \n"), provider.Text("\t\u00a0\u2003")),
    "thoughts alone": (provider.Thinking("hm"),),
}


@pytest.mark.parametrize("chunks", EMPTY.values(), ids=EMPTY)
async def test_an_empty_answer_is_asked_for_again_three_times_and_is_none_then(chunks: tuple[Step, ...]) -> None:
    empty = (*chunks, provider.Usage(HALF), provider.Finish([{"s": "x"}]))
    source = Provider(empty, empty, empty, WHOLE)
    answer = await limited(source).ask(REQUEST, SCOPE)
    attempt = entries.Attempt(error="an empty answer", usage=HALF, provider="first", code="empty")
    assert (answer.message.text, answer.call.attempts) == ("It is memory.", (attempt,) * 3)
    assert (answer.call.usage, answer.call.retries) == (USAGE, 3)
    for scope in (SCOPE, BEFORE_FALLBACK):
        source = Provider(empty)
        error = await failure(source, scope=scope)
        assert error.failure == messages.Failure(kind="fatal", text="first gave 4 empty answers", code="empty")
        assert (source.requests, error.call.attempts, error.call.retries) == (4, (attempt,) * 4, 3)


@pytest.mark.parametrize("event", [provider.Text("."), provider.Call("k8s.get", "{}")], ids=["a word", "a call"])
async def test_an_answer_with_a_word_or_a_call_is_not_empty(event: provider.StreamEvent) -> None:
    answer = await limited(Provider((event, provider.Finish(None)))).ask(REQUEST, SCOPE)
    assert answer.call.attempts == ()


async def test_empty_answers_and_errors_are_counted_each_by_themselves() -> None:
    empty, error = (provider.Finish(None),), (provider.RetryableError("503"),)
    source = Provider(empty, error, empty, error, empty, error, WHOLE)
    answer = await limited(source).ask(REQUEST, BEFORE_FALLBACK)
    assert errors(answer.call) == ["an empty answer", "503"] * 3
    model_error = await failure(Provider(empty, error, empty, error, empty, error, empty), scope=BEFORE_FALLBACK)
    assert model_error.failure.text == "first gave 4 empty answers"


async def test_empty_answers_are_apart_and_within_the_iterations_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.05)
    answer = await limited(Provider((provider.Finish(None),), WHOLE)).ask(REQUEST, SCOPE)
    assert answer.call.seconds == pytest.approx(0.05)
    error = await failure(Provider((provider.Finish(None),)), iteration="120ms")
    assert (error.failure.kind, error.failure.code) == ("timeout", "empty")
    assert "no time to ask again in 0.05 s" in error.failure.text
    assert len(error.call.attempts) == 3


class Budget:
    """So many requests may be repeated."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0

    @property
    def scope(self) -> ports.Scope:
        return replace(SCOPE, may_retry=self.take)


@pytest.mark.parametrize("failed", [provider.RetryableError("503 overloaded", code="503"), provider.Finish(None)])
async def test_investigation_repeats_no_more_than_it_may(
    failed: provider.RetryableError | provider.Finish,
) -> None:
    budget = Budget(2)
    source = Provider((failed,))
    error = await failure(source, scope=budget.scope, retries=100)
    last = "an empty answer" if isinstance(failed, provider.Finish) else "503 overloaded"
    text = (
        "first did not answer, and the 100 retries of an investigation or a question (limits.retries) are used up; "
        f"the last error: {last}"
    )
    assert error.failure == messages.Failure(kind="fatal", text=text, code="retries")
    assert (source.requests, len(error.call.attempts), error.call.retries) == (3, 3, 2)


async def test_request_that_is_not_repeated_is_not_counted() -> None:
    budget = Budget(1)
    await limited(Provider(WHOLE)).ask(REQUEST, budget.scope)
    for raised in (
        provider.FatalError("401"),
        provider.RejectedError("flooded"),
        provider.RetryableError("", after=500),
    ):
        await failure(Provider((raised,)), scope=budget.scope)
    assert budget.left == 1
    await limited(Provider((provider.RetryableError("503"),), WHOLE)).ask(REQUEST, budget.scope)
    assert budget.left == 0


class Throttle:
    """Has everybody wait until it is opened; remembers who asked with how many tokens, and what was corrected."""

    def __init__(self, *, opened: bool = True) -> None:
        self.opened = asyncio.Event()
        self.waits = asyncio.Event()
        self.taken: list[tuple[str, int]] = []
        self.corrected: list[tuple[str, int]] = []
        if opened:
            self.opened.set()

    async def take(self, provider: str, tokens: int) -> ports.Reservation:
        self.waits.set()
        await self.opened.wait()
        self.taken.append((provider, tokens))
        return ports.Reservation(provider=provider, tokens=tokens)

    def correct(self, taken: ports.Reservation, tokens: int) -> None:
        assert taken.tokens == ESTIMATE
        self.corrected.append((taken.provider, tokens))


ESTIMATE = token_estimate.tokens(REQUEST)


async def test_each_request_is_counted_by_estimate_and_corrected_by_the_providers_count() -> None:
    throttle = Throttle()
    half = (provider.Usage(HALF), provider.RetryableError("503"))
    tries = (half, (provider.RetryableError("429"),), WHOLE)
    await throttled(Provider(*tries), throttle).ask(REQUEST, SCOPE)
    assert throttle.taken == [("first", ESTIMATE)] * 3
    assert throttle.corrected == [("first", 107), ("first", 129)], "what nobody counted stands"


async def test_a_count_without_a_total_is_its_sum() -> None:
    throttle = Throttle()
    counted = provider.Usage(messages.Usage(input_tokens=100, output_tokens=20, thinking_tokens=9))
    await throttled(Provider((counted, *WHOLE[2:])), throttle).ask(REQUEST, SCOPE)
    assert throttle.corrected == [("first", 129)]


async def test_lease_is_checked_after_the_throttle_and_its_wait_uses_no_time() -> None:
    throttle, source, seen = Throttle(opened=False), Provider(WHOLE), list[str]()

    @contextmanager
    def waiting() -> Iterator[None]:
        seen.append("waits")
        yield
        seen.append("waits no longer")

    async def lease() -> None:
        seen.append(f"lease, after {len(throttle.taken)} and before {source.requests}")

    scope = replace(SCOPE, ensure_lease=lease, pause_time=waiting)
    asking = asyncio.create_task(throttled(source, throttle, iteration="50ms", first_byte="10ms").ask(REQUEST, scope))
    await throttle.waits.wait()
    await asyncio.sleep(0.06)
    assert (seen[-1], source.requests) == ("waits", 0)
    throttle.opened.set()
    assert (await asking).message.text == "It is memory."
    assert seen[-2:] == ["waits no longer", "lease, after 1 and before 0"]


@pytest.mark.parametrize("where", ["throttle", "empty answer", "back-off"])
async def test_cancellation_cuts_each_wait_and_frees_its_slot(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 60.0)
    first: dict[str, Step] = {"empty answer": provider.Finish(None), "back-off": provider.RetryableError("", after=60)}
    throttle = Throttle(opened=where != "throttle")
    source = Provider(*((first[where],) for _ in [where] if where in first), WHOLE)
    limits = throttled(source, throttle, provider_calls=1)
    asking = asyncio.create_task(limits.ask(REQUEST, SCOPE))
    await (throttle.waits.wait() if where == "throttle" else source.ended.wait())
    await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await asking
    throttle.opened.set()
    assert source.open == 0
    assert (await limits.ask(REQUEST, SCOPE)).message.text == "It is memory."


PRICE = providers.Price(input=2.0, output=10.0)
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
    priced = limited_model.LimitedModel("first", Provider(*tries), limits=platforms.Limits(), price=price)
    try:
        call = (await priced.ask(REQUEST, SCOPE)).call
    except ports.ModelError as error:
        call = error.call
    assert call.cost == (None if price is None else pytest.approx(millionths / 1e6))


SIZES: dict[str, tuple[Callable[[ports.Request], ports.Request], int]] = {
    "a prompt": (lambda request: request, 2),
    "rounded up": (lambda request: replace(request, messages=(messages.Message(role="user", text="1234567"),)), 3),
    "calls": (
        lambda request: replace(
            request,
            messages=(
                messages.Message(
                    role="assistant",
                    thinking="is never sent" * 9,
                    calls=(messages.ToolCall(id="0.0", name="k8s.get", arguments="{}"),),
                    provider_state=messages.ProviderState(provider="first", data=["x" * 1000]),
                ),
            ),
        ),
        3,
    ),
    "tools": (
        lambda request: replace(
            request,
            messages=(),
            tools=(messages.ToolSpec(name="k8s.get", description="Gets it.", parameters={"type": "object"}),),
        ),
        11,
    ),
}


@pytest.mark.parametrize(("change", "tokens"), SIZES.values(), ids=SIZES)
def test_a_token_is_three_characters_by_estimate(change: Callable[[ports.Request], ports.Request], tokens: int) -> None:
    assert token_estimate.tokens(change(REQUEST)) == tokens


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


async def test_a_model_tells_how_the_last_call_to_it_went_and_since_when() -> None:
    refused = provider.FatalError("no such key", code="401")
    source = Provider(WHOLE, WHOLE, (refused,), (provider.RejectedError("cut", code="safety"),), (HANG,), WHOLE)
    asked = limited_model.LimitedModel("google", source, limits=platforms.Limits())
    assert asked.state.state == "usable"
    await asked.ask(REQUEST, SCOPE)
    since = asked.state.since
    await asked.ask(REQUEST, SCOPE)
    assert (asked.state.state, asked.state.since, asked.state.failure) == ("answering", since, None)
    for kind, code in (("fatal", "401"), ("rejected", "safety")):
        with pytest.raises(ports.ModelError):
            await asked.ask(REQUEST, SCOPE)
        assert asked.state.failure
        assert (asked.state.state, asked.state.failure.kind, asked.state.failure.code) == (
            "failing",
            kind,
            code,
        )
    failing = asked.state.since
    assert failing > since
    cancelled = asyncio.create_task(asked.ask(REQUEST, SCOPE))
    source.opened.clear()
    await source.opened.wait()
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert (asked.state.state, asked.state.since) == ("failing", failing)
    await asked.ask(REQUEST, SCOPE)
    assert (asked.state.state, asked.state.failure) == ("answering", None)


def retold(retries: list[ports.Retry]) -> ports.Scope:
    async def retrying(retry: ports.Retry) -> None:
        retries.append(retry)

    return replace(SCOPE, on_retry=retrying)


async def test_retry_is_reported_before_its_wait() -> None:
    retries: list[ports.Retry] = []
    source = Provider((provider.RetryableError("429 too fast", code="429", after=0.01),), WHOLE)
    answer = await limited(source).ask(REQUEST, retold(retries))
    failed = entries.Attempt(error="429 too fast", provider="first", code="429")
    assert retries == [ports.Retry(attempt=1, failed=failed, model="fake-1", seconds=0.01)]
    assert answer.call.attempts == (failed,)


@pytest.mark.parametrize(("seconds", "expected"), [(3600.0, [1]), (0.0, [1, 2, 3])])
async def test_retries_of_a_call_are_reported_at_intervals(
    monkeypatch: pytest.MonkeyPatch, seconds: float, expected: list[int]
) -> None:
    monkeypatch.setattr(limited_model, "RETRIES_REPORTED", seconds)
    retries: list[ports.Retry] = []
    first = limited(Provider(*[(provider.RetryableError("503"),)] * 3, WHOLE))
    await first.ask(REQUEST, retold(retries))
    assert [retry.attempt for retry in retries] == expected
    again = limited(Provider((provider.RetryableError("503"),), WHOLE))
    await again.ask(REQUEST, retold(retries))
    assert [retry.attempt for retry in retries] == [*expected, 1], "another call is told by itself"


async def test_request_that_is_not_repeated_is_not_reported_as_a_retry() -> None:
    retries: list[ports.Retry] = []
    await failure(Provider((provider.RetryableError("503", after=10_000),)), scope=retold(retries))
    await failure(Provider((provider.FatalError("401"),)), scope=retold(retries))
    assert retries == []


def priced(source: Provider, **limits: object) -> limited_model.LimitedModel:
    parsed_limits = platforms.Limits.model_validate(limits)
    return limited_model.LimitedModel("first", source, limits=parsed_limits, price=PRICE)


async def test_calls_tokens_costs_errors_and_retries_are_counted_those_of_failed_requests_too() -> None:
    since = scrapes.Since()
    refused = (provider.Usage(HALF), provider.RetryableError("busy", code="429"))
    scope = replace(SCOPE, chain="pod-crash")
    await priced(Provider(refused, WHOLE)).ask(REQUEST, scope)
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


async def test_a_cancelled_call_is_counted_as_that() -> None:
    since = scrapes.Since()
    source = Provider((HANG,))
    asking = asyncio.create_task(limited(source).ask(REQUEST, SCOPE))
    await source.opened.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert since("tarsy_model_calls_total", outcome="cancelled") == since("tarsy_model_calls_total") == 1
