"""Rows of the queue that commits and heartbeats read, in a storm that statistics know nothing of."""

from __future__ import annotations

import json

import pytest
import sqlalchemy
from support import plans, queue, stories
from tarsy.store import log
from tarsy.store.base import databases
from tarsy.store.queue import heartbeats, work

ENDED = 2000
OPEN = 50


@pytest.fixture
async def claims(database: databases.Database) -> list[work.Claim]:
    """The claims of two of many open runs, of which there was none when the table was analyzed."""
    await queue.execute(
        database,
        """INSERT INTO investigations (id, namespace, name, generation, alert_type, alert_data)
        SELECT gen_random_uuid(), 'tarsy', 'i-' || n, 1, 'T', '' FROM generate_series(1, :count) AS n""",
        count=ENDED,
    )
    await queue.execute(database, "INSERT INTO work (investigation, state) SELECT id, 'ended' FROM investigations")
    await queue.execute(database, "ANALYZE work")
    for _ in range(OPEN):
        await queue.admit(database)
    return [await queue.claimed(database) for _ in range(2)]


async def test_commit_reads_no_other_open_run(database: databases.Database, claims: list[work.Claim]) -> None:
    """A plan by the index of open runs reads all of them at each commit."""
    claim = claims[0]
    statement, values = log.append_statement(
        [log.prepare(entry) for entry in (stories.stage_started(), stories.started())],
        investigation=claim.investigation,
        log_seq=claim.log_seq,
        token=claim.token,
        where=lambda _: (0, "analysis"),
    )
    async with database.begin() as connection:
        explained = sqlalchemy.text(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement.text}")
        plan = (await connection.execute(explained, values)).scalar_one()[0]["Plan"]
        await connection.rollback()
    assert plans.rows_read(plan) == {"work_pkey": 1}


async def test_heartbeat_reads_no_run_of_others(database: databases.Database, claims: list[work.Claim]) -> None:
    """So its cost grows with the slots of its worker, and not with the queue."""
    connection = await databases.connect(database.url)
    try:
        plan = json.loads(
            await connection.fetchval(
                f"EXPLAIN (ANALYZE, FORMAT JSON) {heartbeats._BEAT}",
                [claim.token for claim in claims],
                queue.LEASE,
                [claim.investigation for claim in claims],
            )
        )[0]["Plan"]
    finally:
        await connection.close()
    assert set(plans.rows_read(plan).values()) == {2}, "each is locked, and then changed"
