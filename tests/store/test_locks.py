"""Order of row locks: it is always the same, and a claim that is cut off while it waits is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import lock_waits, queue, supervisors
from tarsy.store.base import databases
from tarsy.store.intake import episodes
from tarsy.store.queue import heartbeats, ledgers, work
from tarsy.transcript import memory
from tarsy.worker import claimer
from tarsy_dev import patience

FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, tzinfo=UTC)
SUBJECT = queue.subject(fingerprint=FINGERPRINT, startsAt=START)
IDENTITY = UUID(SUBJECT.metadata.uid)


async def later(database: databases.Database) -> None:
    metadata = SUBJECT.metadata.model_copy(update={"generation": 2})
    await work.observe(database, SUBJECT.model_copy(update={"metadata": metadata}))


async def repeat(database: databases.Database) -> object:
    return await queue.repeat(database, fingerprint=FINGERPRINT, starts_at=START)


async def resolved(database: databases.Database) -> object:
    return await episodes.resolve(database, namespace="tarsy", fingerprint=FINGERPRINT, starts_at=START)


async def cancel(database: databases.Database) -> object:
    return await work.cancel(database, IDENTITY, why="user")


@pytest.mark.parametrize("write", [later, repeat, resolved, cancel])
async def test_every_write_locks_the_queue_row_first(
    database: databases.Database, write: Callable[[databases.Database], Awaitable[object]]
) -> None:
    await queue.admit(database, await queue.received(database, SUBJECT))
    async with lock_waits.holding(database, "work") as connection:
        writing = asyncio.ensure_future(write(database))
        await queue.blocked(database)
        await connection.execute(sqlalchemy.text("SELECT 1 FROM investigations FOR UPDATE NOWAIT"))
    await writing


async def beat(database: databases.Database) -> None:
    tokens = await queue.rows(database, "SELECT investigation, token FROM work")
    heartbeat = heartbeats.Heartbeat(database.url, lease=queue.LEASE)
    try:
        assert len(await heartbeat.beat(dict(tokens))) == 2
    finally:
        await heartbeat.close()


PARKED = "state = 'parked', wait_reason = 'BudgetSpent', wake_at = clock_timestamp()"


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (work.sweep, PARKED),
        (ledgers.wake_waiting, PARKED),
        (
            lambda database: work.try_unreadable_again(database, build=queue.BUILD),
            f"unreadable_by = '{{{queue.BUILD}}}'",
        ),
        (beat, "state = 'running', token = gen_random_uuid()"),
    ],
    ids=["sweep", "wake", "unreadable", "heartbeat"],
)
async def test_changes_of_many_rows_never_deadlock(
    database: databases.Database, change: Callable[[databases.Database], Awaitable[object]], state: str
) -> None:
    """The rows stand in the table against the order in which repeats are counted."""
    first, second = sorted((UUID(queue.subject().metadata.uid), UUID(queue.subject().metadata.uid)))
    for identity in (second, first):
        subject = queue.subject()
        metadata = subject.metadata.model_copy(update={"uid": str(identity)})
        await queue.admit(database, subject.model_copy(update={"metadata": metadata}))
    await queue.execute(database, f"UPDATE work SET {state} WHERE investigation = :id", id=second)  # noqa: S608
    await queue.execute(database, f"UPDATE work SET {state} WHERE investigation = :id", id=first)  # noqa: S608
    await queue.execute(database, "ANALYZE work")
    async with lock_waits.holding(database, f"work WHERE investigation = '{first}'"):
        counting = await lock_waits.begin(
            database, episodes.count_repeats(database, (first, FINGERPRINT), (second, FINGERPRINT)), number=1
        )
        changing = asyncio.ensure_future(change(database))
        blocked = asyncio.ensure_future(queue.blocked(database, 2))
        await asyncio.wait({changing, blocked}, return_when=asyncio.FIRST_COMPLETED)
        blocked.cancel()
    await counting
    await changing
    assert await queue.rows(database, "SELECT duplicates FROM investigations") == [(1,), (1,)]


@pytest.fixture
async def claims(database: databases.Database) -> claimer.Claimer:
    return supervisors.claims(supervisors.supervisor(database, memory.ScriptedModel()))


async def test_interrupted_claim_is_released(database: databases.Database, claims: claimer.Claimer) -> None:
    await queue.admit(database, SUBJECT)
    async with lock_waits.holding(database, "runs"):
        claiming = asyncio.create_task(claims.run())
        await queue.blocked(database)
        claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    summary = await queue.summary(database, IDENTITY)
    assert (summary.state, summary.attempts) == ("queued", 0)


async def test_briefly_locked_investigation_is_claimed_right_afterwards(
    database: databases.Database, claims: claimer.Claimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claimer, "POLL_SECONDS", 60.0)
    passed_over = asyncio.Event()
    real = work.claim

    async def claim(*args: Any, **named: Any) -> work.Claim | None:
        try:
            return await real(*args, **named)
        except work.BusyError:
            passed_over.set()
            raise

    monkeypatch.setattr(work, "claim", claim)
    await queue.admit(database, SUBJECT)
    async with lock_waits.holding(database, "work"):
        claiming = asyncio.create_task(claims.run())
        async with patience.limit():
            await passed_over.wait()
    async with patience.limit():
        while (await queue.summary(database, IDENTITY)).attempts == 0:
            pass  # the read itself gives way to the others
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
