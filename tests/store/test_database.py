"""What a database that goes away looks like from here."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
import sqlalchemy
from tarsy.store import database as databases
from tarsy_dev import postgres as launcher
from tarsy_dev import proxy

SECRET = "pod web-0 in namespace shop"
ECHO = sqlalchemy.text("SELECT CAST(:text AS text)")


async def test_errors_tell_nothing_of_what_was_stored(tmp_path: Path) -> None:
    """They are logged, and answered to webhooks."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        database = databases.Database(server.create_database("test"))
        await database.ping()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        with pytest.raises(databases.StoreDownError) as stale:  # the connection of before
            async with database.single() as connection:
                await connection.execute(ECHO, {"text": SECRET})
        assert str(stale.value) == "the database cannot serve just now: connection is closed"
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            async with database.single() as connection:
                await connection.execute(sqlalchemy.text("SELECT x, CAST(:text AS text)"), {"text": SECRET})
        assert SECRET not in str(refused.value)
        await database.close()


async def test_a_database_that_falls_silent_is_known_to_be_away_within_seconds(postgres: launcher.Server) -> None:
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        database = databases.Database(postgres.url().replace(f":{postgres.port}/", f":{between.port}/"))
        await database.ping()
        between.blackhole()
        asked = time.monotonic()
        with pytest.raises(databases.StoreDownError, match="the database cannot be reached: TimeoutError"):
            await database.ping()
        assert time.monotonic() - asked < 3 * databases.PING_SECONDS
        between.heal()
        await database.ping()
        await database.close()
