"""Logs that this program cannot read, written by hand: the run stands still for programs that can, and is not lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest
from support import exports, queue, stories, supervisors
from tarsy.api.investigations import reads, traces
from tarsy.store.base import databases
from tarsy.store.operations import open_investigations
from tarsy.store.queue import work
from tarsy.store.reads import log_entries, snapshots, summaries
from tarsy.transcript import entries, entry_versions, memory, record
from tarsy_dev import patience

NEWER = "a program that can read it"
NEWEST = entry_versions.VERSIONS["ToolsAnswered"]
NEWER_ENTRY = f"UPDATE entries SET version = {NEWEST + 1} WHERE seq = 4"  # noqa: S608
ASKED = stories.asks("k8s.pods_log", "k8s.pods_log", text="I look at both.", thinking="both")
LOG: tuple[entries.Entry, ...] = (
    stories.stage_started(),
    stories.started(),
    ASKED,
    stories.ran(ASKED, 0),
    stories.unanswered(call_number=1),
    stories.answers(call_number=2),
    stories.ended(),
    stories.stage_ended(),
)
DEEP = "[" * 3000 + "]" * 3000
EXTRA = """
  INSERT INTO entries (investigation, seq, claim, kind, version, run, stage, execution, body)
  SELECT investigation, log_seq + 1, 1, 'StageEnded', 1, 0, 'analysis', '', '{"outcome": "Completed"}' FROM work
"""


def body(seq: int, json: str) -> str:
    return f"UPDATE entries SET body = '{json}' WHERE seq = {seq}"  # noqa: S608 - a test's own words


SPOILT: dict[str, tuple[str, str]] = {
    "an unknown kind": (
        "UPDATE entries SET kind = 'Pondered' WHERE seq = 3",
        r"entry 3 \(kind 'Pondered', version 3\) cannot be read: its kind is unknown here",
    ),
    "a newer version": (
        NEWER_ENTRY,
        rf"entry 4 \(kind 'ToolsAnswered', version {NEWEST + 1}\) cannot be read: version {NEWEST} is the newest",
    ),
    "null as body": (body(2, "null"), r"entry 2 .* does not have its shape: TypeError"),
    "a body that is too deep": (body(3, DEEP), r"entry 3 .* does not have its shape: RecursionError"),
    "a gap": ("DELETE FROM entries WHERE seq = 4", r"the log does not have exactly the entries 1 to 8"),
    "a row too many": (EXTRA, r"the log does not have exactly the entries 1 to 8"),
    "a stage twice": (
        (
            "UPDATE entries AS spoilt SET (kind, version, body) = "
            "(SELECT kind, version, body FROM entries WHERE seq = 1) WHERE seq = 8"
        ),
        r"entry 8 cannot follow those before it: stage 'analysis' has started already",
    ),
    "a run that there is not": ("UPDATE entries SET run = 7 WHERE seq = 1", r"entry 1 cannot follow those before it"),
    "a newer snapshot": (
        "UPDATE investigations SET chain_version = chain_version + 1",
        rf"the snapshot of the chain is of version {record.CHAIN_VERSION + 1}, which is unknown here",
    ),
    "a snapshot of another shape": (
        """UPDATE investigations SET chain = '{"stages": []}'""",
        r"the snapshot of the chain cannot be read: ",
    ),
}
BY_HAND = pytest.mark.parametrize(("spoil", "reason"), SPOILT.values(), ids=SPOILT)


async def spoil_log(database: databases.Database, spoil: str) -> None:
    for statement in spoil.split("; "):
        await queue.execute(database, statement)


async def told_once_and_given_back(database: databases.Database) -> UUID:
    """An investigation whose worker committed `LOG` and then gave it back."""
    identity = await queue.admit(database)
    claim = await queue.claimed(database)
    await (await queue.opened(database, claim)).commit(*LOG)
    await work.release(database, claim)
    return identity


async def parked(database: databases.Database, *, spoil: str = EXTRA) -> UUID:
    """An investigation whose log this program could not read, and said so."""
    identity = await told_once_and_given_back(database)
    await spoil_log(database, spoil)
    claim = await queue.claimed(database)
    with pytest.raises(snapshots.UnreadableError) as error:
        await queue.opened(database, claim)
    await work.release(database, claim, unreadable=str(error.value), build=queue.BUILD)
    return identity


@BY_HAND
async def test_unreadable_log_is_not_opened_and_the_reason_is_recorded(
    database: databases.Database, spoil: str, reason: str
) -> None:
    await told_once_and_given_back(database)
    await spoil_log(database, spoil)
    with pytest.raises(snapshots.UnreadableError, match=reason):
        await queue.opened(database, await queue.claimed(database))


async def check_calls(database: databases.Database, identity: UUID) -> None:
    """Every call in the trace can be looked at, or is told why not."""
    for line in (await traces.read(database, identity, after=0, limit=500)).calls:
        if line.type == "tool":
            assert (await traces.read_tool_call(database, identity, number=line.n)).seq == line.seq
            continue
        call = await traces.read_model_call(database, identity, number=line.n)
        assert call.seq == line.seq
        assert bool(call.request) != bool(call.problem)
        assert call.model_dump_json()


@BY_HAND
async def test_unreadable_investigation_is_shown_with_its_unreadable_entries(
    database: databases.Database, spoil: str, reason: str
) -> None:
    identity = await told_once_and_given_back(database)
    await spoil_log(database, spoil)
    assert (await queue.summary(database, identity)).phase == "Queued"
    log = await log_entries.load(database, identity)
    page = await log_entries.log_page(database, identity, after=0, limit=500)
    assert page is not None
    assert [logged.entry for logged in page.log] == [logged.entry for logged in log]
    assert (await reads.read(database, identity)).model_dump_json()
    exported = await exports.whole(database, identity)
    assert [entry.seq for entry in exported.unreadable] == [
        logged.seq for logged in log if isinstance(logged.entry, entries.Unreadable)
    ]
    await check_calls(database, identity)
    for after in range(len(log)):
        events = await reads.read_timeline(database, identity, after=after, limit=2)
        assert events.model_dump_json()
    timeline = await reads.read_timeline(database, identity, after=0, limit=500)
    unreadable = [event.id for event in timeline.events if event.metadata.get("kind") and "unreadable" in event.id]
    assert len(unreadable) == len(exported.unreadable)


async def test_unreadable_investigation_waits_for_another_program_with_a_reason(database: databases.Database) -> None:
    identity = await parked(database, spoil=NEWER_ENTRY)
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.state, summary.attempts) == ("Suspended", "queued", 0)
    assert summary.waits_for == (
        f"waits for a version of TARSy that can read its log: entry 4 (kind 'ToolsAnswered', version {NEWEST + 1}) "
        f"cannot be read: version {NEWEST} is the newest that is known here"
    )
    assert await work.stale(database, limit=1) == [identity]
    assert await queue.claim(database) is None
    assert await queue.claim(database) is None
    claim = await queue.claimed(database, build=NEWER)
    assert (claim.investigation, claim.attempts, claim.log_seq) == (identity, 1, len(LOG))
    running = await queue.summary(database, identity)
    assert (running.phase, running.waits_for) == ("Running", "")


async def test_each_program_that_cannot_read_a_log_is_recorded(database: databases.Database) -> None:
    await parked(database)
    for build in (NEWER, "another"):
        claim = await queue.claimed(database, build=build)
        await work.release(database, claim, unreadable="what it could not read", build=build)
    for build in (queue.BUILD, NEWER, "another"):
        assert await queue.claim(database, build=build) is None
    assert await queue.claim(database, build="a third") is not None


async def test_clock_of_an_unreadable_investigation_stands_still(database: databases.Database) -> None:
    identity = await parked(database)
    await queue.execute(
        database,
        "UPDATE runs SET started_at = started_at - interval '100 s', suspended_at = suspended_at - interval '90 s'",
    )
    assert await queue.claim(database) is None
    claim = await queue.claimed(database, build=NEWER)
    assert claim.investigation == identity
    assert 10 <= claim.age < 60


@BY_HAND
async def test_unreadable_investigation_can_be_cancelled_and_deleted(
    database: databases.Database, spoil: str, reason: str
) -> None:
    identity = await parked(database, spoil=spoil)
    assert await work.cancel(database, identity, why="deleted")
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.state, summary.reason, summary.waits_for) == (
        "Cancelled",
        "ended",
        "ObjectDeleted",
        "",
    )
    assert (await queue.log(database, identity))[-1].entry == entries.RunEnded(
        ending="Cancelled", reason=summary.reason, message=summary.message
    )
    await work.gone(database, identity)
    assert await open_investigations.list_open(database, namespace="tarsy") == []
    assert await queue.claim(database, build=NEWER) is None


async def test_program_claims_an_unreadable_investigation_again_after_try_again(database: databases.Database) -> None:
    identity = await parked(database)
    await work.try_unreadable_again(database, build=NEWER)
    assert await queue.claim(database) is None, "another program is another matter"
    await work.try_unreadable_again(database, build=queue.BUILD)
    assert (await queue.summary(database, identity)).phase == "Suspended", "until it is claimed"
    claim = await queue.claimed(database)
    assert claim.investigation == identity
    await queue.execute(database, "DELETE FROM entries WHERE seq > :last", last=len(LOG))
    assert (await queue.opened(database, claim)).record.stages["analysis"].ended


@contextlib.asynccontextmanager
async def claiming(database: databases.Database) -> AsyncIterator[None]:
    """A worker claims and runs what waits; its model ends everything at once."""
    worker = supervisors.supervisor(database, memory.ScriptedModel())
    running = asyncio.create_task(supervisors.claims(worker).run())
    yield
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def until(database: databases.Database, identity: UUID, ready: Callable[[summaries.Summary], bool]) -> None:
    async with patience.limit():
        while not ready(await queue.summary(database, identity)):
            pass  # the read itself gives way to the others


async def test_worker_releases_an_unreadable_investigation_and_continues_with_others(
    database: databases.Database,
) -> None:
    broken = await told_once_and_given_back(database)
    await spoil_log(database, "UPDATE entries SET kind = 'Pondered' WHERE seq = 3")
    fine = await queue.admit(database)
    async with claiming(database):
        await until(database, fine, lambda summary: summary.ended_at is not None)
        await until(database, broken, lambda summary: summary.phase == "Suspended")
    assert "kind 'Pondered'" in (await queue.summary(database, broken)).waits_for
    assert (await queue.summary(database, fine)).ending == "Completed"


async def test_new_worker_tries_an_unreadable_investigation_again(database: databases.Database) -> None:
    identity = await parked(database, spoil=NEWER_ENTRY)
    await queue.execute(database, "UPDATE entries SET version = version - 1 WHERE seq = 4")
    async with claiming(database):
        await until(database, identity, lambda summary: summary.state == "running" or summary.ended_at is not None)


async def test_worker_ends_a_cancelled_investigation_that_it_cannot_read(database: databases.Database) -> None:
    identity = await told_once_and_given_back(database)
    await spoil_log(database, EXTRA)
    await queue.claimed(database)
    await work.cancel(database, identity, why="user")
    await queue.let_leases_pass(database)
    await supervisors.run_next(supervisors.supervisor(database, memory.ScriptedModel()))
    assert (await queue.summary(database, identity)).ending == "Cancelled"
