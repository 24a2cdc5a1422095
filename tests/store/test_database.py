"""A database that goes away, as a process sees it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
import sqlalchemy
from support.database import behind_proxy
from tarsy.store.base import databases, schema
from tarsy.store.queue import heartbeats
from tarsy_dev import patience, proxy
from tarsy_dev import postgres as launcher

SECRET = "pod web-0 in namespace shop"
ECHO = sqlalchemy.text("SELECT CAST(:text AS text)")
ENDS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = 'tarsy'"
)


async def test_errors_do_not_quote_stored_text(tmp_path: Path) -> None:
    """They are logged, and answered to webhooks."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        database = databases.Database(server.create_database("test"))
        await schema.missing(database)
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        assert (await database.run(ECHO, text=SECRET))[0].text == SECRET, "the connection of before is not used again"
        async with database.begin() as connection:
            await connection.execute(ECHO, {"text": SECRET})
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        with pytest.raises(databases.StoreDownError) as stale:
            async with database.begin() as connection:
                await connection.execute(ECHO, {"text": SECRET})
        assert str(stale.value) == "the database cannot serve now: connection is closed"
        with pytest.raises(sqlalchemy.exc.DBAPIError) as refused:
            async with database.begin() as connection:
                await connection.execute(sqlalchemy.text("SELECT x, CAST(:text AS text)"), {"text": SECRET})
        assert SECRET not in str(refused.value)
        with pytest.raises(asyncpg.UndefinedColumnError) as refused_alone:
            await database.run(sqlalchemy.text("SELECT x, CAST(:text AS text)"), text=SECRET)
        assert SECRET not in str(refused_alone.value)
        assert databases.is_for_all_values(refused_alone.value)
        await database.close()


async def test_silent_database_counts_as_unavailable_within_seconds(postgres: launcher.Access) -> None:
    async with behind_proxy(postgres.url()) as (database, between):
        await schema.missing(database)
        between.blackhole()
        async with patience.limit():  # a statement has 30 s
            with pytest.raises(databases.StoreDownError, match="the database cannot be reached: TimeoutError"):
                await schema.missing(database)
        between.heal()
        await schema.missing(database)


async def test_request_with_a_short_limit_fails_soon_while_a_commit_waits(postgres: launcher.Access) -> None:
    async with behind_proxy(postgres.url()) as (database, between):

        async def commit() -> None:
            async with database.begin() as connection:
                await connection.execute(ECHO, {"text": "x"})

        async def read_snapshot() -> None:
            async with database.snapshot() as connection:
                await connection.execute(ECHO, {"text": "x"})

        async def run() -> None:
            await database.run(ECHO, text="x")

        for each in (commit, read_snapshot, run):
            await each()
        between.blackhole()
        waiting = asyncio.create_task(commit())
        for each in (commit, read_snapshot, run, run):
            async with patience.limit():  # a statement has 30 s
                with databases.time_limit(0.2), pytest.raises(databases.StoreDownError, match="cannot be reached"):
                    await each()
        assert not waiting.done()
        between.heal()
        for each in (commit, read_snapshot, run):
            await each()
        await waiting


@pytest.mark.parametrize("use", ["run", "run_within", "begin", "heartbeat"])
async def test_database_that_announces_its_shutdown_counts_as_unavailable_at_once(
    use: str, postgres: launcher.Access, migrated_url: str
) -> None:
    """A server that shuts down says so to each idle connection, and closes it a moment later."""
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        between.holds_ends = True
        url = migrated_url.replace(f":{postgres.port}/", f":{between.port}/")
        database = databases.Database(url)
        heartbeat = heartbeats.Heartbeat(url, lease=timedelta(seconds=60))

        async def run() -> None:
            match use:
                case "run":
                    await database.run(ECHO, text="x")
                case "run_within":
                    await database.run_within(60, ECHO, text="x")
                case "begin":
                    async with database.begin() as connection:
                        await connection.execute(ECHO, {"text": "x"})
                case "heartbeat":
                    await heartbeat.beat({})

        await run()
        bytes_before = between.bytes_down
        other = await asyncpg.connect(migrated_url)
        await other.execute(ENDS)
        await between.wait_for(lambda: between.bytes_down > bytes_before)
        await other.execute("SELECT 1")  # whose answer comes after it
        await other.close()
        with pytest.raises(databases.StoreDownError):
            await run()
        between.holds_ends = False
        await run()
        await heartbeat.close()
        await database.close()


async def test_missing_and_invalid_values_are_not_reported_as_an_outage(database: databases.Database) -> None:
    with pytest.raises(asyncpg.DataError) as refused:
        await database.run(sqlalchemy.text("SELECT CAST(:number AS integer)"), number="no number")
    assert not databases.is_for_all_values(refused.value)
    with pytest.raises(asyncpg.DivisionByZeroError) as wrong:
        await database.run(sqlalchemy.text("SELECT 1 / CAST(:number AS integer)"), number=0)
    assert not databases.is_for_all_values(wrong.value)


async def test_cut_off_client_leaves_no_database_connection(database: databases.Database) -> None:
    observer = databases.Database(database.url)
    for _ in range(3):
        waiting = asyncio.gather(*(database.run(SLEEP) for _ in range(20)))
        async with patience.limit():
            while not (await observer.run(ASLEEP))[0].count:
                pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await observer.close()
    async with patience.limit():  # the slow statement takes 30 s
        assert len(await asyncio.gather(*(database.run(ECHO, text="a") for _ in range(40)))) == 40


SLEEP = sqlalchemy.text("SELECT pg_sleep(30)")
STANDING = sqlalchemy.text("""
  SELECT pg_backend_pid() AS pid, current_setting('statement_timeout') AS timeout,
    current_setting('transaction_read_only') AS read_only
""")
"""Which connection it is, and what was left on it."""
ASLEEP = sqlalchemy.text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%' AND state = 'active'"
)


async def test_slow_statement_is_stopped_by_the_database_and_its_connection_stays_usable(
    database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    (first,) = await database.run(STANDING)
    assert (first.timeout, first.read_only) == ("0", "off")
    for _ in range(3):
        with pytest.raises(databases.TooLongError, match=r"within 0\.05 s"):
            await database.run_within(0.05, SLEEP)
        assert list(await database.run(STANDING)) == [first]
    (row,) = await database.run_within(60, ECHO, text="a")
    assert row.text == "a"
    assert list(await database.run(STANDING)) == [first]
    assert caplog.records == [], "the pool found a transaction that was left open"


async def test_failed_statement_with_a_limit_leaves_no_open_transaction(
    database: databases.Database, caplog: pytest.LogCaptureFixture
) -> None:
    for failing, values, error in (
        ("SELECT 1 / CAST(:number AS integer)", {"number": 0}, asyncpg.DivisionByZeroError),
        ("SELECT CAST(:number AS integer)", {"number": "no number"}, asyncpg.DataError),
        ("DELETE FROM investigations", {}, databases.StoreDownError),  # as by a server that has become a standby
    ):
        with pytest.raises(error):
            await database.run_within(60, sqlalchemy.text(failing), **values)
        (row,) = await database.run(STANDING)
        assert (row.timeout, row.read_only) == ("0", "off")
    assert caplog.records == [], "the pool found a transaction that was left open"


async def test_a_statement_that_the_server_itself_cuts_off_may_be_tried_again(database: databases.Database) -> None:
    """57014: a statement_timeout that the database has, or an administrator's pg_cancel_backend."""
    slow = sqlalchemy.text("SELECT pg_sleep(20)")
    limited = databases.Database(f"{database.url}?statement_timeout=50")

    async def begin() -> None:
        async with limited.begin() as connection:
            await connection.execute(slow)

    for ask in (lambda: limited.run(slow), begin):
        with pytest.raises(databases.StoreDownError):
            await ask()
    await limited.close()
