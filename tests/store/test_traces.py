"""Traces of investigations on a real database, as a collector has them: one piece, whatever kills the workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import pytest
from support import collectors, queue, stories, supervisors
from tarsy.process import traces
from tarsy.store.base import databases
from tarsy.store.queue import journal as journals
from tarsy.store.queue import work
from tarsy.telemetry import span_exporter, spans
from tarsy.transcript import entries, memory, messages, ports, record

STAGE = "analysis"

CHAIN = queue.chain(
    stages=[{"name": STAGE, "agent": "KubernetesAgent"}, {"name": "second", "agent": "KubernetesAgent"}],
    executiveSummary={"enabled": False},
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Process:
    """A process with its traces; `kill` loses what it has not sent."""

    database: databases.Database
    traces: traces.Traces
    exporter: span_exporter.SpanExporter

    async def work(self, model: ports.Model, *, toolbox: memory.DictToolbox | None = None) -> work.Claim:
        """Claim what comes next and run it."""
        worker = supervisors.supervisor(self.database, model, toolbox=toolbox, follow=self.traces.follow)
        return await supervisors.run_next(worker)

    async def journal(self) -> journals.PgJournal:
        """Claim what comes next; its journal, for a test that is the worker itself."""
        claim = await queue.claimed(self.database)
        return await journals.PgJournal.open(
            self.database, claim=claim, ensure_lease=_sure, suspended=lambda: False, follower=self.traces.follow(claim)
        )

    async def kill(self) -> None:
        """End it with what waits to be sent; its leases pass."""
        self.exporter._queue.clear()
        await queue.let_leases_pass(self.database)


async def _sure() -> None:
    pass


@asynccontextmanager
async def process(database: databases.Database, collector: collectors.Collector) -> AsyncIterator[Process]:
    """A process that sends its traces when it stops."""
    exporter = span_exporter.SpanExporter(spans.Destination(url=f"{collector.url}/v1/traces"))
    own = traces.Traces(database=database, exporter=exporter, platform=lambda: queue.PLATFORM, contents=False)
    database.run_ended = own.run_ended
    yield Process(database, own, exporter)
    while not own._ended.empty():
        await own._send_end(own._ended.get_nowait())
    await exporter.close()


async def admitted(database: databases.Database) -> UUID:
    return await queue.admit(database, queue.subject(traceparent=TRACEPARENT), chain=CHAIN)


def asking(*tools: str) -> memory.ScriptedModel:
    calls = tuple(messages.ToolCall(id="", name=name, arguments="{}") for name in tools)
    return memory.ScriptedModel(
        messages.Message(role="assistant", calls=calls), messages.Message(role="assistant", text="the disk is full")
    )


def one_piece(received: list[collectors.Received], identity: UUID) -> dict[str, collectors.Received]:
    """The spans by their ids, once each, after a look at what any backend needs: one trace, one root, no orphans."""
    by_id: dict[str, collectors.Received] = {}
    for span in received:
        assert by_id.setdefault(span.span_id, span) == span, "a span that is sent again is the same"
    assert {span.trace_id for span in received} == {spans.trace_id(str(identity), 0).hex()}
    assert collectors.orphans(received) == []
    assert [span.span_id for span in by_id.values() if not span.parent_id] == [spans.span_id(str(identity), 0).hex()]
    return by_id


async def test_investigation_is_one_trace_and_each_span_is_sent_once(database: databases.Database) -> None:
    identity = await admitted(database)
    async with collectors.collector() as collector:
        async with process(database, collector) as worker:
            await worker.work(asking("k8s.get"), toolbox=memory.DictToolbox({"k8s.get": "lines"}))
        by_id = one_piece(collector.spans, identity)
        assert len(by_id) == len(collector.spans)
        names = sorted(span.name for span in by_id.values())
        assert names == [
            *["chat scripted"] * 4,
            *["execute_tool k8s.get"] * 2,
            *["invoke_agent KubernetesAgent"] * 2,
            "invoke_workflow pod-crash",
            "stage analysis",
            "stage second",
        ]
        root = by_id[spans.span_id(str(identity), 0).hex()]
        assert root.links == (("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "alert"),)
        (times,) = await queue.rows(database, "SELECT started_at, ended_at FROM runs")
        assert root.end == round(times[1].timestamp() * 10**6) * 1000


@pytest.mark.parametrize("sent_before_the_kill", [True, False])
async def test_investigation_whose_workers_were_killed_twice_is_one_connected_trace(
    database: databases.Database, *, sent_before_the_kill: bool
) -> None:
    """Each kill comes after commits that end something; the process had sent its spans, or had not."""
    identity = await admitted(database)
    asked = stories.asks("k8s.pods_log")
    async with collectors.collector() as collector:
        async with process(database, collector) as first:
            journal = await first.journal()
            await journal.commit(stories.stage_started(STAGE), stories.started(stage=STAGE), asked)
            await journal.commit(stories.ran(asked))
            if not sent_before_the_kill:
                await first.kill()
        await queue.let_leases_pass(database)
        async with process(database, collector) as second:
            journal = await second.journal()
            await journal.commit(stories.answers(call_number=1), stories.ended(), stories.stage_ended(STAGE))
            if not sent_before_the_kill:
                await second.kill()
        await queue.let_leases_pass(database)
        async with process(database, collector) as third:
            claim = await third.work(memory.ScriptedModel())
        assert claim.attempts == 3
        by_id = one_piece(collector.spans, identity)
        summary = await queue.summary(database, identity)
        assert summary.ending == "Completed"
        log = await queue.log(database, identity)
        ends = sum(isinstance(row.entry, (entries.StageEnded, entries.RunEnded, entries.ExecutionEnded)) for row in log)
        calls = sum(isinstance(row.entry, entries.Answered) for row in log)
        tools = sum(len(row.entry.runs) for row in log if isinstance(row.entry, entries.ToolsAnswered))
        assert len(by_id) == ends + calls + tools
        roots = [span for span in collector.spans if not span.parent_id]
        assert len(roots) == 1, "it ends once"


async def test_nothing_is_sent_twice_after_a_release(database: databases.Database) -> None:
    identity = await admitted(database)
    async with collectors.collector() as collector:
        async with process(database, collector) as first:
            claim = await queue.claimed(database)
            journal = await journals.PgJournal.open(
                database, claim=claim, ensure_lease=_sure, suspended=lambda: False, follower=first.traces.follow(claim)
            )
            own = record.execution_id(str(identity), run=0, stage=STAGE, kind="agent", index=0)
            asked = stories.asks("k8s.get", execution=own)
            await journal.commit(stories.stage_started(STAGE), stories.started(own, stage=STAGE), asked)
            await work.release(database, claim)
        async with process(database, collector) as second:
            await second.work(memory.ScriptedModel())
        assert len(one_piece(collector.spans, identity)) == len(collector.spans)


async def test_a_run_that_ends_without_a_worker_has_its_root(database: databases.Database) -> None:
    identity = await admitted(database)
    async with collectors.collector() as collector:
        async with process(database, collector):
            assert await work.cancel(database, identity, why="user") == "Cancelled"
        (root,) = one_piece(collector.spans, identity).values()
        assert root.attributes["tarsy.outcome"] == "Cancelled"
        assert not root.failed


async def test_sweep_that_ends_a_run_of_a_killed_worker_sends_the_complete_trace(database: databases.Database) -> None:
    identity = await admitted(database)
    async with collectors.collector() as collector:
        async with process(database, collector) as first:
            journal = await first.journal()
            await journal.commit(stories.stage_started(STAGE), stories.started(stage=STAGE), stories.asks("k8s.get"))
            assert await work.cancel(database, identity, why="user") == "Cancelling"
            await first.kill()
        async with process(database, collector):
            assert await work.sweep(database) == 1
        names = sorted(span.name for span in one_piece(collector.spans, identity).values())
        assert names == [
            "chat gemini-2.5-flash",
            "invoke_agent KubernetesAgent",
            "invoke_workflow pod-crash",
            "stage analysis",
        ]
