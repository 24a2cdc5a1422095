"""Promises of every journal, checked over the one that forgets with its process and the one in Postgres alike.

Unit tests of agent and engine run on MemoryJournal; they prove something about production only while both pass here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Protocol
from uuid import UUID

import pytest
import sqlalchemy
from support import exports
from support.journal_stories import (
    ALERT,
    ANSWER,
    CALL,
    CHAIN,
    CONCLUDE,
    FATAL,
    OPENING,
    SNAPSHOT,
    STORIES,
    TOOLS,
    UID,
    WHOLE,
    answered,
    asks,
    ended,
    ran,
    result,
    started,
    unanswered,
)
from tarsy.agent import loop
from tarsy.config.model import budgets, platforms
from tarsy.llm import limited_model, provider
from tarsy.store.base import databases
from tarsy.store.intake import queueing
from tarsy.store.queue import journal as journals
from tarsy.store.queue import work
from tarsy.transcript import admission, entries, line_excerpts, memory, messages, nesting, ports, record
from tarsy.transcript.kinds import registry
from tarsy.worker import leases


def folded(story: Iterable[entries.Entry]) -> record.Record:
    return registry.fold(SNAPSHOT, story)


class Journals(Protocol):
    """One investigation's journals, one after the other: each takes the lease of the one before."""

    async def open(self, *, later: float = 0) -> ports.Journal:
        """A journal that has read all that was committed so far; so many seconds later, to its clock."""
        ...


class MemoryJournals:
    def __init__(self) -> None:
        self._last: memory.MemoryJournal | None = None

    async def open(self, *, later: float = 0) -> memory.MemoryJournal:
        self._last = self._last.taken_over() if self._last else memory.MemoryJournal(SNAPSHOT)
        self._last.passed += later
        return self._last


# An ended one too, which nothing else would claim: what was written last is to be read again.
PASS_LEASE = "UPDATE work SET state = 'running', lease_until = now() - interval '1 s'"


class PgJournals:
    def __init__(self, database: databases.Database) -> None:
        self._database = database
        self._last: leases.Lease | None = None

    async def admit(self) -> None:
        taker = admission.AdmittedChain(
            name=SNAPSHOT.chain_name, namespace="tarsy", generation=1, hash=16 * "0", spec=CHAIN
        )
        admitted = admission.Admission(
            id=UID,
            namespace=SNAPSHOT.namespace,
            name=SNAPSHOT.name,
            generation=1,
            alert_type=SNAPSHOT.alert_type,
            alert_data=ALERT,
            chain=taker,
        )
        assert await queueing.admit(self._database, admitted)

    async def open(self, *, later: float = 0) -> journals.PgJournal:
        if self._last:
            self._last.stop("lost")
            async with self._database.begin() as connection:
                await connection.execute(sqlalchemy.text(PASS_LEASE))
                earlier = sqlalchemy.text("UPDATE runs SET started_at = started_at - make_interval(secs => :later)")
                await connection.execute(earlier, {"later": later})
        claim = await work.claim(self._database, owner=UUID(int=1), lease=timedelta(minutes=1), build="")
        assert claim
        held = self._last = leases.Lease(claim, certain_until=math.inf)
        return await journals.PgJournal.open(
            self._database, claim=claim, ensure_lease=held.ensure_lease, suspended=lambda: held.suspend
        )


@pytest.fixture(params=["memory", "postgres"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Journals]:
    if request.param == "memory":
        yield MemoryJournals()
        return
    database = databases.Database(request.getfixturevalue("migrated_url"))
    try:
        journals = PgJournals(database)
        await journals.admit()
        yield journals
    finally:
        await database.close()


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_entries_of_one_commit_are_atomic(opened: Journals, story: Sequence[entries.Entry]) -> None:
    journal = await opened.open()
    await journal.commit(*story)
    assert journal.record == folded(story)
    again = await opened.open()
    assert again.record == folded(story)
    assert list(again.record.stages) == list(folded(story).stages)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_outcome_is_the_same_with_a_takeover_before_each_entry(
    opened: Journals, story: Sequence[entries.Entry]
) -> None:
    for index, entry in enumerate(story):
        journal = await opened.open()
        assert journal.record == folded(story[:index])
        await journal.commit(entry)
    assert (await opened.open()).record == folded(story)


async def test_full_result_is_stored_beside_the_shortened_result_and_survives_a_takeover(opened: Journals) -> None:
    journal = await opened.open()
    full_text, parts = f"{WHOLE}!", ("0.0", "0.1")
    for entry in (*OPENING, answered(asks("0.0", "0.1"))):
        await journal.commit(entry)
    assert [await journal.whole("collect/1", name) for name in parts] == [None, None]
    await journal.commit(ran(replace(result("0.0"), length=len(full_text), whole=full_text), result("0.1")))
    for _ in range(2):
        assert [await journal.whole("collect/1", name) for name in parts] == [full_text, None]
        assert await journal.whole("collect/2", "0.0") is None
        journal = await opened.open()


@pytest.mark.parametrize("summarised", [False, True])
async def test_full_text_is_rebuilt_from_its_excerpt_and_no_part_is_stored_twice(
    opened: Journals, database: databases.Database, *, summarised: bool
) -> None:
    journal = await opened.open()
    text = "".join(f"größer {number} 💥\r\n" for number in range(2_000))
    rendered, excerpt = line_excerpts.render(text, line_excerpts.choose(text, 2_000), header="[an excerpt]")
    due = entries.SummaryDue(provider="p", tokens=9, reads=2_000) if summarised else None
    run = result("0.0")
    run = replace(
        run, result=replace(run.result, text=rendered), length=len(text), whole=text, excerpt=excerpt, summary=due
    )
    for entry in (*OPENING, answered(asks("0.0")), ran(run)):
        await journal.commit(entry)
    if summarised:
        call = entries.ModelCall(provider="p", model="m", seconds=0.0)
        await journal.commit(
            entries.ToolSummarised(
                execution="collect/1", turn=1, call_id="0.0", tool="k8s.get", word="w", text="2,000 times", call=call
            )
        )
    for _ in range(2):
        assert await journal.whole("collect/1", "0.0") == text
        _, message = journal.record.executions["collect/1"].result("0.0")
        assert message.text.endswith("2,000 times" if summarised else rendered)
        journal = await opened.open()
    for row in await database.run(sqlalchemy.text("SELECT whole, rest FROM tool_results")):
        assert (row.whole, len(row.rest)) == ("", len(text) - excerpt.shown_length)


class Poisoner:
    """Calls a tool by a name and with arguments that Postgres' text cannot hold, and then says so."""

    model = "m"

    async def stream(self, request: ports.Request) -> AsyncGenerator[provider.StreamEvent]:
        if request.messages[-1].role == "tool":
            yield provider.Text(f"no {request.messages[-1].text}\x00")
            yield provider.Finish(None)
            return
        for name in ("k8s\x00.\ud83d", TOOLS[1].name):
            yield provider.Call(name, '{"\\u0000\x00": "\\ud83d\ud83d"}')
        yield provider.Finish([{"functionCall": {"name": "k8s\x00__\ud83d", "args": {"\x00": "\ud83d"}}}])

    async def close(self) -> None:
        """There is nothing to close."""


async def test_any_tool_name_of_a_model_is_stored(opened: Journals) -> None:
    journal = await opened.open()
    for entry in OPENING:
        await journal.commit(entry)
    poisoned = limited_model.LimitedModel("google-default", Poisoner(), limits=platforms.Limits())
    await loop.Loop(
        execution=journal.record.executions["collect/1"],
        model=lambda _: poisoned,
        toolbox=memory.DictToolbox({TOOLS[1].name: "web-0"}),
        journal=journal,
        ends_with=lambda _: (),
    ).run()
    assert journal.record.executions["collect/1"].analysis == "no web-0\ufffd"
    again = await opened.open()
    assert again.record == journal.record
    (asked,) = [m for m in again.record.executions["collect/1"].log if isinstance(m, messages.Message) and m.calls]
    assert asked.provider_state
    assert asked.provider_state.data == [{"functionCall": {"name": "k8s\x00__\ud83d", "args": {"\x00": "\ud83d"}}}]


async def test_exported_model_call_shows_how_many_messages_it_was_sent(database: databases.Database) -> None:
    """The messages at these positions, and no others, are what the model saw."""
    journals = PgJournals(database)
    await journals.admit()
    journal = await journals.open()
    for entry in STORIES["a conclusion that was asked for in vain at first"]:
        await journal.commit(entry)
    exported = await exports.whole(database, UUID(UID))
    assert [(call.failure, call.context_messages) for call in exported.llm_interactions] == [
        ("timeout", 2),
        (None, 2),
        ("rejected", 5),
        ("timeout", 5),
        (None, 5),
    ]
    assert [message.text for message in exported.messages[4:]] == [CONCLUDE.text, ANSWER.text]
    assert {type(stage.total_tokens) for stage in exported.stages} == {int}, "a Decimal would be served as a string"


async def test_each_model_call_shows_the_provider_and_why_the_next_provider_was_called(
    database: databases.Database,
) -> None:
    journals = PgJournals(database)
    await journals.admit()
    journal = await journals.open()
    for entry in STORIES["providers that were left for others"]:
        await journal.commit(entry)
    exported = await exports.whole(database, UUID(UID))
    asked = [(call.turn, call.provider, call.failure, call.failure_code) for call in exported.llm_interactions]
    assert asked == [
        (0, "google-default", "rejected", ""),
        (1, "google-default", "fatal", "401"),
        (1, "größer", None, None),
        (2, "größer", "timeout", ""),
        (2, "google-default", None, None),
    ]
    (attempt,) = exported.llm_interactions[1].failed_requests
    assert (attempt.provider, attempt.code, attempt.error) == ("google-default", "503", "503")


async def test_journal_with_a_lost_lease_refuses_to_commit_and_keeps_nothing(opened: Journals) -> None:
    late = await opened.open()
    for entry in OPENING:
        await late.commit(entry)
    journal = await opened.open()
    await journal.commit(answered(asks("0.0")))
    with pytest.raises(ports.LeaseLostError):
        await late.commit(answered(ANSWER))
    with pytest.raises(ports.LeaseLostError):
        await late.ensure_lease()
    assert late.record == folded(OPENING)
    await journal.ensure_lease()
    await journal.commit(ran(result("0.0")))
    assert (await opened.open()).record == folded((*OPENING, answered(asks("0.0")), ran(result("0.0"))))


async def test_cancelled_commit_is_complete_after_settling(opened: Journals) -> None:
    journal = await opened.open()
    for entry in OPENING:
        await journal.commit(entry)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0):
            await journal.commit(answered(ANSWER))
    await journal.settle()
    await journal.settle()
    assert journal.record == folded((*OPENING, answered(ANSWER)))
    assert (await opened.open()).record == journal.record


@pytest.mark.parametrize("cancelled", [0, 1, 2], ids=["the one under way", "one that waits", "the last that waits"])
async def test_commit_of_a_cancelled_caller_is_written(opened: Journals, cancelled: int) -> None:
    journal = await opened.open()
    await journal.commit(*OPENING, started(number=2), started(number=3))
    answers = [answered(replace(ANSWER, text=f"{n}"), execution=f"collect/{n}") for n in (1, 2, 3)]
    tasks = [asyncio.create_task(journal.commit(entry)) for entry in answers]
    for _ in range(3):
        await asyncio.sleep(0)
    tasks[cancelled].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await journal.settle()
    assert (await opened.open()).record == journal.record
    assert journal.record == folded((*OPENING, started(number=2), started(number=3), *answers))


async def test_lost_lease_fails_concurrent_and_later_commits(opened: Journals) -> None:
    late = await opened.open()
    await late.commit(*OPENING, started(number=2), started(number=3))
    journal = await opened.open()
    answers = [answered(replace(ANSWER, text=f"{n}"), execution=f"collect/{n}") for n in (1, 2, 3)]
    outcomes = await asyncio.gather(*(late.commit(entry) for entry in answers), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == 3 * [ports.LeaseLostError]
    with pytest.raises(ports.LeaseLostError):
        await late.commit(ended("Failed", "late"))
    assert journal.record == late.record == (await opened.open()).record


async def test_takeover_does_not_restart_the_runs_clock(opened: Journals) -> None:
    journal = await opened.open()
    assert 0 <= journal.clock() < 30
    journal = await opened.open(later=60)
    assert 60 <= journal.clock() < 90
    assert 120 <= (await opened.open(later=60)).clock() < 150


def charge(amount: int, *, unit: budgets.Unit = "tokens", most: int = 1000) -> budgets.Charge:
    return budgets.Charge(
        budget=f"month of {unit}",
        unit=unit,
        subject="",
        per="month",
        amount=Decimal(amount),
        most=Decimal(most),
        at_limit="Conclude",
    )


async def exceeded(journal: ports.Journal, *charges: budgets.Charge) -> list[str]:
    """The budgets that refuse a request."""
    return sorted((await journal.reserve(charges)).exceeded)


def settled(*requests: entries.Settlement) -> entries.Answered:
    return replace(answered(ANSWER), call=replace(CALL, settled=requests))


async def reserving(opened: Journals) -> ports.Journal:
    journal = await opened.open()
    for entry in OPENING:
        await journal.commit(entry)
    return journal


async def test_request_is_reserved_in_all_budgets_or_in_none(opened: Journals) -> None:
    journal = await reserving(opened)
    calls = charge(1, unit="model_calls", most=2)
    reserved = await journal.reserve([charge(900), calls])
    assert (reserved.request != "", list(reserved.exceeded)) == (True, [])
    await journal.commit(settled(entries.Settlement(request=reserved.request, tokens=900, cost=None, is_whole=True)))
    assert await exceeded(journal, charge(101), calls) == ["month of tokens"]
    refused = await journal.reserve([charge(101), charge(2, unit="model_calls", most=2)])
    assert sorted(refused.exceeded) == ["month of model_calls", "month of tokens"]
    assert (refused.request, refused.at is None) == ("", False)
    assert await exceeded(journal, charge(100), calls) == []
    assert await exceeded(journal, calls) == ["month of model_calls"]


@pytest.mark.parametrize(
    ("tokens", "is_whole", "spent"),
    [(120, True, 120), (120, False, 300), (0, False, 300), (400, False, 400), (400, True, 400)],
    ids=["counted", "cut short", "not counted", "cut short above its maximum", "above its maximum"],
)
async def test_commit_replaces_the_reserved_maximum_only_by_a_complete_token_count(
    opened: Journals, tokens: int, *, is_whole: bool, spent: int
) -> None:
    journal = await reserving(opened)
    reserved = await journal.reserve([charge(300)])
    count = entries.Settlement(request=reserved.request, tokens=tokens, cost=None, is_whole=is_whole)
    await journal.commit(settled(count))
    assert await exceeded(journal, charge(1000 - spent + 1)) == ["month of tokens"]
    assert await exceeded(journal, charge(1000 - spent)) == []


async def may_fit_later(journal: ports.Journal, *charges: budgets.Charge, ended: Sequence[str] = ()) -> bool:
    """Whether a request is refused only because of others that are under way."""
    refused = await journal.reserve(charges, ended=ended)
    assert refused.exceeded
    return refused.may_fit_later


async def test_request_may_fit_later_into_the_room_that_those_under_way_leave(opened: Journals) -> None:
    """Conclusions of agents side by side share what is kept for them."""
    journal = await reserving(opened)
    first = await journal.reserve([charge(600)])
    assert not await may_fit_later(journal, charge(1001))
    assert await may_fit_later(journal, charge(600))
    await journal.commit(settled(entries.Settlement(request=first.request, tokens=7, cost=None, is_whole=True)))
    assert await exceeded(journal, charge(600)) == []


async def test_failed_request_leaves_no_room_to_wait_for(opened: Journals) -> None:
    """Neither to its own call nor, once that asks again, to others; its commit settles it all the same."""
    journal = await reserving(opened)
    first = await journal.reserve([charge(600)])
    assert not await may_fit_later(journal, charge(600), ended=[first.request])
    assert not await may_fit_later(journal, charge(600))
    again = await journal.reserve([charge(400)], ended=[first.request])
    assert await may_fit_later(journal, charge(400))
    await journal.commit(
        settled(
            entries.Settlement(request=first.request, tokens=0, cost=None, is_whole=False),
            entries.Settlement(request=again.request, tokens=100, cost=None, is_whole=True),
        )
    )
    assert await exceeded(journal, charge(301)) == ["month of tokens"]
    assert await exceeded(journal, charge(300)) == []


async def test_no_request_waits_for_model_calls_because_each_needs_what_it_reserved(opened: Journals) -> None:
    journal = await reserving(opened)
    calls = charge(1, unit="model_calls", most=1)
    assert await exceeded(journal, calls) == []
    assert not await may_fit_later(journal, calls)


async def test_takeover_counts_requests_under_way_as_spent_and_waits_for_none(opened: Journals) -> None:
    journal = await reserving(opened)
    await journal.reserve([charge(600)])
    successor = await opened.open()
    assert not await may_fit_later(successor, charge(401))
    assert await exceeded(successor, charge(400)) == []


EXECUTION_ENDED = ended()
STAGE_ENDED = entries.StageEnded(stage="collect", outcome="Completed")
RUN_ENDED = entries.RunEnded(ending="Completed", reason="StagesCompleted")
SKIPPED = entries.StageEnded(stage="collect", outcome="Skipped")


@pytest.mark.parametrize(
    ("story", "entry"),
    [
        pytest.param((), started(), id="an execution without its stage"),
        pytest.param((), STAGE_ENDED, id="the end of a stage that never started"),
        pytest.param(OPENING[:1], answered(ANSWER), id="an answer without its execution"),
        pytest.param(OPENING[:1], ran(result("0.0")), id="results without their execution"),
        pytest.param(OPENING, OPENING[0], id="a stage twice"),
        pytest.param(OPENING, started(), id="an execution twice"),
        pytest.param((*OPENING, answered(ANSWER), EXECUTION_ENDED), answered(ANSWER), id="an answer after the end"),
        pytest.param((*OPENING, answered(ANSWER), EXECUTION_ENDED), unanswered(FATAL), id="a failure after the end"),
        pytest.param((*OPENING, answered(ANSWER), EXECUTION_ENDED), EXECUTION_ENDED, id="an end twice"),
        pytest.param(OPENING, STAGE_ENDED, id="the end of a stage before its executions'"),
        pytest.param((*OPENING,), RUN_ENDED, id="the end of a run before its stages'"),
        pytest.param((OPENING[0], STAGE_ENDED), started(), id="an execution after its stage"),
        pytest.param((OPENING[0], STAGE_ENDED), STAGE_ENDED, id="a stage's end twice"),
        pytest.param(OPENING[:1], SKIPPED, id="a skip after the start"),
        pytest.param((SKIPPED,), OPENING[0], id="a start after the skip"),
    ],
)
async def test_an_entry_out_of_order_is_refused_and_leaves_nothing_behind(
    opened: Journals, story: Sequence[entries.Entry], entry: entries.Entry
) -> None:
    journal = await opened.open()
    for earlier_entry in story:
        await journal.commit(earlier_entry)
    with pytest.raises(nesting.OutOfOrderError):
        await journal.commit(entry)
    assert journal.record == folded(story)
    assert (await opened.open()).record == folded(story)


async def test_nothing_follows_the_end_of_an_investigation(opened: Journals) -> None:
    journal = await opened.open()
    await journal.commit(OPENING[0])
    await journal.commit(entries.StageEnded(stage="collect", outcome="Failed"))
    end = entries.RunEnded(ending="Failed", reason="StagesFailed", message="ü", final_analysis="ä")
    await journal.commit(end)
    assert journal.record.ended == end
    assert (await opened.open()).record.ended == end if isinstance(opened, MemoryJournals) else True
    with pytest.raises(nesting.OutOfOrderError):
        await journal.commit(STAGE_ENDED)
