"""Reads of investigations, for people and programs: everything that the store knows of one."""

from __future__ import annotations

from http import HTTPStatus
from uuid import UUID

from tarsy.api import problems
from tarsy.store import database as databases
from tarsy.store import history


async def read(database: databases.Database, identity: UUID) -> history.Investigation:
    """Serve `GET /api/v1/investigations/{id}`; the id is the object's uid."""
    try:
        found = await history.read(database, identity)
    except databases.StoreDownError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    if found is None:
        raise problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")
    return found
