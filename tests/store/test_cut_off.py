"""Stages that the end of the run ended: they are not counted as ended by themselves; on a real Postgres."""

from __future__ import annotations

from typing import Literal
from uuid import UUID

from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import listing
from tarsy.transcript import entries

STAGES = ("look", "think")
LATE = "not finished within the 60 s of activeDeadlineSeconds"


async def begun(database: databases.Database, *ends: entries.Entry) -> UUID:
    """An investigation whose first stage has ended, and whose second one is open."""
    chain = queue.chain(stages=[{"name": name, "agent": "KubernetesAgent"} for name in STAGES])
    identity = await queue.admit(database, chain=chain)
    journal = await queue.opened(database, await queue.claimed(database))
    await journal.commit(stories.stage_started("look"))
    await journal.commit(entries.StageEnded(stage="look", outcome="Failed", message=LATE))
    await journal.commit(stories.stage_started("think"), stories.started(stage="think"))
    if ends:
        await journal.commit(*ends)
    return identity


def ends(ending: Literal["Failed", "TimedOut"], reason: str) -> tuple[entries.Entry, ...]:
    return (
        entries.ExecutionEnded(execution="one", outcome=ending, error=LATE),
        entries.StageEnded(stage="think", outcome=ending, message=LATE),
        entries.RunEnded(ending=ending, reason=reason, message=LATE),
    )


async def stored(database: databases.Database) -> dict[str, bool | None]:
    rows: list[tuple[str, bool | None]] = await queue.rows(database, "SELECT name, cut_off FROM stages")
    return dict(rows)


async def progress(database: databases.Database, identity: UUID) -> str:
    (listed,) = (await listing.page(database, listing.Query(namespaces={"tarsy": ""}), limit=9)).items
    assert listed.progress == (await queue.summary(database, identity)).progress
    return listed.progress


async def test_open_stage_is_neither(database: databases.Database) -> None:
    identity = await begun(database)
    assert await stored(database) == {"look": False, "think": None}
    assert await progress(database, identity) == "1/2"


async def test_deadline_cuts_off_open_stages_but_not_an_ended_stage_with_the_same_message(
    database: databases.Database,
) -> None:
    identity = await begun(database, *ends("TimedOut", "DeadlineExceeded"))
    assert await stored(database) == {"look": False, "think": True}
    assert await progress(database, identity) == "1/2"


async def test_stage_that_ends_together_with_its_run_ends_by_itself(database: databases.Database) -> None:
    identity = await begun(database, *ends("Failed", "StagesFailed"))
    assert await stored(database) == {"look": False, "think": False}
    assert await progress(database, identity) == "2/2"


async def test_cancel_without_a_worker_cuts_off_what_is_open(database: databases.Database) -> None:
    identity = await begun(database)
    await queue.let_leases_pass(database)
    assert await work.cancel(database, identity, why="user") == "Cancelled"
    assert await stored(database) == {"look": False, "think": True}
    assert await progress(database, identity) == "1/2"
