"""One-time codes and sessions of browsers; on a real Postgres."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import sqlalchemy
from tarsy.store.base import databases
from tarsy.store.fleet import browser_sessions

HOUR = timedelta(hours=1)
JANE = {"name": "jane", "groups": ["sre"]}


async def expire(database: databases.Database) -> None:
    await database.run(sqlalchemy.text("UPDATE browser_sessions SET until = until - interval '1 day'"))


async def count(database: databases.Database) -> int:
    rows = await database.run(sqlalchemy.text("SELECT count(*) AS number FROM browser_sessions"))
    return int(rows[0].number)


async def test_a_code_begins_one_session(database: databases.Database) -> None:
    await browser_sessions.add_code(database, b"code", identity=JANE, session_lifetime=HOUR)

    session = await browser_sessions.begin(database, code=b"code", session=b"session")
    again = await browser_sessions.begin(database, code=b"code", session=b"other")

    assert session is not None
    assert session.identity == JANE
    assert again is None
    assert await browser_sessions.read(database, b"session") == session
    assert await browser_sessions.read(database, b"other") is None


async def test_two_browsers_with_one_code_begin_one_session(database: databases.Database) -> None:
    await browser_sessions.add_code(database, b"code", identity=JANE, session_lifetime=HOUR)

    sessions = await asyncio.gather(
        *(browser_sessions.begin(database, code=b"code", session=bytes([number])) for number in range(8))
    )

    assert len([session for session in sessions if session]) == 1
    assert await count(database) == 1


async def test_an_expired_code_begins_no_session(database: databases.Database) -> None:
    await browser_sessions.add_code(database, b"code", identity=JANE, session_lifetime=HOUR)
    await expire(database)

    assert await browser_sessions.begin(database, code=b"code", session=b"session") is None


async def test_code_is_not_accepted_as_session_nor_session_as_code(database: databases.Database) -> None:
    await browser_sessions.add_code(database, b"code", identity=JANE, session_lifetime=HOUR)
    assert await browser_sessions.read(database, b"code") is None

    await browser_sessions.begin(database, code=b"code", session=b"session")
    assert await browser_sessions.begin(database, code=b"session", session=b"other") is None


async def test_a_session_ends_when_it_expires_and_when_it_is_ended(database: databases.Database) -> None:
    for name in (b"one", b"two"):
        await browser_sessions.add_code(database, name + b" code", identity=JANE, session_lifetime=HOUR)
        await browser_sessions.begin(database, code=name + b" code", session=name)

    await browser_sessions.end(database, b"one")
    assert await browser_sessions.read(database, b"one") is None
    assert await browser_sessions.read(database, b"two") is not None

    await expire(database)
    assert await browser_sessions.read(database, b"two") is None


async def test_a_new_code_deletes_what_has_expired(database: databases.Database) -> None:
    for number in range(5):
        await browser_sessions.add_code(database, bytes([number]), identity=JANE, session_lifetime=HOUR)
    await expire(database)

    await browser_sessions.add_code(database, b"new", identity=JANE, session_lifetime=HOUR)

    assert await count(database) == 1
