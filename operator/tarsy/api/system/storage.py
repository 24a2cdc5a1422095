"""The size of the database, and what retention is about to delete."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Depends

from tarsy.auth import permissions
from tarsy.config.model import platforms
from tarsy.serve import strict
from tarsy.store.base import databases
from tarsy.store.operations import retention, storage
from tarsy.views import storage as views


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Reads the size of the database."""

    database: databases.Database
    platform: Callable[[], platforms.Platform]
    """The platform file in force."""

    async def read(self) -> views.Storage:
        """Read sizes, times and what is due."""
        platform = self.platform()
        due = None
        tables, oldest = await storage.read_tables(self.database), await storage.read_oldest(self.database)
        with contextlib.suppress(databases.TooLongError):
            due = await retention.due(self.database, retention.rule(platform))
        return views.storage_view(tables, oldest, due, dry_run=platform.retention.dry_run)


def routes(storage: Storage, may: permissions.Access) -> APIRouter:
    """Return the route `GET /api/v1/system/storage`."""
    router = strict.router(prefix="/api/v1/system", tag="system", dependencies=[Depends(may.see_setup)])

    @router.get("/storage", operation_id="readStorage")
    async def read() -> views.Storage:
        """Return the size of each table, the oldest rows, and how much is due by `retention`."""
        return await storage.read()

    return router
