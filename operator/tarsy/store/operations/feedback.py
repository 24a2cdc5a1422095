"""Feedback by request: a person says whether an ended investigation was right, changes it, withdraws it.

Each change is audited with its verdicts. The audit has no other words of it, because it outlives a purge. A hold keeps
feedback as it keeps the transcript; its author may still change and withdraw it.

The rows of the investigation are locked, as for a deletion, so that no feedback is added to a purged transcript.
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.store.base import audit, databases
from tarsy.store.operations import deletion
from tarsy.store.reads import verdicts
from tarsy.transcript import entries

Refusal = Literal["unknown", "running"]
"""The reason of a refusal: the investigation is unknown, deleted or purged; it has not ended."""

_FORMER = text("SELECT verdict, cause, note FROM feedback WHERE investigation = :id AND author = :author")
_GIVE = text("""
  INSERT INTO feedback (investigation, author, verdict, cause, note, given_at, changed_at)
  VALUES (:id, :author, :verdict, :cause, :note, clock_timestamp(), clock_timestamp())
  ON CONFLICT (investigation, author) DO UPDATE
  SET verdict = :verdict, cause = :cause, note = :note, changed_at = clock_timestamp()
""")
_WITHDRAW = text("DELETE FROM feedback WHERE investigation = :id AND author = :author RETURNING verdict")
_CHANGED = text("UPDATE work SET revision = revision + 1 WHERE investigation = :id")
"""For live lists and pages; the status in the cluster does not show feedback."""


async def give(
    database: databases.Database,
    investigation: UUID,
    *,
    verdict: verdicts.Verdict,
    cause: str,
    note: str,
    by: audit.Caller,
) -> Refusal | None:
    """Store the feedback of `by`, in place of its former one, and write the audit row; or return the refusal.

    `cause` and `note` are masked. A repeat changes nothing.
    """
    async with database.begin() as connection:
        if (refusal := await _lock(connection, investigation)) is not None:
            return refusal
        key = {"id": investigation, "author": by.who}
        former: Any = (await connection.execute(_FORMER, key)).one_or_none()
        if former is None or tuple(former) != (verdict, cause, note):
            detail = {"verdict": verdict, "former_verdict": former and former.verdict}
            await audit.write(connection, investigation, "feedback", by=by, detail=detail)
            await connection.execute(_GIVE, {**key, "verdict": verdict, "cause": cause, "note": note})
            await connection.execute(_CHANGED, {"id": investigation})
    return None


async def withdraw(database: databases.Database, investigation: UUID, *, by: audit.Caller) -> Refusal | None:
    """Delete the feedback of `by` and write the audit row, or return the refusal. Without feedback, change nothing."""
    async with database.begin() as connection:
        if (refusal := await _lock(connection, investigation)) is not None:
            return refusal
        key = {"id": investigation, "author": by.who}
        if withdrawn := (await connection.execute(_WITHDRAW, key)).one_or_none():
            detail = {"former_verdict": withdrawn.verdict}
            await audit.write(connection, investigation, "feedback/withdraw", by=by, detail=detail)
            await connection.execute(_CHANGED, {"id": investigation})
    return None


async def _lock(connection: sqlalchemy_asyncio.AsyncConnection, investigation: UUID) -> Refusal | None:
    """Lock the rows of an investigation, and return the reason why it takes no feedback now, or None."""
    locked = await deletion.lock(connection, investigation)
    if locked is None or locked.deleted_at or locked.purged_at:
        return "unknown"
    return "running" if locked.run == entries.INVESTIGATION and locked.state != "ended" else None
