"""Runs under their supervisor, on a real database: what is kept, sent and ended when something breaks or comes late."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from support import loglines, queue, scrapes, stories
from support.supervisors import hold_next, run_next, supervisor
from tarsy.resources import chains
from tarsy.store.base import databases, hints, notify
from tarsy.store.queue import work
from tarsy.transcript import entries, messages, ports, record
from tarsy.worker import leases
from tarsy_dev import patience

STAGE = "look"
SIDE_BY_SIDE = queue.chain(stages=[{"name": STAGE, "agent": "KubernetesAgent", "replicas": 2}])
ATTEMPTS = 3

Ask = Callable[[ports.Request, ports.Scope], Awaitable[messages.Message]]


class Model:
    """Answers what `ask` says."""

    def __init__(self, ask: Ask) -> None:
        self.asked: list[str] = []
        self._ask = ask

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        self.asked.append(scope.execution)
        call = entries.ModelCall(provider="scripted", model="scripted", seconds=0.0)
        return ports.Answer(message=await self._ask(request, scope), call=call)


async def done(_request: ports.Request, _scope: ports.Scope) -> messages.Message:
    return messages.Message(role="assistant", text="done")


def execution(identity: UUID, index: int) -> str:
    return record.execution_id(str(identity), run=0, stage=STAGE, kind="agent", index=index)


def synthesis(identity: UUID) -> str:
    return record.execution_id(str(identity), run=0, stage=STAGE, kind="synthesis", index=0)


async def admitted(database: databases.Database, chain: chains.AgentChain = SIDE_BY_SIDE) -> UUID:
    return await queue.admit(database, chain=chain)


async def test_commit_of_an_agent_is_completed_when_its_sibling_fails(database: databases.Database) -> None:
    identity = await admitted(database)
    other = await asyncpg.connect(database.url)
    both_asked = asyncio.Barrier(2)
    locked = asyncio.Event()
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%INSERT INTO entries%'"
    )

    async def ask(_request: ports.Request, scope: ports.Scope) -> messages.Message:
        await both_asked.wait()
        if scope.execution == execution(identity, 0):  # its commit will wait for the row
            await transaction.start()
            await other.execute("SELECT 1 FROM work FOR UPDATE")
            locked.set()
            return messages.Message(role="assistant", text="paid for")
        await locked.wait()
        watching = await asyncpg.connect(database.url)
        try:
            while not await watching.fetchval(waiting):
                pass
        finally:
            await watching.close()
        asyncio.get_running_loop().call_later(
            0.2, lambda: releases.append(asyncio.ensure_future(transaction.rollback()))
        )
        raise KeyError("a defect")

    releases: list[asyncio.Future[None]] = []
    transaction = other.transaction()
    broken = Model(ask)
    await run_next(supervisor(database, broken))
    await asyncio.gather(*releases)
    await other.close()
    assert (await queue.summary(database, identity)).llm_calls == 1, "the answer is in the log"

    await queue.let_leases_pass(database)
    sound = Model(done)
    await run_next(supervisor(database, sound))
    again, joined = sound.asked
    assert again == execution(identity, 1), "only the one that broke is asked again"
    assert joined == synthesis(identity)
    assert (await queue.summary(database, identity)).ending == "Completed"


async def test_heartbeat_that_finds_the_lease_of_an_ended_run_over_interrupts_nothing(
    database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a run ends its lease, and a heartbeat may come before the worker has removed it."""
    await admitted(database, queue.chain(stages=[{"name": STAGE, "agent": "KubernetesAgent"}]))
    worker = supervisor(database, Model(done))
    held = await hold_next(worker)
    since = scrapes.Since()
    listening = await asyncpg.connect(database.url)
    hinted: asyncio.Queue[str] = asyncio.Queue()
    await listening.add_listener(notify.STATUS, lambda *message: hinted.put_nowait(str(message[3])))

    hints_sent: list[str] = []

    def learn(investigation: str) -> bool:
        """Learn what the heartbeat found, while the engine sends its last hint."""
        hints_sent.append(investigation)
        if len(hints_sent) == 2:
            held.stop("lost")
        return False

    channels = hints.Channels()
    channels.listen({notify.STATUS: learn})
    monkeypatch.setattr(database, "channels", channels)
    await worker.run(held)
    assert held.stopped == "lost"
    async with patience.limit():
        assert [await hinted.get(), await hinted.get()] == hints_sent, "of its start and of its end"
    assert since("tarsy_iteration_seconds_count") == 1
    await listening.close()


async def test_run_that_is_taken_over_after_its_deadline_sends_no_call(database: databases.Database) -> None:
    identity = await admitted(database)
    journal = await queue.opened(database, await queue.claimed(database))
    begun = stories.started(execution(identity, 0), stage=STAGE)
    await journal.commit(entries.StageStarted(stage=STAGE, clock=0.0), begun)
    await queue.execute(database, "UPDATE runs SET started_at = started_at - interval '2 hours'")
    await queue.let_leases_pass(database)
    model = Model(done)
    await run_next(supervisor(database, model))
    summary = await queue.summary(database, identity)
    assert (summary.ending, summary.reason, model.asked) == ("TimedOut", "DeadlineExceeded", [])


async def test_deadline_during_the_summary_ends_a_run_with_the_outcome_of_its_stages(
    database: databases.Database,
) -> None:
    stages = [{"name": STAGE, "agent": "KubernetesAgent"}]
    summed_up = queue.chain(stages=stages, executiveSummary={"enabled": True}, activeDeadlineSeconds=5)
    identity = await admitted(database, summed_up)
    agent = execution(identity, 0)

    async def ask(request: ports.Request, scope: ports.Scope) -> messages.Message:
        if scope.execution != agent:
            await asyncio.Event().wait()
        return await done(request, scope)

    await run_next(supervisor(database, Model(ask)))
    summary = await queue.summary(database, identity)
    assert (summary.ending, summary.reason, summary.final_analysis, summary.summary) == (
        "Completed",
        "StagesCompleted",
        "done",
        "",
    )
    (ended,) = [
        logged.entry
        for logged in await queue.log(database, identity)
        if isinstance(logged.entry, entries.ExecutionEnded) and logged.entry.outcome == "TimedOut"
    ]
    assert ended.error == "the investigation's deadline came first"


@pytest.mark.parametrize("spoilt", [False, True], ids=["a log that can be read", "one that cannot"])
async def test_run_that_crashes_its_workers_is_given_up_without_reading_its_log(
    database: databases.Database, *, spoilt: bool
) -> None:
    identity = await admitted(database)
    journal = await queue.opened(database, await queue.claimed(database))
    begun = stories.started(execution(identity, 0), stage=STAGE)
    await journal.commit(entries.StageStarted(stage=STAGE, clock=0.0), begun)
    for _ in range(ATTEMPTS):  # each worker dies before it commits
        await queue.let_leases_pass(database)
        await queue.claimed(database)
    if spoilt:
        await queue.execute(database, "UPDATE entries SET kind = 'Pondered'")
    await queue.let_leases_pass(database)
    model = Model(done)
    await run_next(supervisor(database, model))
    summary = await queue.summary(database, identity)
    assert (summary.ending, summary.reason, model.asked) == ("Failed", "AttemptsExhausted", [])
    ends = [logged.entry for logged in (await queue.log(database, identity))[2:]]
    assert [type(end) for end in ends] == [entries.ExecutionEnded, entries.StageEnded, entries.RunEnded]


UNSTORABLE = r"""
  UPDATE investigations SET chain = CAST(regexp_replace(CAST(chain AS text), '^{', '{"\u0000x"\: 1, ') AS json)
"""


async def test_unreadable_entry_is_skipped_even_if_its_text_cannot_be_stored(database: databases.Database) -> None:
    identity = await admitted(database)
    await queue.execute(database, UNSTORABLE)
    await run_next(supervisor(database, Model(done)))
    summary = await queue.summary(database, identity)
    assert summary.phase == "Suspended"
    assert "\ufffdx" in summary.waits_for


async def test_suspended_and_let_go_at_once_all_agents_go_on_together(database: databases.Database) -> None:
    """An agent that has gone to rest comes back only with a new claim: so none may run on without it."""
    identity = await admitted(database)
    claim = await queue.claimed(database)
    manager = leases.LeaseManager(database.url, lease=timedelta(seconds=60), heartbeat=timedelta(seconds=5))
    held = manager.hold(claim, sent=time.monotonic())
    requested: work.StopRequest | None
    for requested in ("suspend", None):
        manager._learn({claim.investigation: claim.token}, {claim.token: requested}, time.monotonic())
    assert held.suspend, "for as long as this claim lasts"
    await work.release(database, claim)
    again: Any = await queue.claimed(database)
    assert (again.investigation, again.attempts) == (identity, 1)


async def test_log_lines_of_concurrent_runs_have_their_own_fields(
    database: databases.Database, log_lines: loglines.LogLines
) -> None:
    names = {str(await queue.admit(database, queue.subject(name), chain=SIDE_BY_SIDE)): name for name in ("one", "two")}
    all_asked = asyncio.Barrier(4)
    owners = {execution(UUID(uid), index): uid for uid in names for index in (0, 1)}
    joining = {synthesis(UUID(uid)): uid for uid in names}

    async def ask(_request: ports.Request, scope: ports.Scope) -> messages.Message:
        if scope.execution in owners:  # what joins their work asks later, and each by itself
            await all_asked.wait()
        logging.getLogger("some.sdk").warning("asked", extra={"asked_by": (owners | joining)[scope.execution]})
        return messages.Message(role="assistant", text="done")

    await asyncio.gather(*(run_next(supervisor(database, Model(ask))) for _ in names))
    logging.getLogger("tarsy").info("behind them")
    *lines, last = log_lines()
    assert last.keys().isdisjoint({"investigation", "uid", "attempt"})
    for line in lines:
        assert (line["investigation"], line["attempt"]) == (f"tarsy/{names[line['uid']]}", 1)
        assert line["uid"] == line.get("asked_by", line["uid"])
    for uid in names:
        of_run = [line for line in lines if line["uid"] == uid]
        assert sum("asked_by" in line for line in of_run) == 3
        first, end = of_run[0], of_run[-1]
        assert (first["message"], first["action"]) == ("run started", "run_started")
        assert (end["action"], end["ending"], end["reason"]) == ("run_ended", "Completed", "StagesCompleted")
        assert 0 < end["seconds"] < 60
        for line in (first, end):
            assert (line["alert"], line["chain"]) == ("kubernetes", "pod-crash")


async def test_interrupted_and_resumed_run_has_events_for_both(
    database: databases.Database, log_lines: loglines.LogLines
) -> None:
    await admitted(database)
    asked = asyncio.Event()

    async def ask(_request: ports.Request, _scope: ports.Scope) -> messages.Message:
        asked.set()
        return await asyncio.Future()

    running = asyncio.create_task(run_next(supervisor(database, Model(ask))))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    given_back = log_lines()[-1]
    assert (given_back["action"], given_back["investigation"]) == ("released", "tarsy/web-crash")
    await run_next(supervisor(database, Model(done)))
    assert log_lines()[0]["message"] == "run goes on"


async def test_execution_is_refused_a_provider_that_the_namespace_of_its_chain_may_not_use(
    database: databases.Database,
) -> None:
    """The chain was admitted under another platform file, and the chain's namespace is not the operator's."""
    model = Model(done)
    for own, asked in (("operators", 0), ("tarsy", 1)):
        identity = await queue.admit(database, chain=queue.chain())
        await run_next(supervisor(database, model, own_namespace=own))
        assert (len(model.asked) > 0) == (asked > 0)
        ends = [
            row.entry for row in await queue.log(database, identity) if isinstance(row.entry, entries.ExecutionEnded)
        ]
        refusal = "which is not allowed in namespace 'tarsy'. Allowed namespaces: operators"
        assert (refusal in ends[0].error) == (not asked)
