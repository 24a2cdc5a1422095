"""When ended investigations may leave the cluster, on a real Postgres."""

from __future__ import annotations

from uuid import UUID

import pytest
from support import queue
from tarsy.store.base import databases
from tarsy.store.operations import expiry
from tarsy.store.queue import work

WEEK = 7 * 24 * 3600


async def ended(database: databases.Database, *, ago: int, own: int | None = None, chains: int | None = None) -> UUID:
    """An investigation that ended `ago` seconds ago, and its status shows it; with TTLs of its own and its chain's."""
    identity = await queue.admit(
        database, queue.subject(ttlSecondsAfterFinished=own), chain=queue.chain(ttlSecondsAfterFinished=chains)
    )
    await work.cancel(database, identity, why="user")
    over = "UPDATE investigations SET ended_at = clock_timestamp() - make_interval(secs => :ago)"
    await queue.execute(database, over, ago=ago)
    await queue.execute(database, "UPDATE work SET stale = false")
    return identity


async def expired(database: databases.Database) -> list[UUID]:
    return [investigation.id for investigation in await expiry.expired(database, namespace="tarsy", limit=10)]


@pytest.mark.parametrize(
    ("own", "chains", "ttl"), [(None, None, WEEK), (None, 60, 60), (30, 60, 30), (90, 60, 90), (0, 60, 0)]
)
async def test_investigation_expires_by_its_own_time_to_live_else_the_chains_else_a_week(
    database: databases.Database, own: int | None, chains: int | None, ttl: int
) -> None:
    if ttl:
        await ended(database, ago=ttl - 10, own=own, chains=chains)
        assert await expired(database) == []
    assert await ended(database, ago=ttl + 1, own=own, chains=chains) in await expired(database)


async def test_investigation_expires_only_after_its_status_shows_its_end(database: databases.Database) -> None:
    identity = await ended(database, ago=61, own=60)
    await queue.execute(database, "UPDATE work SET stale = true")
    assert await expired(database) == []
    await work.projected(database, identity, revision=(await queue.summary(database, identity)).revision)
    assert await expired(database) == [identity]


async def test_deleted_object_does_not_expire_again(database: databases.Database) -> None:
    identity = await ended(database, ago=61, own=60)
    await work.gone(database, identity)
    assert await expired(database) == []
