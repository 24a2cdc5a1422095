"""Reads of investigations, for people and programs: everything that the store knows of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from tarsy.api import problems
from tarsy.store import database as databases
from tarsy.store import history


class Investigation(BaseModel):
    """One investigation: its numbers, and every message, model call and tool call in the order of their commits."""

    summary: dict[str, Any]
    messages: Sequence[dict[str, Any]]
    llm_interactions: Sequence[dict[str, Any]]
    tool_interactions: Sequence[dict[str, Any]]


async def read(database: databases.Database, identity: UUID) -> Investigation:
    """Serve `GET /api/v1/investigations/{id}`; the id is the object's uid."""
    try:
        summary = await history.summary(database, identity)
        if summary is None:
            raise problems.Problem(HTTPStatus.NOT_FOUND, f"there is no investigation with id {identity}")
        return Investigation(summary=asdict(summary), **await history.transcript(database, identity))
    except databases.StoreDownError as error:
        raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
