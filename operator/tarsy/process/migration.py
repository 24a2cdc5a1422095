"""`tarsy migrate`: the database brought to the newest schema, once it is there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tarsy.config.load import settings
from tarsy.process import errors
from tarsy.store.base import databases, schema

MIGRATE_SECONDS = 1.0
"""Between two looks at a database that is to be migrated and is not there yet."""
_NOT_YET = (settings.SecretError, databases.StoreDownError)


async def migrate(url: settings.Secret, *, patience: float, waits: Callable[[str], None]) -> str:
    """Bring the database at `url` to the newest schema; a StartError says why it cannot be done.

    A newer version's that serves this one, too, stays as it is, and its revision is returned; else "". For `patience`
    seconds what is not there yet is waited for: the file with the URL, the server, the database and the way into it.
    `waits` is told what that is, whenever it is something else.
    """
    until = time.monotonic() + patience
    last_problem = ""
    while True:
        try:
            return await _migrate(url)
        except _NOT_YET as error:
            why = error.why if isinstance(error, databases.NotOpenError) else str(error)
            if time.monotonic() >= until:
                raise errors.StartError(why) from error
            if why != last_problem:
                last_problem = why
                waits(last_problem)
        await asyncio.sleep(MIGRATE_SECONDS)


async def _migrate(url: settings.Secret) -> str:
    database = databases.Database(url.read(), statement_seconds=schema.MIGRATION_SECONDS)
    try:
        at = await schema.migrate(database)
    except schema.SchemaError as error:
        raise errors.StartError(str(error)) from error
    finally:
        await database.close()
    return "" if at == schema.NEWEST else at
