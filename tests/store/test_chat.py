"""Questions about what has ended, on a real Postgres: each a run of its own, and the first one stays what it was."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from dataclasses import asdict, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import queue, stories, supervisors
from support.masking import NO_SECRETS
from tarsy.controller import investigation_statuses
from tarsy.store.base import databases
from tarsy.store.operations import expiry, open_investigations, retention
from tarsy.store.queue import questions, work
from tarsy.store.reads import summaries
from tarsy.transcript import admission, entries, line_excerpts, memory, messages, ports
from tarsy.transcript.kinds import registry
from tarsy.worker import leases
from tarsy_dev import patience

build = functools.partial(investigation_statuses.build, secrets=NO_SECRETS)

MANY = 1000
OTHER = UUID(int=2)


async def ended(database: databases.Database) -> UUID:
    """An investigation that has completed, and its status shows it."""
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    await writing.commit(
        stories.stage_started(),
        stories.started(),
        stories.answers("root cause"),
        stories.ended(),
        stories.stage_ended(),
        stories.run_ended(final_analysis="root cause"),
    )
    await mark_projected(database, identity)
    return identity


async def mark_projected(database: databases.Database, identity: UUID) -> None:
    await work.projected(database, identity, revision=(await queue.summary(database, identity)).revision)


async def ask(database: databases.Database, identity: UUID, question: str = "Why?") -> int | questions.Refusal:
    return await questions.ask(database, identity, question, max_queued=MANY, by=queue.CALLER)


async def cancel(database: databases.Database, identity: UUID) -> int:
    cancelled = await questions.cancel(database, identity, by=queue.CALLER)
    assert isinstance(cancelled, questions.Cancelled)
    assert cancelled.phase in ("Cancelled", "Cancelling")
    return cancelled.run


async def admit_with_question(database: databases.Database) -> UUID:
    """One that has completed, about which something was asked."""
    identity = await ended(database)
    assert await ask(database, identity) == 1
    return identity


async def runs(database: databases.Database) -> list[tuple[Any, ...]]:
    return await queue.rows(database, "SELECT number, kind, ending, reason, message FROM runs ORDER BY number")


async def row_of_first(database: databases.Database) -> list[tuple[Any, ...]]:
    return await queue.rows(database, "SELECT * FROM runs WHERE number = 0")


class Model(memory.ScriptedModel):
    """Answers at once, or never."""

    def __init__(self, *script: messages.Message | messages.Failure, hangs: bool = False) -> None:
        super().__init__(*script)
        self.asked = asyncio.Event()
        self._hangs = hangs

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        self.asked.set()
        if self._hangs:
            await asyncio.Future()
        return await super().ask(request, scope)


class NothingToClaimError(Exception):
    """Nothing waits."""


class Worker:
    """A worker that claims what comes next and runs it to its end."""

    def __init__(self, database: databases.Database, model: ports.Model) -> None:
        self._supervisor = supervisors.supervisor(database, model)
        self.leases = self._supervisor.lease_manager

    async def run(self, stop: leases.StopReason | None = None) -> None:
        claim = await queue.claim(self._supervisor.database)
        if claim is None:
            raise NothingToClaimError
        held = self.leases.hold(claim, sent=time.monotonic())
        if stop:
            held.stop(stop)
        await self._supervisor.run(held)


async def test_a_question_is_a_run_that_is_queued_with_its_start_in_the_log(database: databases.Database) -> None:
    identity = await ended(database)
    assert await ask(database, identity, "Why web-0?") == 1
    assert [row[:3] for row in await runs(database)] == [(0, "investigation", "Completed"), (1, "chat", None)]
    log = await queue.log(database, identity)
    assert [(logged.seq, logged.entry) for logged in log[6:]] == [(7, entries.RunStarted(run=1, question="Why web-0?"))]
    state = "SELECT run, state, log_seq, token, owner, lease_until, cancel, suspend FROM work"
    assert await queue.rows(database, state) == [(1, "queued", 7, None, None, None, None, False)]
    claim = await queue.claimed(database)
    assert (claim.run, claim.log_seq, claim.attempts, claim.attempts_without_progress) == (1, 7, 1, 1)
    assert 0 <= claim.age < 60
    assert (await queue.opened(database, claim)).record.runs[1].question == "Why web-0?"


async def test_concurrent_questions_and_answers_make_consecutive_runs(database: databases.Database) -> None:
    identity = await ended(database)

    async def insist() -> int:
        while isinstance(outcome := await ask(database, identity), str):
            assert outcome == "asked"
        return outcome

    async def answer() -> None:
        worker = Worker(database, Model())
        for _ in range(8):
            while True:
                with contextlib.suppress(work.BusyError, NothingToClaimError):
                    await worker.run()
                    break

    async with patience.limit(), asyncio.TaskGroup() as group:
        insisting = [group.create_task(insist()) for _ in range(8)]
        group.create_task(answer())
    assert sorted(task.result() for task in insisting) == list(range(1, 9))
    log = await queue.log(database, identity)
    assert [logged.seq for logged in log] == list(range(1, len(log) + 1))
    snapshot = (await queue.opened(database, await claimed_again(database, identity))).record.snapshot
    folded = registry.fold(snapshot, [row.entry for row in log if not isinstance(row.entry, entries.Unreadable)])
    assert [folded.runs[number].ended is not None for number in range(9)] == [True] * 9


async def claimed_again(database: databases.Database, identity: UUID) -> work.Claim:
    assert isinstance(await ask(database, identity), int)
    return await queue.claimed(database)


async def test_reasons_for_refusing_a_question_are_distinguished(database: databases.Database) -> None:
    assert await ask(database, OTHER) == "unknown"
    identity = await queue.admit(database)
    assert await ask(database, identity) == "running"
    claim = await queue.claimed(database)
    assert await ask(database, identity) == "running"
    await (await queue.opened(database, claim)).commit(stories.run_ended())
    assert await questions.ask(database, identity, "Why?", max_queued=0, by=queue.CALLER) == "full"
    assert await ask(database, identity) == 1
    assert await ask(database, identity) == "asked"
    await queue.claimed(database)
    assert await ask(database, identity) == "asked"
    await work.gone(database, identity)
    assert await ask(database, identity) == "gone"
    assert len(await runs(database)) == 2


async def test_subject_of_a_question_shows_whether_a_chain_exists(database: databases.Database) -> None:
    assert await questions.subject(database, OTHER) is None
    identity = await queue.admit(database)
    subject = await questions.subject(database, identity)
    assert subject == questions.Subject(
        namespace="tarsy", name="web-crash", chain_name="pod-crash", chain=queue.CHAIN.spec, gone=False
    )
    await work.gone(database, identity)
    refused = await queue.admit(database, chain=admission.Refusal(reason="ChainNotFound", message="No chain"))
    gone, unserved = await questions.subject(database, identity), await questions.subject(database, refused)
    assert gone
    assert unserved
    assert (gone.gone, unserved.gone, unserved.chain, unserved.chain_name) == (True, False, None, None)


async def test_a_question_that_waits_for_the_deletion_of_the_object_is_not_asked(database: databases.Database) -> None:
    identity = await ended(database)
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%FOR NO KEY UPDATE%'"
    )
    async with database.begin() as deleting:  # as `work.gone` does it
        await deleting.execute(sqlalchemy.text("SELECT 1 FROM work FOR NO KEY UPDATE"))
        asking = asyncio.create_task(ask(database, identity))
        while await queue.rows(database, waiting) == [(0,)]:
            pass
        await deleting.execute(sqlalchemy.text("UPDATE investigations SET gone_at = clock_timestamp()"))
    assert await asking == "gone"
    assert len(await runs(database)) == 1


async def test_an_answered_question_changes_nothing_of_the_first_run(database: databases.Database) -> None:
    identity = await ended(database)
    before, first = await queue.summary(database, identity), await row_of_first(database)
    status = build(before)
    assert await ask(database, identity) == 1
    model = Model(messages.Message(role="assistant", text="Because."))
    for stop in (None, "user", "deadline"):
        seen = [await queue.summary(database, identity)]
        await Worker(database, model).run(stop)
        seen.append(await queue.summary(database, identity))
        for summary in seen:
            assert asdict(summary) == asdict(before)
            assert build(summary) == status
        assert await work.stale(database, limit=1) == []
        assert isinstance(await ask(database, identity), int)
    assert await row_of_first(database) == first
    head = await summaries.details(database, identity)
    assert head is not None
    assert [(listed.number, listed.question, listed.ending, listed.final_analysis) for listed in head.runs] == [
        (0, "", "Completed", "root cause"),
        (1, "Why?", "Completed", "Because."),
        (2, "Why?", "Cancelled", ""),
        (3, "Why?", "TimedOut", ""),
        (4, "Why?", None, ""),
    ]


async def test_question_reads_a_full_result_until_retention_and_then_hears_of_the_deletion(
    database: databases.Database,
) -> None:
    """It searches the row that is stored; then retention deletes that row, and what the excerpt showed is left."""
    lines = [f"level=info msg=ok path=/healthz n={number}" for number in range(2_000)]
    full_log = "\n".join(lines)
    rendered, excerpt = line_excerpts.render(full_log, line_excerpts.choose(full_log, 1_000), header="[an excerpt]")
    assert lines[987] not in rendered
    identity = await queue.admit(database)
    writing = await queue.opened(database, await queue.claimed(database))
    asked = stories.asks("k8s.pods_log")
    answered = stories.ran(asked, text=rendered, full_text=full_log)
    await writing.commit(
        stories.stage_started(),
        stories.started(),
        asked,
        replace(answered, runs=tuple(replace(each, excerpt=excerpt) for each in answered.runs)),
        stories.answers("root cause", call_number=1),
        stories.ended(),
        stories.stage_ended(),
        stories.run_ended(final_analysis="root cause"),
    )
    arguments = json.dumps({"call": "one/0.0", "pattern": "n=987$", "context": 0})
    search = messages.ToolCall(id="", name="result.search", arguments=arguments)

    async def ask_and_read_result() -> messages.Message:
        assert isinstance(await ask(database, identity), int)
        answer = messages.Message(role="assistant", text="I look.", calls=(search,))
        model = Model(answer, messages.Message(role="assistant", text="Because."))
        await Worker(database, model).run()
        return model.requests[-1].messages[-1]

    search_result = await ask_and_read_result()
    assert (search_result.failed, search_result.text.split("\n")[1]) == (False, f"988: {lines[987]}")
    day, never = timedelta(days=1), timedelta()
    rule = retention.Rule(
        transcripts=never, purge=never, tool_results=day, audit=never, tool_pins=never, memory=never, window=day
    )
    for table in ("investigations", "runs"):
        await queue.execute(database, f"UPDATE {table} SET ended_at = ended_at - interval '2 days'")  # noqa: S608
    assert {batch.kind async for batch in retention.batches(database, rule)} == {"tool_results"}
    gone = await ask_and_read_result()
    message = f"The full text, {len(full_log):,} characters, was deleted by retention.tool_results."
    assert (gone.failed, gone.text) == (True, f"{message} Only what was shown of it is left")


@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
async def test_the_deletion_of_the_object_ends_an_open_question(database: databases.Database, *, running: bool) -> None:
    identity = await admit_with_question(database)
    assert [row.id for row in await open_investigations.list_with_question(database, namespace="tarsy")] == [identity]
    assert await open_investigations.list_open(database, namespace="tarsy") == []
    first = await row_of_first(database)
    claim = await queue.claimed(database) if running else None
    await work.gone(database, identity)
    if claim:
        assert (await runs(database))[1][2] is None, "that is left to its worker"
        assert await queue.requested_stop(database, claim) == "deleted"
        await queue.let_leases_pass(database)
        await Worker(database, Model()).run()
    message = "cancelled because its object was deleted"
    assert (await runs(database))[1] == (1, "chat", "Cancelled", "ObjectDeleted", message)
    assert await row_of_first(database) == first
    assert await open_investigations.list_with_question(database, namespace="tarsy") == []


async def test_question_is_cancelled_only_by_request(database: databases.Database) -> None:
    assert await questions.cancel(database, OTHER, by=queue.CALLER) == "unknown"
    identity = await queue.admit(database)
    assert await questions.cancel(database, identity, by=queue.CALLER) == "none", "that is no question"
    claim = await queue.claimed(database)
    assert await questions.cancel(database, identity, by=queue.CALLER) == "none"
    await (await queue.opened(database, claim)).commit(stories.run_ended())
    assert await questions.cancel(database, identity, by=queue.CALLER) == "none"
    assert await ask(database, identity) == 1
    assert await cancel(database, identity) == 1
    assert (await runs(database))[1] == (1, "chat", "Cancelled", "CancelledByUser", "cancelled by request")
    assert await queue.claim(database) is None
    assert await ask(database, identity) == 2
    claim = await queue.claimed(database)
    assert await cancel(database, identity) == 2
    assert await cancel(database, identity) == 2, "it is being stopped"
    assert await queue.requested_stop(database, claim) == "user"


async def test_cancelled_question_without_a_worker_ends_with_its_open_executions(database: databases.Database) -> None:
    identity = await admit_with_question(database)
    first = await row_of_first(database)
    late = await queue.opened(database, await queue.claimed(database))
    await late.commit(
        entries.ExecutionStarted(run=1, stage="", execution="chat", kind="chat", index=0, name="C", agent=None)
    )
    await questions.cancel(database, identity, by=queue.CALLER)
    assert await work.sweep(database) == 0
    await queue.let_leases_pass(database)
    assert await work.sweep(database) == 1
    message = "cancelled by request"
    assert [logged.entry for logged in (await queue.log(database, identity))[8:]] == [
        entries.ExecutionEnded(execution="chat", outcome="Cancelled", error=message),
        entries.RunEnded(run=1, ending="Cancelled", reason="CancelledByUser", message=message),
    ]
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.ended("chat"))
    assert await row_of_first(database) == first
    assert await ask(database, identity) == 2


async def test_question_is_taken_over_and_released_like_an_investigation(database: databases.Database) -> None:
    identity = await admit_with_question(database)
    first = await row_of_first(database)
    late = await queue.opened(database, await queue.claimed(database))
    await late.commit(
        entries.ExecutionStarted(run=1, stage="", execution="chat", kind="chat", index=0, name="C", agent=None)
    )
    await queue.let_leases_pass(database)
    second = await queue.claimed(database)
    assert (second.investigation, second.run, second.attempts, second.log_seq) == (identity, 1, 2, 8)
    await work.release(database, second)
    third = await queue.claimed(database)
    assert (third.run, third.attempts) == (1, 2)
    assert list((await queue.opened(database, third)).record.runs[1].executions) == ["chat"]
    with pytest.raises(ports.LeaseLostError):
        await late.commit(stories.ended("chat"))
    assert await row_of_first(database) == first
    assert (await queue.summary(database, identity)).attempts == 1


async def test_question_that_crashes_its_workers_is_given_up(database: databases.Database) -> None:
    identity = await admit_with_question(database)
    first = await row_of_first(database)
    for _ in range(3):
        await queue.claimed(database)
        await queue.let_leases_pass(database)
    model = Model()
    await Worker(database, model).run()
    assert not model.asked.is_set()
    assert (await runs(database))[1][2:4] == ("Failed", "AttemptsExhausted")
    assert await row_of_first(database) == first
    assert await ask(database, identity) == 2
    await Worker(database, model).run()
    assert (await runs(database))[2][2] == "Completed"


async def test_cancel_ends_the_question_and_its_model_call(database: databases.Database) -> None:
    identity = await admit_with_question(database)
    model = Model(hangs=True)
    worker = Worker(database, model)
    running = asyncio.create_task(worker.run())
    await model.asked.wait()
    worker.leases._leases[identity].stop("user")
    await running
    assert (await runs(database))[1][2] == "Cancelled"
    assert [type(logged.entry) for logged in (await queue.log(database, identity))[8:]] == [
        entries.ExecutionEnded,
        entries.RunEnded,
    ]


async def test_question_that_is_taken_over_after_its_deadline_sends_no_call(database: databases.Database) -> None:
    await admit_with_question(database)
    await queue.claimed(database)
    await queue.execute(database, "UPDATE runs SET started_at = started_at - interval '10 minutes' WHERE number = 1")
    await queue.let_leases_pass(database)
    model = Model()
    await Worker(database, model).run()
    message = "not finished within the 300 s of limits.chat"
    assert (await runs(database))[1] == (1, "chat", "TimedOut", "DeadlineExceeded", message)
    assert not model.asked.is_set()


async def test_the_time_to_live_counts_from_the_end_of_the_last_question(database: databases.Database) -> None:
    identity = await queue.admit(database, queue.subject(ttlSecondsAfterFinished=60))
    await (await queue.opened(database, await queue.claimed(database))).commit(stories.run_ended())
    await mark_projected(database, identity)
    await queue.execute(database, "UPDATE investigations SET ended_at = clock_timestamp() - interval '2 min'")

    async def expired() -> list[UUID]:
        return [investigation.id for investigation in await expiry.expired(database, namespace="tarsy", limit=10)]

    assert await expired() == [identity]
    assert await ask(database, identity) == 1
    assert await expired() == []
    await Worker(database, Model()).run()
    assert await expired() == []
    await queue.execute(database, "UPDATE runs SET ended_at = clock_timestamp() - interval '61 s' WHERE number = 1")
    assert await expired() == [identity]
