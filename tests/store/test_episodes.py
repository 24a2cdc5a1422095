"""Alert episodes and large alerts, on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import pytest
from support import queue
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.intake import episodes, queueing
from tarsy.store.queue import work
from tarsy.transcript import entries

FINGERPRINT = "6eb8c03418906421"
START = datetime(2026, 11, 21, 20, 26, 18, 109994, tzinfo=UTC)


def subject(*, starts_at: datetime = START, **fields: Any) -> investigations.AlertInvestigation:
    return queue.subject(fingerprint=FINGERPRINT, startsAt=starts_at, **fields)


def large(name: str = "web-crash") -> investigations.AlertInvestigation:
    """One whose alert is kept elsewhere."""
    return subject(name=name, alertData=None, alertDataRef={"name": "5ef", "size": 1})


async def admit(database: databases.Database, *, starts_at: datetime = START) -> UUID:
    return await queue.admit(database, await queue.received(database, subject(starts_at=starts_at)))


async def repeat(
    database: databases.Database,
    *,
    fingerprint: str = FINGERPRINT,
    namespace: str = "tarsy",
    starts_at: datetime = START,
) -> UUID | None:
    return await queue.repeat(database, namespace=namespace, fingerprint=fingerprint, starts_at=starts_at)


async def resolve(
    database: databases.Database, *, fingerprint: str = FINGERPRINT, starts_at: datetime = START
) -> episodes.Reference | None:
    return await episodes.resolve(database, namespace="tarsy", fingerprint=fingerprint, starts_at=starts_at)


async def end(database: databases.Database, *, ago: timedelta = timedelta(0)) -> None:
    await queue.execute(database, "UPDATE work SET state = 'ended'")
    await queue.execute(
        database, "UPDATE investigations SET ended_at = clock_timestamp() - CAST(:ago AS interval)", ago=ago
    )


async def test_the_same_episode_is_counted_on_its_investigation(database: databases.Database) -> None:
    identity = await admit(database)
    await end(database, ago=timedelta(days=1))
    assert await repeat(database) == identity
    assert await repeat(database) == identity
    summary = await queue.summary(database, identity)
    assert (summary.duplicates, summary.alert_status) == (2, "firing")


async def test_the_same_episode_is_a_repeat_after_its_object_was_deleted(database: databases.Database) -> None:
    identity = await admit(database)
    assert await work.cancel(database, identity, why="deleted")
    assert await repeat(database) == identity


async def test_other_alert_or_other_namespace_is_no_repeat(database: databases.Database) -> None:
    await admit(database)
    assert await repeat(database, fingerprint="19da250ce641f6cc") is None
    assert await repeat(database, namespace="elsewhere") is None


async def test_alerts_that_are_looked_up_together_get_the_verdicts_that_each_gets_by_itself(
    database: databases.Database,
) -> None:
    identity = await admit(database)
    alerts = [("unknown", START), (FINGERPRINT, START), (FINGERPRINT, START + timedelta(hours=1)), ("another", START)]
    together = await episodes.look_up(database, *alerts, namespace="tarsy", rule=queue.RULE)
    alone = [(await episodes.look_up(database, alert, namespace="tarsy", rule=queue.RULE))[0] for alert in alerts]
    assert together == alone
    assert [isinstance(verdict, episodes.Repeat) for verdict in together] == [False, True, True, False]
    assert [verdict.investigation.id for verdict in together if isinstance(verdict, episodes.Repeat)] == 2 * [identity]
    assert await episodes.look_up(database, namespace="tarsy", rule=queue.RULE) == []


async def test_repeats_at_once_are_all_counted(database: databases.Database) -> None:
    identity = await admit(database)
    await asyncio.gather(*(repeat(database) for _ in range(10)))
    summary = await queue.summary(database, identity)
    assert summary.duplicates == 10


async def test_a_resolved_alert_is_recorded_on_the_newest_investigation(database: databases.Database) -> None:
    await admit(database)
    await end(database, ago=timedelta(days=1))
    newest = await admit(database, starts_at=START + timedelta(days=1))
    investigation = await resolve(database, starts_at=START + timedelta(days=1))
    assert investigation is not None
    assert investigation.id == newest
    summary = await queue.summary(database, newest)
    assert summary.alert_status == "resolved"
    assert await work.stale(database, limit=10)
    assert await resolve(database, fingerprint="19da250ce641f6cc") is None


async def test_late_resolution_of_an_old_episode_does_not_resolve_the_next_episode(
    database: databases.Database,
) -> None:
    first = await admit(database)
    await end(database, ago=timedelta(days=1))
    second = await admit(database, starts_at=START + timedelta(days=1))
    investigation = await resolve(database, starts_at=START + timedelta(hours=1))
    assert investigation is not None
    assert investigation.id == first
    summary = await queue.summary(database, second)
    assert summary.alert_status == "firing"
    assert await resolve(database, starts_at=START - timedelta(hours=1)) is None


@pytest.mark.parametrize(("on_resolved", "ending"), [("Continue", None), ("Cancel", "Cancelled")])
async def test_chain_decides_whether_a_resolved_alert_cancels_its_investigation(
    database: databases.Database, on_resolved: Literal["Continue", "Cancel"], ending: str | None
) -> None:
    made = await queue.received(database, subject())
    identity = await queue.admit(database, made, chain=queue.chain(onResolved=on_resolved))
    await resolve(database)
    summary = await queue.summary(database, identity)
    assert summary.ending == ending


async def test_large_alert_data_reaches_only_its_own_object(database: databases.Database) -> None:
    for _ in range(2):
        where = {"namespace": "tarsy", "object_name": "web-crash", "name": "5ef"}
        await queueing.keep_large(database, **where, data="large" * 1000, summary="web-0 dies")
    other, rightful, late = large(name="other"), large(), large()
    identities = [await queue.admit(database, admitted) for admitted in (other, rightful, late)]
    summaries = [await queue.summary(database, identity) for identity in identities]
    assert [(summary.ending, summary.reason) for summary in summaries] == [
        ("Failed", "AlertDataNotFound"),
        (None, ""),
        ("Failed", "AlertDataNotFound"),
    ]
    (logged,) = await queue.log(database, other.metadata.uid)
    assert logged.entry == entries.RunEnded(ending="Failed", reason="AlertDataNotFound", message=summaries[0].message)
    assert summaries[0].message == "alertDataRef '5ef' does not exist: another object used it, or it has expired"
    assert summaries[0].chain_name is None
    assert [summary.alert_summary for summary in summaries] == ["", "web-0 dies", ""]
    snapshot = (await queue.opened(database, await queue.claimed(database))).record.snapshot
    assert (snapshot.id, snapshot.alert_data) == (rightful.metadata.uid, "large" * 1000)
    assert await queue.claim(database) is None


async def test_unused_large_data_is_deleted_after_an_hour(database: databases.Database) -> None:
    await queueing.keep_large(database, namespace="tarsy", object_name="web-crash", name="5ef", data="large")
    await queueing.drop_unused_large(database)
    await queue.execute(database, "UPDATE large_alerts SET created_at = clock_timestamp() - interval '61 minutes'")
    await queueing.drop_unused_large(database)
    await queue.admit(database, large())
    assert await work.queued(database) == 0
