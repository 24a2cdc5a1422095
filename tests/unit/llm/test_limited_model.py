"""Limits and retries around a provider, which is here a small one of the test's own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from support.limited_models import (
    ESTIMATE,
    HALF,
    HANG,
    REQUEST,
    SCOPE,
    USAGE,
    WHOLE,
    Provider,
    Step,
    Throttle,
    errors,
    failure,
    limited,
)
from tarsy.config.model import platforms
from tarsy.llm import limited_model, provider
from tarsy.transcript import entries, messages, ports

pytestmark = pytest.mark.leaps


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "FIRST_BACKOFF", 0.0)
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.0)


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
async def test_only_token_count_of_complete_answer_replaces_reserved_maximum_in_budgets(
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
        await limited(Provider(WHOLE), throttle=throttle).ask(REQUEST, replace(SCOPE, reserve=reserve))
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


async def test_retry_waits_at_least_as_long_as_provider_asks() -> None:
    answer = await limited(Provider((provider.RetryableError("429", after=0.05),), WHOLE)).ask(REQUEST, SCOPE)
    assert answer.call.seconds == pytest.approx(0.05)


async def test_provider_asking_for_more_wait_than_time_left_is_given_up_at_once() -> None:
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


SILENCES: dict[str, tuple[tuple[Step, ...], str]] = {
    "nothing came": ((HANG,), "first_byte"),
    "names of the response are no answer": ((provider.Response("fake-1-0925"), HANG), "first_byte"),
    "nor is a sign of life": ((provider.Text(""), HANG), "first_byte"),
    "within an answer": ((provider.Thinking("hm"), HANG), "idle"),
}


@pytest.mark.parametrize(("events", "limit"), SILENCES.values(), ids=SILENCES)
async def test_silence_is_a_broken_stream(events: tuple[Step, ...], limit: str) -> None:
    limits: dict[str, Any] = {"first_byte": "5s", "idle": "5s"} | {limit: "20ms"}
    answer = await limited(Provider(events, WHOLE), **limits).ask(REQUEST, SCOPE)
    assert errors(answer.call) == ["the provider was silent for 0.02 s"]


@pytest.mark.parametrize("events", [(), (provider.Text("It is"),)])
async def test_a_stream_that_ends_without_a_finish_is_tried_again(events: tuple[Step, ...]) -> None:
    answer = await limited(Provider(events, WHOLE)).ask(REQUEST, SCOPE)
    assert errors(answer.call) == ["the answer ended before it was whole"]


async def test_attempts_are_recorded_when_the_iterations_time_is_over() -> None:
    source = Provider((provider.RetryableError("429"),), (provider.Usage(USAGE), HANG))
    error = await failure(source, iteration="20ms")
    text = "first did not answer within 0.02 s (failed attempts: 1; the last one: 429)"
    assert error.failure == messages.Failure(kind="timeout", text=text)
    assert (errors(error.call), error.call.usage) == (["429"], USAGE)


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


async def test_concurrent_calls_to_one_provider_are_limited() -> None:
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


EMPTY: dict[str, tuple[Step, ...]] = {
    "nothing": (),
    "white space": (provider.Text(" \n"), provider.Text("\t\u00a0\u2003")),
    "thoughts alone": (provider.Thinking("hm"),),
}


@pytest.mark.parametrize("chunks", EMPTY.values(), ids=EMPTY)
async def test_empty_answer_is_retried_three_times_and_then_counts_as_no_answer(chunks: tuple[Step, ...]) -> None:
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


async def test_empty_answers_are_apart_and_within_the_iterations_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 0.05)
    answer = await limited(Provider((provider.Finish(None),), WHOLE)).ask(REQUEST, SCOPE)
    assert answer.call.seconds == pytest.approx(0.05)
    error = await failure(Provider((provider.Finish(None),)), iteration="120ms")
    assert (error.failure.kind, error.failure.code) == ("timeout", "empty")
    assert "no time to ask again in 0.05 s" in error.failure.text
    assert len(error.call.attempts) == 3


@pytest.mark.parametrize("failed", [provider.RetryableError("503 overloaded", code="503"), provider.Finish(None)])
async def test_investigation_repeats_no_more_than_it_may(failed: provider.RetryableError | provider.Finish) -> None:
    granted = iter([True, True, False])
    source = Provider((failed,))
    error = await failure(source, scope=replace(SCOPE, may_retry=lambda: next(granted)), retries=100)
    last = "an empty answer" if isinstance(failed, provider.Finish) else "503 overloaded"
    text = (
        "first did not answer, and the 100 retries of an investigation or a question (limits.retries) are used up; "
        f"the last error: {last}"
    )
    assert error.failure == messages.Failure(kind="fatal", text=text, code="retries")
    assert (source.requests, len(error.call.attempts), error.call.retries) == (3, 3, 2)


async def test_request_that_is_not_repeated_is_neither_counted_nor_reported() -> None:
    granted = iter([True])
    retries: list[ports.Retry] = []
    scope = replace(reporting(retries), may_retry=lambda: next(granted))
    await limited(Provider(WHOLE)).ask(REQUEST, scope)
    for raised in (
        provider.FatalError("401"),
        provider.RejectedError("flooded"),
        provider.RetryableError("", after=500),
    ):
        await failure(Provider((raised,)), scope=scope)
    assert retries == []
    await limited(Provider((provider.RetryableError("503"),), WHOLE)).ask(REQUEST, scope)
    assert (len(retries), list(granted)) == (1, [])


async def test_each_request_is_counted_by_estimate_and_corrected_by_the_providers_count() -> None:
    throttle = Throttle()
    half = (provider.Usage(HALF), provider.RetryableError("503"))
    tries = (half, (provider.RetryableError("429"),), WHOLE)
    await limited(Provider(*tries), throttle=throttle).ask(REQUEST, SCOPE)
    assert throttle.taken == [("first", ESTIMATE)] * 3
    assert throttle.corrected == [("first", 107), ("first", 129)], "what nobody counted stands"


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
    asking = asyncio.create_task(
        limited(source, throttle=throttle, iteration="50ms", first_byte="10ms").ask(REQUEST, scope)
    )
    await throttle.waits.wait()
    await asyncio.sleep(0.06)
    assert (seen[-1], source.requests) == ("waits", 0)
    throttle.opened.set()
    assert (await asking).message.text == "It is memory."
    assert seen[-2:] == ["waits no longer", "lease, after 1 and before 0"]


@pytest.mark.parametrize("where", ["throttle", "stream", "empty answer", "back-off"])
async def test_cancellation_cuts_each_wait_and_frees_its_slot(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited_model, "EMPTY_WAIT", 60.0)
    tries: dict[str, tuple[tuple[Step, ...], ...]] = {
        "throttle": (WHOLE,),
        "stream": ((HANG,), WHOLE),
        "empty answer": ((provider.Finish(None),), WHOLE),
        "back-off": ((provider.RetryableError("", after=60),), WHOLE),
    }
    throttle = Throttle(opened=where != "throttle")
    source = Provider(*tries[where])
    limits = limited(source, throttle=throttle, provider_calls=1)
    asking = asyncio.create_task(limits.ask(REQUEST, SCOPE))
    reached = {"throttle": throttle.waits, "stream": source.opened}
    await reached.get(where, source.ended).wait()
    await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(1):
        with pytest.raises(asyncio.CancelledError):
            await asking
    throttle.opened.set()
    assert source.open == 0
    assert (await limits.ask(REQUEST, SCOPE)).message.text == "It is memory."


async def test_model_state_shows_outcome_of_last_call_and_since_when() -> None:
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
        assert (asked.state.state, asked.state.failure.kind, asked.state.failure.code) == ("failing", kind, code)
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


def reporting(retries: list[ports.Retry]) -> ports.Scope:
    async def retrying(retry: ports.Retry) -> None:
        retries.append(retry)

    return replace(SCOPE, on_retry=retrying)


async def test_retry_is_reported_before_its_wait() -> None:
    retries: list[ports.Retry] = []
    source = Provider((provider.RetryableError("429 too fast", code="429", after=0.01),), WHOLE)
    answer = await limited(source).ask(REQUEST, reporting(retries))
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
    await first.ask(REQUEST, reporting(retries))
    assert [retry.attempt for retry in retries] == expected
    again = limited(Provider((provider.RetryableError("503"),), WHOLE))
    await again.ask(REQUEST, reporting(retries))
    assert [retry.attempt for retry in retries] == [*expected, 1], "another call is told by itself"
