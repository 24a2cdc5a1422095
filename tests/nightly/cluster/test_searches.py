"""Many searches at once: other callers do not wait for them, and each search is told its outcome."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import asyncpg
import pytest
from support import apis, queue
from tarsy.api.investigations import lists
from tarsy.kube import client
from tarsy.store.base import databases, schema
from tarsy.store.intake import queueing
from tarsy.store.reads import listing
from tarsy_dev import patience

MANY = 30
LIST = "/api/v1/investigations"
SEARCH = {"q": '"restarts every"'}
HOLD = 7
# Searches alone have a limit of time, and those for phrases alone ask this function about a row.
HELD = f"""
  CREATE OR REPLACE FUNCTION tarsy_query(given text[]) RETURNS tsquery LANGUAGE plpgsql AS $$
  BEGIN
    IF current_setting('statement_timeout') <> '0' THEN
      PERFORM pg_advisory_xact_lock_shared({HOLD});
    END IF;
    RETURN phraseto_tsquery('simple', given[1]);
  END $$;
  SELECT pg_advisory_lock({HOLD})
"""
LET_GO = f"SELECT pg_advisory_unlock({HOLD})"
UNDER_WAY = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {HOLD} AND NOT granted"  # noqa: S608


@pytest.fixture
async def migrated(database_url: str) -> AsyncIterator[databases.Database]:
    """A database of the test's own, which it may change."""
    database = databases.Database(database_url)
    await schema.migrate(database)
    yield database
    await database.close()


@pytest.fixture
async def api(cluster: client.Cluster, migrated: databases.Database) -> AsyncIterator[aiohttp.ClientSession]:
    """The API on it, whose namespace has one investigation."""
    await queue.admit(migrated, queue.subject("it", alertData="pod web-0 restarts every minute"))
    await queue.execute(migrated, "UPDATE investigations SET namespace = :namespace", namespace=cluster.served.own)
    async with apis.served(apis.parts(cluster=cluster, database=migrated)) as session:
        yield session


@pytest.fixture
async def held(migrated: databases.Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection that keeps all searches for phrases waiting in the database, until it lets go."""
    connection = await databases.connect(migrated.url)
    await connection.execute(HELD)
    yield connection
    await connection.close()


async def ask(api: aiohttp.ClientSession, **parameters: str) -> tuple[int, Any, str | None]:
    """Status, body, and when to come again."""
    async with api.get(LIST, params=parameters) as response:
        return response.status, await response.json(content_type=None), response.headers.get("Retry-After")


async def test_at_most_two_searches_run_at_once_and_other_requests_do_not_wait(
    api: aiohttp.ClientSession,
    migrated: databases.Database,
    held: asyncpg.Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "WAIT_SECONDS", 1.5)
    monkeypatch.setattr(listing, "SEARCH_SECONDS", 60.0)
    async with patience.limit():
        searches = [asyncio.create_task(ask(api, **SEARCH)) for _ in range(MANY)]
        while await held.fetchval(UNDER_WAY) < lists.SEARCHES:
            await asyncio.wait(searches, timeout=0.01)
        status, page, _ = await ask(api)
        assert (status, [row["name"] for row in page["items"]]) == (200, ["it"])
        async with api.get("/readyz") as ready:
            assert ready.status == 200
        assert await queueing.admit(migrated, queue.admission(queue.subject("another")))
        while sum(search.done() for search in searches) < MANY - lists.SEARCHES:
            await asyncio.wait(searches, return_when=asyncio.FIRST_COMPLETED, timeout=0.01)
        assert await held.fetchval(UNDER_WAY) == lists.SEARCHES
        for status, problem, later in (search.result() for search in searches if search.done()):
            assert (status, problem["detail"], later) == (
                503,
                "2 searches are under way and others wait: try again later",
                "2",
            )
        await held.execute(LET_GO)
        answers = [await search for search in searches]
        assert collections.Counter(status for status, *_ in answers) == {
            200: lists.SEARCHES,
            503: MANY - lists.SEARCHES,
        }
        status, page, _ = await ask(api, **SEARCH)
        assert (status, [row["name"] for row in page["items"]]) == (200, ["it"])
