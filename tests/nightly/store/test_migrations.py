"""The schema: how it comes to be, and that the tables in the code are the ones in the database."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import asyncpg
import pytest
from support import revisions
from tarsy.store.base import databases, schema
from tarsy_dev import patience


async def test_processes_that_migrate_at_once_take_turns(database_url: str) -> None:
    tarsy = [str(Path(sys.executable).with_name("tarsy")), "migrate"]
    holder = await asyncpg.connect(database_url)
    await holder.execute("SELECT pg_advisory_lock($1)", schema._MIGRATION_LOCK)
    processes = [
        await asyncio.create_subprocess_exec(
            *tarsy,
            env={**os.environ, "DATABASE_URL": database_url},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    try:
        async with patience.limit():
            waiting = "SELECT count(*) FROM pg_locks, pg_sleep(0.05) WHERE locktype = 'advisory' AND NOT granted"
            while await holder.fetchval(waiting) < len(processes):
                pass
            await holder.execute("SELECT pg_advisory_unlock_all()")
            said = await asyncio.gather(*(process.communicate() for process in processes))
    finally:
        await holder.close()
        for process in processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert [process.returncode for process in processes] == [0, 0], said
    database = databases.Database(database_url)
    assert await schema.missing(database) == ""
    await database.close()


async def test_migration_does_not_wait_for_a_table_that_others_use(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stop all statements behind it for as long as a dump takes. `tarsy migrate --wait` tries again."""
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.1)
    empty = databases.Database(database_url)
    async with empty.begin() as connection:
        await connection.run_sync(revisions.upgrade_to, "excerpts")
    dump = await asyncpg.connect(empty.url)
    try:
        await dump.execute("BEGIN; LOCK TABLE work IN ACCESS SHARE MODE")  # as pg_dump does
        with pytest.raises(databases.StoreDownError, match="lock timeout"):
            await schema.migrate(empty)
        await dump.execute("COMMIT")
        assert await schema.migrate(empty) == schema.NEWEST
    finally:
        await dump.close()
        await empty.close()
