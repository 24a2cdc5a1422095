"""What has changed since one looked: nothing is missed, whichever transaction ends first."""

from __future__ import annotations

from support import queue
from tarsy.store import changes
from tarsy.store import database as databases

NAMESPACES = {"tarsy": "uid-of-tarsy"}


async def since(database: databases.Database, changed: int, *, limit: int = 100) -> changes.Changes:
    found = await changes.since(database, changed=changed, namespaces=NAMESPACES, limit=limit)
    assert found is not None
    return found


async def test_what_is_admitted_and_claimed_has_changed_and_nothing_else(database: databases.Database) -> None:
    begin = await changes.now(database)
    one, other = await queue.admit(database), await queue.admit(database)
    found = await since(database, begin)
    assert [summary.id for summary in found.summaries] == [one, other]
    assert list(found.summaries) == [await queue.summary(database, one), await queue.summary(database, other)]
    assert not found.more
    claim = await queue.claimed(database)
    found = await since(database, found.horizon)
    assert [(summary.id, summary.phase) for summary in found.summaries] == [(claim.investigation, "Running")]
    assert (await since(database, found.horizon)).summaries == []


async def test_a_number_of_the_future_is_of_another_database(database: databases.Database) -> None:
    begin = await changes.now(database)
    assert await changes.since(database, changed=begin + 1000, namespaces=NAMESPACES, limit=1) is None


async def test_heads_tell_how_far_each_is(database: databases.Database) -> None:
    one, other = await queue.admit(database), await queue.admit(database)
    claim = await queue.claimed(database)
    heads = await changes.heads(database, [one, other, queue.OWNER])
    assert heads.keys() == {one, other}
    assert heads[claim.investigation] == changes.Head(log_seq=0, revision=2, run=0, state="running")
