"""The lease thread against a real Postgres, with leases of seconds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy
from support import queue
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.transcript import ports
from tarsy.worker import leases
from tarsy_dev import patience, proxy
from tarsy_dev import postgres as launcher

LEASE = timedelta(seconds=2)
HEARTBEAT = timedelta(seconds=0.2)
PATIENT = timedelta(seconds=5)
"""A lease that does not pass while a busy machine has this process wait for a second or two."""


@pytest.fixture
async def database(database: databases.Database) -> databases.Database:
    """A database with one investigation that waits."""
    await queue.admit(database)
    return database


@contextlib.asynccontextmanager
async def keeping(
    url: str, *, lease: timedelta = LEASE, heartbeat: timedelta = HEARTBEAT
) -> AsyncIterator[leases.LeaseManager]:
    lease_manager = leases.LeaseManager(url, lease=lease, heartbeat=heartbeat)
    task = asyncio.create_task(lease_manager.run())
    try:
        yield lease_manager
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def claimed(
    database: databases.Database, lease_manager: leases.LeaseManager, *, lease: timedelta = LEASE
) -> leases.Lease:
    sent = time.monotonic()
    claim = await try_to_claim(database, lease=lease)
    assert claim is not None
    return lease_manager.hold(claim, sent=sent)


async def try_to_claim(
    database: databases.Database, *, owner: UUID = queue.OWNER, lease: timedelta = LEASE
) -> work.Claim | None:
    return await work.claim(database, owner=owner, lease=lease, build=queue.BUILD)


async def seconds_left(database: databases.Database) -> float:
    """Seconds until the lease passes, by the database's clock."""
    async with database.begin() as connection:
        left = sqlalchemy.text("SELECT extract(epoch FROM lease_until - clock_timestamp()) FROM work")
        return float((await connection.execute(left)).scalar_one())


async def doubting(held: leases.Lease) -> asyncio.Task[None]:
    """Wait until the lease is in doubt; a `ensure_lease` that waits for certainty."""
    while True:
        asking = asyncio.create_task(held.ensure_lease())
        done, _ = await asyncio.wait([asking], timeout=0.05)
        if not done:
            return asking
        asking.result()


@contextlib.asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[leases.LeaseManager, proxy.Proxy]]:
    """A lease_manager whose way to the database can be cut."""
    parts = sqlalchemy.make_url(url)
    async with proxy.serve("127.0.0.1", parts.port or 0) as between:
        far = parts.set(port=between.port).render_as_string(hide_password=False)
        async with keeping(far) as lease_manager:
            yield lease_manager, between


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refused"])
async def test_calls_are_not_sent_during_an_outage_and_the_run_continues_afterwards(
    database: databases.Database, silent: bool
) -> None:
    async with patience.limit(), behind_proxy(database.url) as (lease_manager, between):
        held = await claimed(database, lease_manager)
        await held.ensure_lease()
        if silent:
            between.blackhole()
        else:
            between.refuse()
            between.cut()
        asking = await doubting(held)
        between.heal()
        between.accept()
        await asking
        assert await seconds_left(database) > 0


async def test_disconnected_worker_is_uncertain_before_another_can_take_its_lease(
    database: databases.Database,
) -> None:
    async with patience.limit(), behind_proxy(database.url) as (lease_manager, between):
        held = await claimed(database, lease_manager)
        between.blackhole()
        while await try_to_claim(database, owner=UUID(int=2)) is None:
            assert await seconds_left(database) < LEASE.total_seconds()
        asking = asyncio.create_task(held.ensure_lease())
        await asyncio.wait([asking], timeout=0.2)
        assert not asking.done()
        between.heal()
        with pytest.raises(ports.LeaseLostError):
            await asking


async def test_run_loses_its_lease_if_its_own_process_claims_the_investigation_again(
    database: databases.Database,
) -> None:
    async with patience.limit(), behind_proxy(database.url) as (lease_manager, between):
        first = await claimed(database, lease_manager)
        stopped = asyncio.Event()
        first.on_stop(stopped.set)
        between.blackhole()
        asking = await doubting(first)
        while await seconds_left(database) > 0:
            assert not asking.done()
        second = await claimed(database, lease_manager)
        between.heal()
        await stopped.wait()
        with pytest.raises(ports.LeaseLostError):
            await asking
        lease_manager.remove(first)
        await second.ensure_lease()


async def test_a_main_loop_that_is_blocked_keeps_its_leases(
    database: databases.Database, postgres: launcher.Access
) -> None:
    async with patience.limit(), keeping(database.url, lease=PATIENT) as lease_manager:
        held = await claimed(database, lease_manager, lease=PATIENT)
        name = str(sqlalchemy.make_url(database.url).database)
        until = time.monotonic() + 1.5 * PATIENT.total_seconds()
        while time.monotonic() < until:  # blocks the loop: nothing is awaited here
            assert postgres.execute("SELECT lease_until > clock_timestamp() FROM work", database=name) == "t"
        await held.ensure_lease()
