"""A Postgres server, and an empty database for each test."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
import sqlalchemy
from support import migration, shared
from tarsy.store.base import databases, schema, tables
from tarsy_dev import postgres as launcher
from tarsy_dev import proxy

_COPIED: set[tuple[int, str]] = set()
"""Which copies there are, by the port of their server."""
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
"""Statements that empty the database of the test before; to truncate tables that were not written costs most of the
time.
"""


@pytest.fixture(scope="session")
def shared_postgres(request: pytest.FixtureRequest) -> launcher.Access:
    """The run's one server."""
    server: launcher.Access = shared.ask(request.config, "postgres")
    return server


@pytest.fixture(scope="session")
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[launcher.Server]:
    """A server of the worker's own, on which a test's transactions are the only ones; then `postgres` is this one.

    What is settled, and the next number of a transaction, depend on all transactions of a server, its own too.
    """
    with launcher.Server(log=tmp_path_factory.mktemp("postgres") / "postgres.log", durable=False) as server:
        migration.prepare(server)
        yield server


@pytest.fixture
def postgres(request: pytest.FixtureRequest) -> launcher.Access:
    """The database server of the test. One that kills or stops it makes another: `postgres.Server(log=...)`."""
    name = "own_postgres" if "own_postgres" in request.fixturenames else "shared_postgres"
    server: launcher.Access = request.getfixturevalue(name)
    return server


@pytest.fixture
def database_url(postgres: launcher.Access) -> Iterator[str]:
    """The URL (postgresql://...) of a fresh, empty database."""
    name = f"test_{secrets.token_hex(4)}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture
def migrated(postgres: launcher.Access, worker_id: str) -> str:
    """Return the name of the worker's one database at the newest schema; to make one for each test takes a tenth of a
    second.

    A connection that still uses it is not thrown out yet.
    """
    name = f"migrated_{worker_id}"
    if (postgres.port, name) not in _COPIED:
        postgres.create_database(name, template=migration.TEMPLATE)
        _COPIED.add((postgres.port, name))
    return name


@pytest.fixture
def migrated_url(postgres: launcher.Access, migrated: str) -> str:
    """Return the URL of a database at the newest schema, empty: each connection that still uses it is thrown out."""
    postgres.execute(EMPTY, database=migrated)
    return postgres.url(migrated)


@pytest.fixture
async def database(migrated_url: str) -> AsyncIterator[databases.Database]:
    """An empty database, at the newest schema."""
    database = databases.Database(migrated_url)
    yield database
    await database.close()


@contextlib.asynccontextmanager
async def behind_proxy(url: str) -> AsyncIterator[tuple[databases.Database, proxy.Proxy]]:
    """The database of a URL by way of a proxy, and the proxy."""
    address = sqlalchemy.make_url(url)
    async with proxy.serve("127.0.0.1", address.port or 0) as between:
        far = databases.Database(address.set(port=between.port).render_as_string(hide_password=False))
        try:
            yield far, between
        finally:
            await far.close()
