"""Cancel, sweep and duties, on a real Postgres."""

from __future__ import annotations

import math
import uuid
from datetime import timedelta
from uuid import UUID

import pytest
import sqlalchemy
from tarsy.resources import base, chain, investigation
from tarsy.store import database as databases
from tarsy.store import duties, history, journal, work
from tarsy.transcript import entries, ports
from tarsy.worker import lease

LEASE = timedelta(seconds=60)
OWNER, OTHER = UUID(int=1), UUID(int=2)
CHAIN = chain.AgentChain(
    metadata=base.ObjectMeta(name="pod-crash", namespace="tarsy", generation=3),
    spec=chain.Spec(alert_types=["kubernetes"], stages=[chain.Stage(name="analysis", agent="KubernetesAgent")]),
)


async def admit(database: databases.Database) -> UUID:
    subject = investigation.AlertInvestigation(
        metadata=base.ObjectMeta(name="web-crash", namespace="tarsy", uid=str(uuid.uuid4()), generation=1),
        spec=investigation.Spec(alert_type="kubernetes", alert_data="web-0"),
    )
    assert await work.admit(database, subject, CHAIN, mask=str)
    return UUID(subject.metadata.uid)


async def claimed(database: databases.Database) -> work.Claim:
    claim = await work.claim(database, owner=OWNER, lease=LEASE)
    assert claim is not None
    return claim


async def summary(database: databases.Database, identity: UUID) -> history.Summary:
    found = await history.summary(database, identity)
    assert found is not None
    return found


async def let_leases_pass(database: databases.Database) -> None:
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("UPDATE work SET lease_until = clock_timestamp()"))


@pytest.mark.parametrize(
    ("why", "reason"),
    [("user", "CancelledByUser"), ("deleted", "ObjectDeleted"), ("resolved", "AlertResolved")],
    ids=["user", "deleted", "resolved"],
)
async def test_a_queued_one_ends_at_once(database: databases.Database, why: work.Cancellation, reason: str) -> None:
    identity = await admit(database)
    assert await work.cancel(database, identity, why=why)
    found = await summary(database, identity)
    assert (found.state, found.ending, found.reason) == ("ended", "Cancelled", reason)
    assert found.ended_at is not None
    assert found.message == work.CANCELLED_MESSAGES[why]
    assert await work.claim(database, owner=OWNER, lease=LEASE) is None
    assert not await work.cancel(database, identity, why="user")


async def test_a_running_one_is_left_to_its_worker_which_the_heartbeat_tells(database: databases.Database) -> None:
    identity = await admit(database)
    claim = await claimed(database)
    heartbeat = work.Heartbeat(database.url, lease=LEASE)
    assert await heartbeat.beat([claim.token]) == {claim.token: None}
    assert await work.cancel(database, identity, why="user")
    assert await heartbeat.beat([claim.token]) == {claim.token: "user"}
    await heartbeat.close()
    found = await summary(database, identity)
    assert (found.state, found.ending, found.cancel) == ("running", None, "user")


async def test_the_claim_that_takes_over_a_cancelled_one_knows_of_it(database: databases.Database) -> None:
    identity = await admit(database)
    await claimed(database)
    await work.cancel(database, identity, why="deleted")
    await let_leases_pass(database)
    assert (await claimed(database)).cancel == "deleted"


async def test_the_sweep_ends_a_cancelled_one_without_a_worker_and_fences_that_worker(
    database: databases.Database,
) -> None:
    identity = await admit(database)
    claim = await claimed(database)
    held = lease.Lease(claim, certain_until=math.inf)
    late = await journal.PgJournal.open(database, claim=claim, clear_to_send=held.clear_to_send)
    await work.cancel(database, identity, why="user")
    assert await work.sweep(database) == 0  # its worker lives
    await let_leases_pass(database)
    assert await work.sweep(database) == 1
    found = await summary(database, identity)
    assert (found.state, found.ending) == ("ended", "Cancelled")
    with pytest.raises(ports.LeaseLostError):
        await late.commit(entries.StageStarted(stage="analysis"))


async def test_the_sweep_leaves_a_taken_over_run_alone(database: databases.Database) -> None:
    await admit(database)
    await claimed(database)
    await let_leases_pass(database)
    assert await work.sweep(database) == 0
    assert await work.claim(database, owner=OTHER, lease=LEASE) is not None


async def test_a_cancelled_one_ends_when_its_worker_shuts_down_and_gives_it_back(database: databases.Database) -> None:
    identity = await admit(database)
    claim = await claimed(database)
    await work.cancel(database, identity, why="user")
    await work.release(database, claim)
    assert (await summary(database, identity)).ending == "Cancelled"


async def test_an_unknown_or_ended_one_cannot_be_cancelled(database: databases.Database) -> None:
    assert not await work.cancel(database, uuid.uuid4(), why="user")


async def test_a_duty_is_one_process_s_until_its_lease_has_passed(database: databases.Database) -> None:
    assert await duties.take(database, "controller", owner=OWNER, lease=LEASE)
    assert await duties.take(database, "controller", owner=OWNER, lease=timedelta(0))
    assert await duties.take(database, "controller", owner=OTHER, lease=LEASE)
    assert not await duties.take(database, "controller", owner=OWNER, lease=LEASE)
    await duties.give_up(database, "controller", owner=OWNER)
    assert not await duties.take(database, "controller", owner=OWNER, lease=LEASE), "it was not this one's to give"
    await duties.give_up(database, "controller", owner=OTHER)
    assert await duties.take(database, "controller", owner=OWNER, lease=LEASE)


async def test_a_database_remembers_its_first_cluster(database: databases.Database) -> None:
    assert await duties.remember_cluster(database, "one")
    assert await duties.remember_cluster(database, "one")
    assert not await duties.remember_cluster(database, "two")
