"""Two changes of the same rows: the first has its locks and has not ended, the second waits for it; then both go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import sqlalchemy
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from support import queue
from tarsy.store.base import databases

T = TypeVar("T")


@contextlib.asynccontextmanager
async def holding(database: databases.Database, rows: str) -> AsyncIterator[sqlalchemy_asyncio.AsyncConnection]:
    """A transaction that has `rows`, as a FROM clause; whatever stops at them goes on when the block ends."""
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text(f"SELECT FROM {rows} FOR UPDATE"))
        yield connection


async def begin(database: databases.Database, change: Awaitable[T], *, number: int) -> asyncio.Future[T]:
    """Begin a change, and return once it waits as the one of this number."""
    begun = asyncio.ensure_future(change)
    await queue.blocked(database, number)
    return begun


async def in_order(database: databases.Database, first: Awaitable[Any], second: Awaitable[T], *, stopped_at: str) -> T:
    """Let the first change take its locks and stop at these rows, the second wait for the first, and both end."""
    async with holding(database, stopped_at):
        begun = await begin(database, first, number=1)
        later = await begin(database, second, number=2)
    await begun
    return await later
