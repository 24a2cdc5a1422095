"""Questions about ended investigations: each is a later run of the same log, queued like the first one.

A question is queued in one statement, under the lock of the `work` row, so that only one of several simultaneous ones
is queued. The row of `investigations` is locked second, for `gone_at`: a locked row is read in its present state, and
not in that of the beginning of the statement.

The entry of the question has the number of the next claim, so that the first claim of a question is not a takeover.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.resources import chains
from tarsy.store.base import audit, databases, notify, visibility
from tarsy.store.queue import work
from tarsy.store.reads import snapshots
from tarsy.transcript import entries, entry_versions

Refusal = Literal["unknown", "running", "asked", "gone", "full"]
"""The reason of a refusal: the investigation is unknown; it has not ended; another question is open; its object was
deleted; the queue is full."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The investigation that a question is about; only `gone` can change."""

    namespace: str
    name: str
    chain_name: str | None
    chain: chains.Spec | None
    """The chain snapshot; None if the investigation was refused, so that no question is possible."""
    gone: bool
    """Whether the store knows that its object has left the cluster."""


_SUBJECT = text(f"""
  SELECT namespace, name, chain_name, chain_version, CAST(chain AS text) AS chain, gone_at
  FROM investigations WHERE id = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def subject(database: databases.Database, investigation: UUID) -> Subject | None:
    """Return the investigation, or None if there is none. Raises UnreadableError if its chain cannot be read."""
    rows = await database.run(_SUBJECT, id=investigation)
    if not rows:
        return None
    (row,) = rows
    return Subject(
        namespace=row.namespace,
        name=row.name,
        chain_name=row.chain_name,
        chain=None if row.chain_name is None else snapshots.chain_of(row.chain, version=row.chain_version),
        gone=row.gone_at is not None,
    )


_ASK = text(f"""
  WITH held AS (
    SELECT work.investigation, run, state, gone_at IS NOT NULL AS gone
    FROM work JOIN investigations ON id = work.investigation
    WHERE work.investigation = :investigation AND {visibility.VISIBLE}
    FOR NO KEY UPDATE OF work, investigations
  ), queued AS (
    SELECT count(*) AS others FROM work WHERE state = 'queued' AND NOT suspend AND unreadable IS NULL
  ), asked AS (
    UPDATE work
    SET run = work.run + 1, state = 'queued', queued_at = clock_timestamp(), log_seq = log_seq + 1,
      owner = NULL, token = NULL, lease_until = NULL, attempts_without_progress = 0,
      cancel = NULL, suspend = false, unreadable = NULL, queue = ''
    FROM held, queued
    WHERE work.investigation = held.investigation AND held.state = 'ended' AND NOT gone AND others < :max_queued
    RETURNING work.investigation, work.run, log_seq, claims
  ), new_run AS (
    INSERT INTO runs (investigation, number, kind) SELECT investigation, run, 'chat' FROM asked
  ), entry AS (
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body)
    SELECT investigation, log_seq, clock_timestamp(), claims + 1, :kind, :version, run, '', '', CAST(:body AS json)
    FROM asked
  ), audited AS (
    INSERT INTO audit (who, address, action, investigation, namespace, namespace_uid, name)
    SELECT :who, :address, 'chat', id, namespace, namespace_uid, name
    FROM asked JOIN investigations ON id = asked.investigation
  )
  SELECT held.run, held.state, held.gone, asked.run AS asked FROM held LEFT JOIN asked ON true
""")  # noqa: S608 - our own text


async def ask(
    database: databases.Database, investigation: UUID, question: str, *, max_queued: int, by: audit.Caller
) -> int | Refusal:
    """Queue a masked question and write its audit row; return the number of its run, or the refusal."""
    entry = entry_versions.encode(entries.RunStarted(run=0, question=question))  # the run's number is a column
    rows = await database.run(
        _ASK,
        investigation=investigation,
        max_queued=max_queued,
        kind=entry.kind,
        version=entry.version,
        body=entry.body,
        who=by.who,
        address=by.address,
    )
    if not rows:
        return "unknown"
    (row,) = rows
    if row.asked is None:
        return _refusal(run=row.run, state=row.state, gone=row.gone)
    await notify.send(database, (notify.WORK, ""))
    number: int = row.asked
    return number


def _refusal(*, run: int, state: str, gone: bool) -> Refusal:
    if gone:
        return "gone"
    if state != "ended":
        return "running" if run == entries.INVESTIGATION else "asked"
    return "full"


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """A cancelled question."""

    run: int
    phase: work.Cancelled


_LATEST = text(f"""
  SELECT run FROM work JOIN investigations ON id = investigation
  WHERE investigation = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def cancel(
    database: databases.Database, investigation: UUID, *, by: audit.Caller
) -> Cancelled | Literal["unknown", "none"]:
    """Cancel the open question and write the audit row; return "none" if no question is open."""
    rows = await database.run(_LATEST, id=investigation)
    if not rows:
        return "unknown"
    (row,) = rows
    if row.run == entries.INVESTIGATION:
        return "none"
    phase = await work.cancel(database, investigation, why="user", run=row.run, by=by)
    if phase is None:
        return "none"
    return Cancelled(run=row.run, phase=phase)
