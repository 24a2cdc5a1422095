"""A database at the newest schema, on any server."""

from __future__ import annotations

import asyncio
from concurrent import futures

from tarsy.store.base import databases, schema
from tarsy_dev import postgres

TEMPLATE = "template_migrated"
"""The template that the workers' ones are copies of; no test uses it."""


def prepare(server: postgres.Access) -> None:
    """Make the template on a new server, and let nothing but the tests' own statements change a plan: no autovacuum."""
    server.execute("ALTER SYSTEM SET autovacuum = off")
    server.execute("SELECT pg_reload_conf()")
    while server.execute("SELECT 1 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'"):
        pass
    create(server, TEMPLATE)


def create(server: postgres.Access, name: str) -> str:
    """Create a database at the newest schema on any server; its URL."""

    async def migrate() -> None:
        database = databases.Database(url)
        await schema.migrate(database)
        await database.close()

    url = server.create_database(name)
    with futures.ThreadPoolExecutor(1) as thread:  # the caller may be on a loop
        thread.submit(asyncio.run, migrate()).result()
    return url
