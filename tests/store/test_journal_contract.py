"""What every journal promises, over the one that forgets with its process and the one in Postgres alike.

Unit tests of agent and engine run on MemoryJournal; they prove something about production only while both pass here.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Protocol
from uuid import UUID

import pytest
import sqlalchemy
from support import queue
from tarsy.agent import loop
from tarsy.config import platform, resolve
from tarsy.llm import model, provider
from tarsy.resources import base, chain, investigation
from tarsy.store import database as databases
from tarsy.store import history, work
from tarsy.store import journal as journals
from tarsy.transcript import entries, memory, messages, ports, record
from tarsy.worker import lease
from tarsy_dev import postgres as launcher

UID = "6f1c2f9e-3a55-4f0e-8c4e-0d6a7f0f4a11"
ALERT = 'pod "wéb-0" startet neu\n\t{"a": "\\u0000"} 🚨 \u2028 \ufffd'
CHAIN = chain.Spec(
    alert_types=["kubernetes"],
    stages=[chain.Stage(name=name, agent="KubernetesAgent", mcp_servers=[]) for name in ("collect", "analysis")],
)
SUBJECT = record.Subject(
    id=UID,
    namespace="tarsy",
    name="web-crash",
    alert_type="kubernetes",
    alert_data=ALERT,
    chain_name="pod-crash",
    chain=CHAIN,
)
TOOLS = (
    messages.ToolSpec(name="kubernetes-server.pods_list"),
    messages.ToolSpec(
        name="kubernetes-server.pods_log",
        description="Log of a pod; größer als 0",
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "naïve \u0000 \ud83d"},
                "tail": {"type": "integer", "minimum": 1, "default": None},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        idempotent=True,
    ),
)
STATE = messages.ProviderState(
    provider="google-default",
    data=[
        {"thought": True, "text": "erst die Pods 🔍"},
        {"thought_signature": "q83vAAD/", "function_call": {"name": "k__pods_log", "args": {"n": [1, 2.5, None]}}},
        {"text": "\u0000 and \ud83d and \\u0000", "deep": {"er": [{"est": [[], {}]}]}, "yes": True, "": -0.0},
    ],
)
CALL = entries.ModelCall(
    provider="google-default",
    model="gemini-2.5-flash",
    seconds=1.25,
    usage=messages.Usage(input_tokens=7, output_tokens=5, thinking_tokens=3, total_tokens=15),
    attempts=(entries.Attempt(error="503 UNAVAILABLE: überlastet", usage=messages.Usage(input_tokens=7)),),
)
CONCLUDE = messages.Message(role="user", text="Conclude now.")


def started(stage: str = "collect", *, number: int = 1) -> entries.ExecutionStarted:
    return entries.ExecutionStarted(
        stage=stage,
        execution=f"{stage}/{number}",
        agent=resolve.ResolvedAgent(
            name="KubernetesAgent",
            provider="google-default",
            strategy="native-thinking",
            max_iterations=20,
            servers=("kubernetes-server", "prometheus"),
            custom_instructions="Sei gründlich.",
            server_instructions=(("kubernetes-server", "Prefer namespaced queries."),),
        ),
        tools=TOOLS,
        messages=(
            messages.Message(role="system", text=f"You are agent {number}."),
            messages.Message(role="user", text=ALERT),
        ),
    )


def answered(*said: messages.Message, execution: str = "collect/1") -> entries.Answered:
    return entries.Answered(execution=execution, messages=said, call=CALL)


def unanswered(failure: messages.Failure, *added: messages.Message) -> entries.Unanswered:
    call = replace(CALL, attempts=())
    return entries.Unanswered(execution="collect/1", failure=failure, call=call, messages=added)


def ran(*runs: entries.ToolRun) -> entries.ToolsAnswered:
    return entries.ToolsAnswered(execution="collect/1", runs=runs)


def asks(*ids: str, text: str = "") -> messages.Message:
    calls = tuple(messages.ToolCall(id=name, name=TOOLS[1].name, arguments='{"name": "wéb-0"}') for name in ids)
    return messages.Message(role="assistant", text=text, calls=calls)


def result(name: str, text: str = "r", *, failed: bool = False, in_doubt: bool = False) -> entries.ToolRun:
    call = messages.ToolCall(id=name, name=TOOLS[1].name, arguments='{"name": "wéb-0"}')
    said = messages.Message(role="tool", text=text, call_id=name, tool_name=call.name, failed=failed, in_doubt=in_doubt)
    return entries.ToolRun(call=call, result=said, seconds=0.5)


ANSWER = messages.Message(role="assistant", text="root cause: a bad image")
TIMEOUT = messages.Failure(kind="timeout", text="the model did not answer within 120 s")
REJECTED = messages.Failure(kind="rejected", text="")
FATAL = messages.Failure(kind="fatal", text="400 INVALID_ARGUMENT: ungültig")
OPENING: tuple[entries.Entry, ...] = (entries.StageStarted(stage="collect"), started())

STORIES: dict[str, tuple[entries.Entry, ...]] = {
    "nothing yet": (),
    "a conversation that opened": OPENING,
    "an answer with all that an answer may have": (
        *OPENING,
        answered(replace(asks("0.0", "0.1", text="Let me look."), thinking="erst die Pods 🔍", provider_state=STATE)),
    ),
    "empty texts": (
        *OPENING,
        answered(replace(asks("0.0"), provider_state=messages.ProviderState(provider="", data=None))),
        ran(result("0.0", "")),
        unanswered(REJECTED),
        entries.ExecutionEnded(execution="collect/1", outcome="Failed", text=""),
        entries.StageEnded(stage="collect", outcome="Failed", message=""),
    ),
    "parallel results in one entry": (
        *OPENING,
        answered(asks("0.0", "0.1", "0.2")),
        ran(result("0.2"), result("0.0", "[]"), result("0.1", "no such pod", failed=True)),
    ),
    "results of one answer in several entries": (
        *OPENING,
        answered(asks("0.0", "0.1", "0.2")),
        ran(result("0.1", "restarted")),
        ran(result("0.0"), result("0.2")),
        answered(ANSWER),
    ),
    "a result in doubt": (
        *OPENING,
        answered(asks("0.0", "0.1")),
        ran(result("0.0", "unknown", failed=True, in_doubt=True)),
        ran(result("0.1")),
    ),
    "a failure before anything was said": (*OPENING, unanswered(TIMEOUT), answered(ANSWER)),
    "failures between messages": (
        *OPENING,
        unanswered(REJECTED),
        answered(asks("1.0")),
        ran(result("1.0")),
        unanswered(TIMEOUT),
        answered(asks("3.0")),
        ran(result("3.0")),
        answered(ANSWER),
    ),
    "several failures in a row": (
        *OPENING,
        answered(asks("0.0")),
        ran(result("0.0")),
        unanswered(REJECTED),
        unanswered(TIMEOUT),
        unanswered(replace(REJECTED, text="the model gave an empty answer")),
        answered(ANSWER),
    ),
    "a failure at the end": (*OPENING, answered(asks("0.0")), ran(result("0.0")), unanswered(FATAL)),
    "a conclusion that was asked for": (
        *OPENING,
        answered(asks("0.0")),
        ran(result("0.0")),
        unanswered(REJECTED),
        answered(CONCLUDE, ANSWER),
        entries.ExecutionEnded(execution="collect/1", outcome="Completed", text=ANSWER.text),
    ),
    "a conclusion that was asked for in vain at first": (
        *OPENING,
        unanswered(TIMEOUT),
        answered(asks("1.0")),
        ran(result("1.0")),
        unanswered(REJECTED, CONCLUDE),
        unanswered(TIMEOUT),
        answered(ANSWER),
        entries.ExecutionEnded(execution="collect/1", outcome="Completed", text=ANSWER.text),
    ),
    "a conclusion that was asked for in vain": (
        *OPENING,
        answered(asks("0.0")),
        ran(result("0.0")),
        unanswered(FATAL, CONCLUDE),
        entries.ExecutionEnded(execution="collect/1", outcome="Failed", text=FATAL.text),
    ),
    "an answer that only came when its conclusion was asked for": (*OPENING, answered(CONCLUDE, ANSWER)),
    "executions side by side": (
        *OPENING,
        started(number=2),
        answered(replace(ANSWER, text="two"), execution="collect/2"),
        answered(asks("0.0")),
        entries.ExecutionEnded(execution="collect/2", outcome="Completed", text="two"),
        ran(result("0.0")),
        unanswered(FATAL),
        entries.ExecutionEnded(execution="collect/1", outcome="Failed", text=FATAL.text),
    ),
    "a stage that failed before its agent began": (
        entries.StageStarted(stage="collect"),
        entries.StageEnded(stage="collect", outcome="Failed", message="references unknown agent 'Größe'"),
        entries.StageStarted(stage="analysis"),
        started("analysis"),
        answered(ANSWER, execution="analysis/1"),
        entries.ExecutionEnded(execution="analysis/1", outcome="Completed", text=ANSWER.text),
        entries.StageEnded(stage="analysis", outcome="Completed"),
    ),
    "a stage that timed out in the middle of a call, and one that was skipped for it": (
        *OPENING,
        answered(asks("0.0", text="erst die Pods")),
        entries.ExecutionEnded(execution="collect/1", outcome="TimedOut", text="Stage collect timed out after 60 s"),
        entries.StageEnded(stage="collect", outcome="TimedOut", message="Stage collect timed out after 60 s"),
        entries.StageEnded(stage="analysis", outcome="Skipped", message="skipped, größer"),
    ),
}


def folded(story: Iterable[entries.Entry]) -> record.Record:
    so_far = record.Record(subject=SUBJECT)
    for entry in story:
        so_far.apply(entry)
    return so_far


class Journals(Protocol):
    """One investigation's journals, one after the other: each takes the lease of the one before."""

    async def open(self, *, later: float = 0) -> ports.Journal:
        """A journal that has read all that was committed so far; so many seconds later, to its clock."""
        ...


class MemoryJournals:
    def __init__(self) -> None:
        self._last: memory.MemoryJournal | None = None

    async def open(self, *, later: float = 0) -> memory.MemoryJournal:
        self._last = self._last.taken_over() if self._last else memory.MemoryJournal(SUBJECT)
        for stage in self._last.record.stages.values():
            stage.since -= later
        return self._last


class PgJournals:
    def __init__(self, database: databases.Database) -> None:
        self._database = database
        self._last: lease.Lease | None = None

    async def admit(self) -> None:
        subject = investigation.AlertInvestigation(
            metadata=base.ObjectMeta(name=SUBJECT.name, namespace=SUBJECT.namespace, uid=UID, generation=1),
            spec=investigation.Spec(alert_type=SUBJECT.alert_type, alert_data=ALERT),
        )
        taker = chain.AgentChain(metadata=base.ObjectMeta(name=SUBJECT.chain_name, namespace="tarsy"), spec=CHAIN)
        assert await work.admit(self._database, subject, taker, mask=str)

    async def open(self, *, later: float = 0) -> journals.PgJournal:
        if self._last:
            self._last.stop("lost")
            async with self._database.begin() as connection:
                await connection.execute(sqlalchemy.text("UPDATE work SET lease_until = now() - interval '1 s'"))
                earlier = sqlalchemy.text("UPDATE stages SET started_at = started_at - make_interval(secs => :later)")
                await connection.execute(earlier, {"later": later})
        claim = await queue.claimed(self._database)
        self._last = lease.Lease(claim, certain_until=math.inf)
        return await journals.PgJournal.open(self._database, claim=claim, ensure_lease=self._last.ensure_lease)


@pytest.fixture(scope="module")
def shared_url(postgres: launcher.Server) -> str:
    """One database for all these tests: with one each, making them would take longer than the tests."""
    return postgres.create_database("journal_contract")


@pytest.fixture(params=["memory", "postgres"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Journals]:
    if request.param == "memory":
        yield MemoryJournals()
        return
    database = databases.Database(request.getfixturevalue("shared_url"))
    try:
        await database.migrate()
        async with database.begin() as connection:
            await connection.execute(sqlalchemy.text("DELETE FROM investigations"))
        journals = PgJournals(database)
        await journals.admit()
        yield journals
    finally:
        await database.close()


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_what_is_committed_is_there_again(opened: Journals, story: Sequence[entries.Entry]) -> None:
    journal = await opened.open()
    for entry in story:
        await journal.commit(entry)
    assert journal.record == folded(story)
    again = await opened.open()
    assert again.record == folded(story)
    assert list(again.record.stages) == list(folded(story).stages)


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_a_story_is_the_same_with_a_takeover_before_each_entry(
    opened: Journals, story: Sequence[entries.Entry]
) -> None:
    for told, entry in enumerate(story):
        journal = await opened.open()
        assert journal.record == folded(story[:told])
        await journal.commit(entry)
    assert (await opened.open()).record == folded(story)


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


async def test_whatever_a_model_calls_a_tool_is_kept(opened: Journals) -> None:
    journal = await opened.open()
    for entry in OPENING:
        await journal.commit(entry)
    ended = await loop.Loop(
        execution=journal.record.execution("collect/1"),
        model=model.LimitedModel("google-default", Poisoner(), limits=platform.Limits()),
        toolbox=memory.DictToolbox({TOOLS[1].name: "web-0"}),
        journal=journal,
    ).run()
    assert ended.text == "no web-0\ufffd"
    again = await opened.open()
    assert again.record == journal.record
    (asked,) = [m for m in again.record.execution("collect/1").log if isinstance(m, messages.Message) and m.calls]
    assert asked.provider_state
    assert asked.provider_state.data == [{"functionCall": {"name": "k8s\x00__\ud83d", "args": {"\x00": "\ud83d"}}}]


async def test_a_model_call_says_how_many_messages_it_was_sent(database: databases.Database) -> None:
    """The messages at these positions, and no others, are what the model saw."""
    journals = PgJournals(database)
    await journals.admit()
    journal = await journals.open()
    for entry in STORIES["a conclusion that was asked for in vain at first"]:
        await journal.commit(entry)
    found = await history.read(database, UUID(UID))
    assert found
    assert [(call.failure, call.asked_with) for call in found.llm_interactions] == [
        ("timeout", 2),
        (None, 2),
        ("rejected", 5),
        ("timeout", 5),
        (None, 5),
    ]
    assert [message.text for message in found.messages[4:]] == [CONCLUDE.text, ANSWER.text]
    assert {type(stage.tokens) for stage in found.summary.stages} == {int}, "a Decimal would be served as a string"


async def test_a_journal_whose_lease_is_lost_refuses_to_commit_and_keeps_nothing(opened: Journals) -> None:
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


async def test_a_commit_that_was_cancelled_under_way_is_there_once_it_is_settled(opened: Journals) -> None:
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


async def test_a_takeover_does_not_begin_a_stages_time_anew(opened: Journals) -> None:
    journal = await opened.open()
    await journal.commit(OPENING[0])
    assert 0 <= journal.record.stages["collect"].age() < 30
    journal = await opened.open(later=60)
    assert 60 <= journal.record.stages["collect"].age() < 90
    await journal.commit(OPENING[1])
    assert 120 <= (await opened.open(later=60)).record.stages["collect"].age() < 150


EXECUTION_ENDED = entries.ExecutionEnded(execution="collect/1", outcome="Completed", text=ANSWER.text)
STAGE_ENDED = entries.StageEnded(stage="collect", outcome="Completed")
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
    for told in story:
        await journal.commit(told)
    with pytest.raises(record.OutOfOrderError):
        await journal.commit(entry)
    assert journal.record == folded(story)
    assert (await opened.open()).record == folded(story)


async def test_nothing_follows_the_end_of_an_investigation(opened: Journals) -> None:
    journal = await opened.open()
    await journal.commit(OPENING[0])
    ended = entries.InvestigationEnded(ending="Failed", reason="StagesFailed", message="ü", final_analysis="")
    await journal.commit(ended)
    assert journal.record.ended == ended
    with pytest.raises(record.OutOfOrderError):
        await journal.commit(STAGE_ENDED)
