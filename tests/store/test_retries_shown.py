"""Model requests that are sent again: shown while it lasts, and no progress; on a real Postgres."""

from __future__ import annotations

import re
from datetime import timedelta

from support import queue, stories
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import listing
from tarsy.transcript import entries

RETRY = entries.ModelRetried(
    execution="one",
    turn=0,
    provider="google-default",
    model="m",
    attempt=1,
    error="429 too\nfast",
    code="429",
    seconds=90.0,
)
BEGUN = (stories.stage_started(), stories.started())


async def retrying(database: databases.Database, claim: work.Claim) -> tuple[str, ...]:
    return (await queue.summary(database, str(claim.investigation))).retrying


async def test_model_retry_is_shown_until_its_answer_is_committed(database: databases.Database) -> None:
    await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*BEGUN)
    before = await queue.summary(database, str(claim.investigation))
    assert before.retrying == ()
    await writing.commit(RETRY)
    summary = await queue.summary(database, str(claim.investigation))
    (message,) = summary.retrying
    assert re.fullmatch(
        r"google-default: 429 too fast; the request is sent again at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", message
    )
    assert summary.shown_message == message
    query = listing.Query(namespaces={"tarsy": "any"})
    assert [row.message for row in (await listing.page(database, query, limit=1)).items] == [message], "in lists, too"
    assert summary.stale
    assert summary.revision > before.revision
    logged = (await queue.log(database, str(claim.investigation)))[-1]
    again = logged.at + timedelta(seconds=90)
    assert message.endswith(f"{again:%Y-%m-%dT%H:%M:%SZ}"), "by the clock of the database"
    assert summary.committed_at == logged.at
    await writing.commit(stories.answers())
    assert await retrying(database, claim) == ()


async def test_model_retry_is_not_shown_once_its_worker_is_gone(database: databases.Database) -> None:
    await queue.admit(database)
    claim = await queue.claimed(database)
    writing = await queue.opened(database, claim)
    await writing.commit(*BEGUN, RETRY)
    await writing.commit(RETRY)
    assert await retrying(database, claim)
    await work.release(database, claim)
    assert await retrying(database, claim) == ()
    await queue.claimed(database)
    assert await retrying(database, claim) == (), "the next worker has sent nothing again yet"


async def test_retry_is_no_progress(database: databases.Database) -> None:
    await queue.admit(database)
    claims = [await queue.claimed(database)]
    await (await queue.opened(database, claims[0])).commit(*BEGUN)
    for _ in range(3):
        await queue.let_leases_pass(database)
        claims.append(await queue.claimed(database))
        writing = await queue.opened(database, claims[-1])
        await writing.commit(RETRY)
    assert [claim.attempts_without_progress for claim in claims] == [1, 1, 2, 3]
    await writing.commit(RETRY, stories.answers())
    await queue.let_leases_pass(database)
    assert (await queue.claimed(database)).attempts_without_progress == 1
