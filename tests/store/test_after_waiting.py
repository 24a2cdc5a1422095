"""Decisions after a wait for a row: they follow what the holder of the lock has committed, not what was before.

Postgres reads a statement's other rows as they were when it began. Each test lets a first change take the lock and stop
at a row that the test holds, and a second one wait for the lock: then both go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal
from uuid import UUID

import pytest
from support import lock_waits, queue
from tarsy.ingest import grouping
from tarsy.resources import investigations, naming
from tarsy.store.base import databases
from tarsy.store.intake import episodes, groups, receipts, splits
from tarsy.store.queue import work
from tarsy.transcript import admission
from tarsy_dev import patience

GROUP = f"{grouping.KEY}one"
START = datetime(2026, 11, 21, 20, 26, 18, tzinfo=UTC)
FIRST, SECOND, THIRD = (f"{number:016x}" for number in (1, 2, 3))


async def admit(
    database: databases.Database,
    *,
    fingerprint: str = FIRST,
    seen: UUID | None = None,
    on_resolved: Literal["Continue", "Cancel"] = "Continue",
) -> UUID:
    """Begin an investigation of the group, with this alert; `seen` is its former one."""
    subject = queue.subject(fingerprint=fingerprint, startsAt=START)
    source = investigations.Source(type="alertmanager")
    receipt = await groups.issue(
        database,
        namespace="tarsy",
        group=GROUP,
        name=subject.metadata.name,
        digest=investigations.digest(subject.spec.model_copy(update={"source": source})),
        rule=queue.RULE,
        address="",
        seen=seen,
    )
    assert isinstance(receipt, receipts.Receipt)
    spec = subject.spec.model_copy(update={"source": source.model_copy(update={"receipt": receipt.word})})
    metadata = subject.metadata.model_copy(update={"name": receipt.name})
    return await queue.admit(
        database,
        subject.model_copy(update={"metadata": metadata, "spec": spec}),
        chain=queue.chain(onResolved=on_resolved),
    )


async def join(database: databases.Database, *fingerprints: str) -> Sequence[groups.Joined]:
    members = [
        admission.Member(
            fingerprint=fingerprint,
            starts_ms=naming.milliseconds(START),
            alert_type="PodCrash",
            severity="",
            labels={"alertname": "PodCrash"},
            words="",
            alert_json="{}",
        )
        for fingerprint in fingerprints
    ]
    _, joined = await groups.join(
        database,
        members,
        namespace="tarsy",
        group=GROUP,
        window=timedelta(minutes=10),
        by_subject=False,
        severities=[],
        rule=queue.RULE,
    )
    return [joined[position] for position in range(len(members))]


async def resolve(database: databases.Database, fingerprint: str) -> UUID:
    investigation = await episodes.resolve(database, namespace="tarsy", fingerprint=fingerprint, starts_at=START)
    assert investigation
    return investigation.id


async def statuses(database: databases.Database, identity: UUID) -> dict[str, str]:
    """The alerts of an investigation, with their statuses."""
    statement = "SELECT fingerprint, status FROM identities WHERE investigation = :id ORDER BY 1"
    return dict(await queue.rows(database, statement, id=identity))


async def has_ended(database: databases.Database, identity: UUID) -> bool:
    return (await queue.summary(database, identity)).ended_at is not None


async def fail(database: databases.Database, identity: UUID) -> None:
    """Let an investigation have failed so long ago that its cool-down is over."""
    await queue.execute(
        database,
        """
        WITH ended AS (UPDATE work SET state = 'ended' WHERE investigation = :id)
        UPDATE investigations SET ending = 'Failed', ended_at = clock_timestamp() - interval '1 hour' WHERE id = :id
        """,
        id=identity,
    )


async def test_alert_that_resolves_while_the_next_investigation_takes_it_is_resolved_there(
    database: databases.Database,
) -> None:
    former = await admit(database)
    await join(database, SECOND)
    await fail(database, former)
    fresh = await admit(database, fingerprint=THIRD, seen=former)
    investigation = await lock_waits.in_order(
        database,
        groups.take_firing(database, fresh),
        resolve(database, SECOND),
        stopped_at=f"identities WHERE fingerprint = '{SECOND}'",
    )
    assert investigation == fresh
    assert await statuses(database, fresh) == {FIRST: "firing", SECOND: "resolved", THIRD: "firing"}


async def test_alert_that_has_just_resolved_does_not_go_with_those_that_still_fire(
    database: databases.Database,
) -> None:
    former = await admit(database)
    await join(database, SECOND)
    await fail(database, former)
    fresh = await admit(database, fingerprint=THIRD, seen=former)
    await lock_waits.in_order(
        database,
        resolve(database, SECOND),
        groups.take_firing(database, fresh),
        stopped_at=f"identities WHERE fingerprint = '{SECOND}'",
    )
    assert await statuses(database, former) == {SECOND: "resolved"}
    assert await statuses(database, fresh) == {FIRST: "firing", THIRD: "firing"}


@pytest.mark.parametrize("on_resolved", ["Continue", "Cancel"])
async def test_investigation_continues_if_an_alert_joins_while_its_last_alert_resolves(
    database: databases.Database, on_resolved: Literal["Continue", "Cancel"]
) -> None:
    identity = await admit(database, on_resolved=on_resolved)
    await lock_waits.in_order(database, join(database, SECOND), resolve(database, FIRST), stopped_at="investigations")
    assert await statuses(database, identity) == {FIRST: "resolved", SECOND: "firing"}
    assert (await queue.summary(database, identity)).alert_status == "firing"
    assert not await has_ended(database, identity)
    await resolve(database, SECOND)
    assert (await queue.summary(database, identity)).alert_status == "resolved"
    assert await has_ended(database, identity) == (on_resolved == "Cancel")


async def test_investigation_continues_if_an_alert_fires_again_while_the_last_resolves(
    database: databases.Database,
) -> None:
    identity = await admit(database, on_resolved="Cancel")
    await join(database, SECOND)
    await resolve(database, SECOND)
    await lock_waits.in_order(
        database,
        episodes.count_repeats(database, (identity, SECOND)),
        resolve(database, FIRST),
        stopped_at="investigations",
    )
    assert await statuses(database, identity) == {FIRST: "resolved", SECOND: "firing"}
    assert (await queue.summary(database, identity)).alert_status == "firing"
    assert not await has_ended(database, identity)


async def test_concurrent_resolution_of_the_last_two_alerts_is_published_as_a_change(
    database: databases.Database,
) -> None:
    """Neither sees the end of the other in its first statement."""
    identity = await admit(database)
    await join(database, SECOND)
    await lock_waits.in_order(
        database,
        resolve(database, FIRST),
        resolve(database, SECOND),
        stopped_at=f"identities WHERE fingerprint = '{FIRST}'",
    )
    assert (await queue.summary(database, identity)).alert_status == "resolved"
    select = """
      SELECT stale, changed >= CAST(CAST(investigations.xmin AS text) AS bigint)
      FROM work JOIN investigations ON id = investigation
    """
    assert await queue.rows(database, select) == [(True, True)]


async def test_alert_that_fires_keeps_its_investigation_from_a_cancel_because_all_are_resolved(
    database: databases.Database,
) -> None:
    """It may join between the end of the last one and the cancel."""
    identity = await admit(database)
    assert await work.cancel(database, identity, why="resolved") is None
    assert not await has_ended(database, identity)
    await resolve(database, FIRST)
    assert await work.cancel(database, identity, why="resolved") == "Cancelled"


async def split(database: databases.Database, identity: UUID) -> UUID:
    """Begin an investigation of an alert of the group, which that has still to be taken out of."""
    begun = await queue.admit(database, queue.subject("split"))
    statement = "UPDATE investigations SET split_from = :split_from WHERE id = :id"
    await queue.execute(database, statement, split_from=identity, id=begun)
    return begun


@pytest.mark.parametrize("on_resolved", ["Continue", "Cancel"])
async def test_rest_of_a_group_is_resolved_if_its_last_alert_resolves_while_another_is_taken_out(
    database: databases.Database, on_resolved: Literal["Continue", "Cancel"]
) -> None:
    identity = await admit(database, on_resolved=on_resolved)
    await join(database, SECOND)
    begun = await split(database, identity)
    async with lock_waits.holding(database, f"identities WHERE fingerprint = '{SECOND}'"):
        async with lock_waits.holding(database, f"identities WHERE fingerprint = '{FIRST}'"):
            resolving = await lock_waits.begin(database, resolve(database, FIRST), number=1)
            moving = await lock_waits.begin(
                database, splits.complete(database, begun, split_from=identity, fingerprint=SECOND), number=2
            )
        async with patience.limit():
            await resolving
    await moving
    assert await statuses(database, identity) == {FIRST: "resolved"}
    assert await statuses(database, begun) == {SECOND: "firing"}
    assert (await queue.summary(database, identity)).alert_status == "resolved"
    assert await has_ended(database, identity) == (on_resolved == "Cancel")


async def test_group_continues_if_an_alert_joins_while_the_only_firing_alert_is_split_off(
    database: databases.Database,
) -> None:
    identity = await admit(database, on_resolved="Cancel")
    await join(database, SECOND)
    await resolve(database, FIRST)
    begun = await split(database, identity)
    await lock_waits.in_order(
        database,
        join(database, THIRD),
        splits.complete(database, begun, split_from=identity, fingerprint=SECOND),
        stopped_at="investigations",
    )
    assert await statuses(database, identity) == {FIRST: "resolved", THIRD: "firing"}
    assert (await queue.summary(database, identity)).alert_status == "firing"
    assert not await has_ended(database, identity)


async def test_alert_that_resolves_while_it_is_taken_out_of_its_group_is_resolved_there(
    database: databases.Database,
) -> None:
    identity = await admit(database)
    await join(database, SECOND)
    begun = await split(database, identity)
    investigation = await lock_waits.in_order(
        database,
        splits.complete(database, begun, split_from=identity, fingerprint=SECOND),
        resolve(database, SECOND),
        stopped_at=f"identities WHERE fingerprint = '{SECOND}'",
    )
    assert investigation == begun
    assert await statuses(database, begun) == {SECOND: "resolved"}
    assert (await queue.summary(database, begun)).alert_status == "resolved"
    assert (await queue.summary(database, identity)).alert_status == "firing"
