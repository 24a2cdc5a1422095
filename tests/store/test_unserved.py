"""Alerts that no chain takes: counted by type over all replicas, in a table that no sender can fill, and told once."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from support import queue
from tarsy.store.base import databases
from tarsy.store.intake import unserved

HOUR = timedelta(hours=1)


async def counted(database: databases.Database) -> dict[str, int]:
    return {row.alert_type: row.alerts for row in await unserved.read(database)}


async def test_replicas_count_together(database: databases.Database) -> None:
    counts = {"KubePodCrashLooping": 2, "Watchdog": 1}
    await asyncio.gather(*(unserved.count(database, counts, namespace="shop") for _ in range(10)))
    await unserved.count(database, {"Watchdog": 50}, namespace="shop")
    assert list((await counted(database)).items()) == [("Watchdog", 60), ("KubePodCrashLooping", 20)]
    first, _ = await unserved.read(database)
    assert first.since <= first.last_at


async def test_sender_that_makes_up_types_fills_no_table(database: databases.Database) -> None:
    await unserved.count(database, {"early": 1}, namespace="shop")
    batches = [
        {f"{batch}-{number}": 1 for number in range(unserved.TYPES_MAX)} | {unserved.OTHERS: 9_000}
        for batch in range(10)
    ]
    await asyncio.gather(*(unserved.count(database, batch, namespace="shop") for batch in batches))
    counts = await counted(database)
    assert len(counts) == unserved.TYPES_MAX + 1
    assert list(counts)[-1] == unserved.OTHERS
    assert sum(counts.values()) == 1 + 10 * 9_100
    await unserved.count(database, {"early": 1, "late": 1}, namespace="shop")
    assert (await counted(database))["early"] == 2, "a type that has its place keeps it"
    assert "late" not in await counted(database)


async def test_alert_types_of_an_earlier_day_are_dropped_and_free_their_slots(database: databases.Database) -> None:
    await unserved.count(database, {f"old-{number}": 1 for number in range(unserved.TYPES_MAX)}, namespace="shop")
    await queue.execute(database, "UPDATE unserved_alerts SET hour = hour - interval '25 hours'")
    await unserved.count(database, {"new": 1}, namespace="shop")
    assert await counted(database) == {"new": 1}
    await queue.execute(database, "UPDATE unserved_alerts SET hour = hour - interval '25 hours'")
    await unserved.drop_old(database)
    assert await queue.rows(database, "SELECT alert_type FROM unserved_alerts") == [("new",)]


async def test_one_process_posts_the_notice_and_the_next_notice_follows_an_hour_later(
    database: databases.Database,
) -> None:
    assert await unserved.claim_notice(database, every=HOUR) is None
    await unserved.count(database, {"Watchdog": 1}, namespace="shop")
    taken = await asyncio.gather(*(unserved.claim_notice(database, every=HOUR) for _ in range(5)))
    assert len([at for at in taken if at]) == 1
    await unserved.count(database, {"Watchdog": 1}, namespace="shop")
    assert await unserved.claim_notice(database, every=HOUR) is None, "the hour is not over"
    await queue.execute(database, "UPDATE notices SET told_at = told_at - interval '1 hour'")
    assert await unserved.claim_notice(database, every=HOUR)
    await queue.execute(database, "UPDATE notices SET told_at = told_at - interval '1 hour'")
    await queue.execute(database, "UPDATE unserved_alerts SET last_at = last_at - interval '2 hours'")
    assert await unserved.claim_notice(database, every=HOUR) is None, "nothing has come since"


async def test_notice_that_could_not_be_posted_is_posted_by_the_next_process(database: databases.Database) -> None:
    await unserved.count(database, {"Watchdog": 1}, namespace="shop")
    assert await unserved.claim_notice(database, every=HOUR)
    await unserved.release_notice(database)
    assert await unserved.claim_notice(database, every=HOUR)


async def test_namespaces_are_counted_apart_and_none_fills_the_table_of_another(database: databases.Database) -> None:
    flood = {f"type-{number}": 1 for number in range(unserved.TYPES_MAX)} | {unserved.OTHERS: 7}
    await unserved.count(database, flood, namespace="noisy")
    await unserved.count(database, {"late": 1}, namespace="noisy")
    await unserved.count(database, {"late": 2, "Watchdog": 1}, namespace="shop")
    rows = [row for row in await unserved.read(database) if row.namespace == "shop"]
    assert [(row.alert_type, row.alerts) for row in rows] == [("late", 2), ("Watchdog", 1)]
    assert await unserved.read_counts(database) == {"noisy": unserved.TYPES_MAX + 8, "shop": 3}
