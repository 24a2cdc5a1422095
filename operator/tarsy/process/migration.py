"""`tarsy migrate`: migrate the database to the newest schema, once it can be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tarsy.config.load import settings
from tarsy.process import errors
from tarsy.store.base import databases, schema

RETRY_SECONDS = 1.0
"""Seconds between two attempts to migrate."""
_NOT_YET = (settings.SecretError, databases.StoreDownError)


async def migrate(url: settings.Secret, *, patience: float, waits: Callable[[str], None]) -> str:
    """Migrate the database at `url` to the newest schema; raises a StartError.

    A newer schema that also serves this version is not changed, and its revision is returned; else "". If the file with
    the URL is missing, or the database cannot be reached, this is tried again for `patience` seconds. `waits` is called
    with each new reason.
    """
    until = time.monotonic() + patience
    last_problem = ""
    while True:
        try:
            return await _migrate(url)
        except _NOT_YET as error:
            problem = error.why if isinstance(error, databases.NotOpenError) else str(error)
            if time.monotonic() >= until:
                raise errors.StartError(problem) from error
            if problem != last_problem:
                last_problem = problem
                waits(problem)
        await asyncio.sleep(RETRY_SECONDS)


async def _migrate(url: settings.Secret) -> str:
    database = databases.Database(url.read(), statement_seconds=schema.MIGRATION_SECONDS)
    try:
        at = await schema.migrate(database)
    except schema.SchemaError as error:
        raise errors.StartError(str(error)) from error
    finally:
        await database.close()
    return "" if at == schema.NEWEST else at


async def problem(url: settings.Secret) -> str:
    """Return why the database at `url` could not be migrated, without changing anything; "" if it could."""
    try:
        database = databases.Database(url.read())
    except settings.SecretError as error:
        return str(error)
    try:
        may_create = await schema.may_create(database)
    except databases.StoreDownError as error:
        return error.why if isinstance(error, databases.NotOpenError) else str(error)
    finally:
        await database.close()
    return "" if may_create else "its user may not create tables"
