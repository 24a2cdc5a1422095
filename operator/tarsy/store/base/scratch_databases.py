"""Databases that are made for a purpose and dropped after it, on a server that the user names."""

from __future__ import annotations

import secrets
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from tarsy.store.base import databases, schema


@dataclass(frozen=True, kw_only=True)
class Template:
    """A migrated database, of which copies are made: that takes less time than migrations."""

    url: str
    """The URL with which databases are created."""
    name: str

    @asynccontextmanager
    async def copied(self) -> AsyncIterator[str]:
        """Copy the database; yield the URL of the copy, and drop it at the end. Raises databases.StoreDownError."""
        async with _created(self.url, self.name.rpartition("_")[0], f' TEMPLATE "{self.name}"') as name:
            yield _address(self.url, name)


@asynccontextmanager
async def template(url: str, *, purpose: str) -> AsyncIterator[Template]:
    """Create a migrated database on the server of `url`, and drop it at the end.

    Raises databases.StoreDownError if the server is away, or if the user may not create databases.
    """
    async with _created(url, purpose, "") as name:
        database = databases.Database(_address(url, name), statement_seconds=schema.MIGRATION_SECONDS)
        try:
            await schema.migrate(database)
        finally:
            await database.close()
        yield Template(url=url, name=name)


@asynccontextmanager
async def _created(url: str, purpose: str, options: str) -> AsyncIterator[str]:
    name = f"{purpose}_{secrets.token_hex(6)}"
    await _run(url, f'CREATE DATABASE "{name}"{options}')
    try:
        yield name
    finally:
        await _run(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _address(url: str, name: str) -> str:
    return urllib.parse.urlsplit(url)._replace(path=f"/{name}").geturl()


async def _run(url: str, statement: str) -> None:
    connection = await databases.connect(url, command_timeout=schema.MIGRATION_SECONDS)
    try:
        await connection.execute(statement)
    except asyncpg.PostgresError as error:
        remedy = "its user needs the right CREATEDB"
        raise databases.StoreDownError(
            f"a database cannot be created or dropped ({error.sqlstate}): {remedy}"
        ) from error
    finally:
        await connection.close()
