"""Deletion by request, which can be undone: an investigation is hidden, restored, held, released.

A deleted investigation is hidden from all reads (`base.visibility`). It can be restored until it is purged, and stands
for its alert until then. Its object is deleted, too, and comes back by no restoration.

A hold keeps an investigation from deletion, by requests and by `retention`, and from the loss of its tool results.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.store.base import audit, databases
from tarsy.transcript import entries

Refusal = Literal["unknown", "running", "asked"]
"""The reason of a refusal: the investigation is unknown or purged; it has not ended; a question is open."""


@dataclass(frozen=True)
class Held:
    """The refusal of a deletion by a hold."""

    reason: str


_LOCK = text("""
  SELECT run, state, deleted_at, purged_at, gone_at, emptied_at, hold
  FROM work JOIN investigations ON id = work.investigation
  WHERE work.investigation = :id
  FOR NO KEY UPDATE OF work, investigations
""")


async def lock(connection: sqlalchemy_asyncio.AsyncConnection, investigation: UUID) -> Any | None:
    """Lock the rows of an investigation and return its state; None if there is none."""
    return (await connection.execute(_LOCK, {"id": investigation})).one_or_none()


def refusal(locked: Any) -> Refusal | Held | None:
    """Return the reason why a locked investigation may not be deleted now, or None."""
    if locked.state != "ended":
        return "running" if locked.run == entries.INVESTIGATION else "asked"
    return Held(locked.hold) if locked.hold is not None else None


_DELETE = text("""
  WITH queue_row AS (UPDATE work SET stale = false, revision = revision + 1 WHERE investigation = :id)
  UPDATE investigations SET deleted_at = clock_timestamp() WHERE id = :id
""")


async def delete(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Refusal | Held | None:
    """Hide an ended investigation and write the audit row, or return the refusal. A repeat changes nothing."""
    async with database.begin() as connection:
        locked = await lock(connection, investigation)
        if locked is None or locked.purged_at:
            return "unknown"
        if (reason := refusal(locked)) is not None:
            return reason
        if locked.deleted_at is None:
            await audit.write(connection, investigation, "delete", by=by)
            await connection.execute(_DELETE, {"id": investigation})
    return None


_RESTORE = text("""
  WITH restored AS (
    UPDATE investigations SET deleted_at = NULL, restored_at = clock_timestamp() WHERE id = :id RETURNING id, gone_at
  )
  UPDATE work SET revision = revision + 1, stale = gone_at IS NULL FROM restored WHERE investigation = id
""")


async def restore(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Literal["unknown"] | None:
    """Show a deleted investigation again and write the audit row; a repeat changes nothing.

    The period after which `retention` deletes it begins again.
    """
    async with database.begin() as connection:
        locked = await lock(connection, investigation)
        if locked is None or locked.purged_at:
            return "unknown"
        if locked.deleted_at is not None:
            await audit.write(connection, investigation, "restore", by=by)
            await connection.execute(_RESTORE, {"id": investigation})
    return None


_HOLD = text("UPDATE investigations SET hold = CAST(:reason AS text) WHERE id = :id")


async def hold(
    database: databases.Database, investigation: UUID, reason: str, *, by: audit.Caller
) -> Literal["unknown"] | None:
    """Keep an investigation, open, ended or deleted, from deletion, and write the audit row.

    Another reason replaces the former one; the same one changes nothing.
    """
    async with database.begin() as connection:
        locked = await lock(connection, investigation)
        if locked is None or locked.purged_at:
            return "unknown"
        if locked.hold != reason:
            await audit.write(connection, investigation, "hold", by=by, detail={"reason": reason})
            await connection.execute(_HOLD, {"id": investigation, "reason": reason})
    return None


async def release(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Literal["unknown"] | None:
    """End the hold of an investigation and write the audit row; without a hold, change nothing."""
    async with database.begin() as connection:
        locked = await lock(connection, investigation)
        if locked is None or locked.purged_at:
            return "unknown"
        if locked.hold is not None:
            await audit.write(connection, investigation, "release", by=by, detail={"reason": locked.hold})
            await connection.execute(_HOLD, {"id": investigation, "reason": None})
    return None


_STATE = text("SELECT deleted_at, hold FROM investigations WHERE id = :id AND purged_at IS NULL")


@dataclass(frozen=True, kw_only=True)
class State:
    """Whether an investigation is deleted or held."""

    deleted_at: datetime | None
    hold: str | None


async def state(database: databases.Database, investigation: UUID) -> State | None:
    """Return the state of an investigation, even if it is deleted; None if it is unknown or purged."""
    rows = await database.run(_STATE, id=investigation)
    return State(**rows[0]) if rows else None
