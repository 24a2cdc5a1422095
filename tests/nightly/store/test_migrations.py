"""Migrations beside others who use the database."""

from __future__ import annotations

import asyncpg
import pytest
from support import revisions
from tarsy.store.base import databases, schema


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
