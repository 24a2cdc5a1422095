"""A Postgres server for the whole run, and an empty database for each test."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
from tarsy.store import database as databases
from tarsy.store import tables
from tarsy_dev import postgres as launcher


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[launcher.Server]:
    """The run's one server. A test that kills or stops it makes its own: `postgres.Server(log=...)`."""
    with launcher.Server(log=tmp_path_factory.mktemp("postgres") / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def database_url(postgres: launcher.Server) -> str:
    """The URL (postgresql://...) of a fresh, empty database."""
    return postgres.create_database(f"test_{secrets.token_hex(4)}")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[databases.Database]:
    """A database of the test's own, at the newest schema."""
    database = databases.Database(database_url)
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture(scope="session")
def shared_database_url(postgres: launcher.Server) -> str:
    """The URL of a database for tests that are many and small."""
    return postgres.create_database("shared")


@pytest.fixture
async def emptied(shared_database_url: str) -> AsyncIterator[databases.Database]:
    """The database of many tests, at the newest schema, without what the test before has left."""
    database = databases.Database(shared_database_url)
    await database.migrate()
    async with database.begin() as connection:
        for table in reversed(tables.metadata.sorted_tables):
            await connection.execute(table.delete())
    yield database
    await database.close()
