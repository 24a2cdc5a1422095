"""One-time codes and sessions of browsers; on a real Postgres."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta

import sqlalchemy
from support import queue
from tarsy.store.base import audit, databases
from tarsy.store.fleet import browser_sessions

HOUR = timedelta(hours=1)
JANE = {"name": "jane", "groups": ["sre"]}
add_code = functools.partial(
    browser_sessions.add_code, namespace="tarsy", by=audit.Caller(who="Jane", address="192.0.2.1")
)
begin = functools.partial(browser_sessions.begin, namespace="tarsy", address="192.0.2.2")


async def expire(database: databases.Database) -> None:
    await database.run(sqlalchemy.text("UPDATE browser_sessions SET until = until - interval '1 day'"))


async def count(database: databases.Database) -> int:
    rows = await database.run(sqlalchemy.text("SELECT count(*) AS number FROM browser_sessions"))
    return int(rows[0].number)


async def test_sign_in_code_begins_one_session(database: databases.Database) -> None:
    await add_code(database, b"code", identity=JANE, session_lifetime=HOUR)

    session = await begin(database, code=b"code", session=b"session")
    again = await begin(database, code=b"code", session=b"other")

    assert session is not None
    assert session.identity == JANE | {"author": "Jane"}
    assert again is None
    assert await browser_sessions.read(database, b"session") == session
    assert await browser_sessions.read(database, b"other") is None


async def test_concurrent_browsers_with_one_code_begin_one_session(database: databases.Database) -> None:
    await add_code(database, b"code", identity=JANE, session_lifetime=HOUR)

    sessions = await asyncio.gather(*(begin(database, code=b"code", session=bytes([number])) for number in range(8)))

    assert len([session for session in sessions if session]) == 1
    assert await count(database) == 1


async def test_an_expired_code_begins_no_session(database: databases.Database) -> None:
    await add_code(database, b"code", identity=JANE, session_lifetime=HOUR)
    await expire(database)

    assert await begin(database, code=b"code", session=b"session") is None


async def test_code_is_not_accepted_as_session_nor_session_as_code(database: databases.Database) -> None:
    await add_code(database, b"code", identity=JANE, session_lifetime=HOUR)
    assert await browser_sessions.read(database, b"code") is None

    await begin(database, code=b"code", session=b"session")
    assert await begin(database, code=b"session", session=b"other") is None


async def test_a_session_ends_when_it_expires_and_when_it_is_ended(database: databases.Database) -> None:
    for name in (b"one", b"two"):
        await add_code(database, name + b" code", identity=JANE, session_lifetime=HOUR)
        await begin(database, code=name + b" code", session=name)

    await browser_sessions.end(database, b"one", namespace="tarsy", address="192.0.2.3")
    assert await browser_sessions.read(database, b"one") is None
    assert await browser_sessions.read(database, b"two") is not None

    await expire(database)
    assert await browser_sessions.read(database, b"two") is None


async def test_audit_has_each_code_sign_in_and_sign_out_once(database: databases.Database) -> None:
    await add_code(database, b"code", identity=JANE, session_lifetime=HOUR)
    for _ in range(2):  # the second time, neither is there any more
        await begin(database, code=b"code", session=b"session")
    for _ in range(2):
        await browser_sessions.end(database, b"session", namespace="tarsy", address="192.0.2.3")

    rows = await queue.rows(database, "SELECT who, address, action, namespace, name FROM audit ORDER BY at")
    assert rows == [
        ("Jane", "192.0.2.1", "session-code", "tarsy", ""),
        ("Jane", "192.0.2.2", "sign-in", "tarsy", ""),
        ("Jane", "192.0.2.3", "sign-out", "tarsy", ""),
    ]


async def test_a_new_code_deletes_what_has_expired(database: databases.Database) -> None:
    for number in range(5):
        await add_code(database, bytes([number]), identity=JANE, session_lifetime=HOUR)
    await expire(database)

    await add_code(database, b"new", identity=JANE, session_lifetime=HOUR)

    assert await count(database) == 1
