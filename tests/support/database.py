"""A Postgres server for the whole run, and an empty database for each test."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from concurrent import futures

import pytest
from tarsy.store.base import databases, schema, tables
from tarsy_dev import postgres as launcher

EMPTY = f"""
    SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
    DO $$
    DECLARE written text;
    BEGIN
      SELECT string_agg(quote_ident(name), ', ') INTO written
      FROM unnest(ARRAY[{", ".join(f"'{name}'" for name in tables.metadata.tables)}]) AS names (name)
      WHERE pg_relation_size(quote_ident(name)) > 0;
      IF written IS NOT NULL THEN EXECUTE 'TRUNCATE ' || written || ' RESTART IDENTITY CASCADE'; END IF;
    END $$;
    UPDATE alembic_version SET version_num = '{schema.NEWEST}', serves = ARRAY['{schema.NEWEST}']
"""  # noqa: S608 - names of ours
"""What empties the database of the test before; to truncate what nobody has written costs most of the time."""


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[launcher.Server]:
    """The run's one server. A test that kills or stops it makes its own: `postgres.Server(log=...)`."""
    with launcher.Server(log=tmp_path_factory.mktemp("postgres") / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def database_url(postgres: launcher.Server) -> Iterator[str]:
    """The URL (postgresql://...) of a fresh, empty database."""
    name = f"test_{secrets.token_hex(4)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def migrated(postgres: launcher.Server) -> str:
    """The name of the one database at the newest schema; to make one for each test takes a third of a second."""
    create_migrated(postgres, "migrated")
    return "migrated"


@pytest.fixture
def migrated_url(postgres: launcher.Server, migrated: str) -> str:
    """The URL of a database at the newest schema, empty: whoever still used it is thrown out."""
    postgres.execute(EMPTY, database=migrated)
    return postgres.url(migrated)


@pytest.fixture
def no_autovacuum(postgres: launcher.Server) -> Iterator[None]:
    """Let the test's transactions be the only ones: what is settled, and the next number, depend on all of a server."""
    postgres.execute("ALTER SYSTEM SET autovacuum = off")
    postgres.execute("SELECT pg_reload_conf()")
    while postgres.execute("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"):
        pass
    yield
    postgres.execute("ALTER SYSTEM RESET autovacuum")
    postgres.execute("SELECT pg_reload_conf()")


@pytest.fixture
async def database(migrated_url: str) -> AsyncIterator[databases.Database]:
    """An empty database, at the newest schema."""
    database = databases.Database(migrated_url)
    yield database
    await database.close()


def create_migrated(server: launcher.Server, name: str) -> str:
    """Create a database at the newest schema on any server; its URL."""

    async def migrate() -> None:
        database = databases.Database(url)
        await schema.migrate(database)
        await database.close()

    url = server.create_database(name)
    with futures.ThreadPoolExecutor(1) as thread:  # whoever asks for it may be on a loop
        thread.submit(asyncio.run, migrate()).result()
    return url
