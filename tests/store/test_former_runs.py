"""The last full investigation of an alert that comes again: one statement finds it, unless it is deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from support import queue, stories
from tarsy.store.base import audit, databases
from tarsy.store.operations import deletion, feedback, purge
from tarsy.store.queue import journal as journals
from tarsy.transcript import entries

START = datetime(2026, 11, 25, 7, tzinfo=UTC)
RULE = queue.RULE
DAY = 24 * 3600
ANNA = audit.Caller(who="anna", address="192.0.2.1")


async def investigated(
    database: databases.Database, number: int, *added: entries.Entry, fingerprint: str = "00000000000000aa"
) -> tuple[UUID, journals.PgJournal]:
    """Take an episode of the alert, and work on it; entries end it."""
    starts_at = START + timedelta(hours=number)
    received = await queue.received(
        database, queue.subject(f"web-{number}", fingerprint=fingerprint, startsAt=starts_at), rule=RULE
    )
    identity = await queue.admit(database, received)
    writing = await queue.opened(database, await queue.claimed(database))
    if added:
        await writing.commit(*added)
    return identity, writing


def unchanged(former: UUID) -> entries.RunEnded:
    return entries.RunEnded(
        ending="Completed", reason="Unchanged", final_analysis="as before", grounds="Inspected", former=str(former)
    )


async def test_former_run_is_the_newest_run_that_ended_with_its_own_result(database: databases.Database) -> None:
    first, _ = await investigated(database, 1, stories.run_ended())
    second, _ = await investigated(database, 2, stories.run_ended())
    third, _ = await investigated(database, 3, unchanged(second))
    await investigated(database, 4, stories.run_ended(), fingerprint="00000000000000bb")
    _, writing = await investigated(database, 5)
    former = await writing.former(DAY)
    assert former
    assert (former.record.snapshot.id, former.name, former.is_disputed) == (str(second), "web-2", False)
    assert former.record.ended
    assert (await queue.summary(database, third)).previous.id == second  # type: ignore[union-attr]
    assert (await queue.summary(database, second)).previous is None
    assert first != second


async def test_former_run_expires_by_the_end_time_of_the_full_run(database: databases.Database) -> None:
    first, _ = await investigated(database, 1, stories.run_ended())
    for number in range(2, 4):
        await investigated(database, number, unchanged(first))
    _, writing = await investigated(database, 4)
    assert await writing.former(3600)
    moved = "UPDATE investigations SET ended_at = ended_at - interval '1 hour' WHERE id = :id"
    await queue.execute(database, moved, id=first)
    assert await writing.former(3600) is None
    assert await writing.former(2 * 3600)


async def test_an_object_of_people_has_none(database: databases.Database) -> None:
    for name in ("a", "b"):
        await queue.admit(database, queue.subject(name, fingerprint="00000000000000aa", startsAt=START))
        writing = await queue.opened(database, await queue.claimed(database))
        assert await writing.former(DAY) is None
        await writing.commit(stories.run_ended())


@pytest.mark.parametrize("verdict", ["correct", "partly", "wrong"])
async def test_former_run_with_a_negative_verdict_is_marked_disputed(
    database: databases.Database, verdict: Any
) -> None:
    first, _ = await investigated(database, 1, stories.run_ended())
    assert await feedback.give(database, first, verdict=verdict, cause="", note="", by=ANNA) is None
    _, writing = await investigated(database, 2)
    former = await writing.former(DAY)
    assert former
    assert former.is_disputed is (verdict != "correct")


async def test_negative_verdict_on_an_unchanged_run_marks_its_full_run_disputed(database: databases.Database) -> None:
    first, _ = await investigated(database, 1, stories.run_ended())
    await feedback.give(database, first, verdict="correct", cause="", note="", by=ANNA)
    second, _ = await investigated(database, 2, unchanged(first))
    other, _ = await investigated(database, 3, stories.run_ended(), fingerprint="00000000000000bb")
    await feedback.give(database, other, verdict="wrong", cause="", note="", by=ANNA)
    _, writing = await investigated(database, 4)
    former = await writing.former(DAY)
    assert former
    assert not former.is_disputed
    await feedback.give(database, second, verdict="wrong", cause="", note="", by=ANNA)
    former = await writing.former(DAY)
    assert former
    assert former.is_disputed


async def test_deleted_run_is_not_found_and_no_older_run_replaces_it(database: databases.Database) -> None:
    await investigated(database, 1, stories.run_ended())
    second, _ = await investigated(database, 2, stories.run_ended())
    _, writing = await investigated(database, 3)
    former = await writing.former(DAY)
    assert former
    assert await deletion.delete(database, second, by=queue.CALLER) is None
    assert await writing.former(DAY) is None
    assert await deletion.restore(database, second, by=queue.CALLER) is None
    assert await writing.former(DAY)
    assert await purge.purge(database, second, by=queue.CALLER) is None
    assert await writing.former(DAY) is None
    assert await former.whole("one", "0.0") is None


async def test_full_results_of_a_former_run_are_read_until_retention_deletes_them(database: databases.Database) -> None:
    text = "x" * 100
    asked = stories.asks("k8s.get")
    first, working = await investigated(
        database,
        1,
        stories.stage_started(),
        stories.started(),
        asked,
        stories.ran(asked, text="x[cut]", full_text=text),
    )
    await working.commit(stories.ended(), stories.stage_ended(), stories.run_ended())
    _, writing = await investigated(database, 2)
    former = await writing.former(DAY)
    assert former
    assert former.record.executions["one"].whole_length("0.0") == 100
    assert await former.whole("one", "0.0") == text
    await queue.execute(database, "DELETE FROM tool_results WHERE investigation = :id", id=first)
    assert await former.whole("one", "0.0") is None
