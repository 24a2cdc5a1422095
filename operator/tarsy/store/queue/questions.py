"""Questions about what has ended: each a later run of the same log, queued like the first one.

A question is asked in one statement, under the lock of the `work` row: of several at once one is asked. The lock on the
investigation's facts comes second, and is there for `gone_at`: only what is locked is read as it is then, and not as it
was when the statement began.

The question's entry has the number of the claim that it waits for: to be claimed for the first time is no takeover.
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
from tarsy.transcript import entries

Refusal = Literal["unknown", "running", "asked", "gone", "full"]
"""Why nothing can be asked: there is no such investigation; it has not ended; another question is open; its object is
gone; too much is queued."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The subject of a question; only `gone` can change."""

    namespace: str
    name: str
    chain_name: str | None
    chain: chains.Spec | None
    """As it was when the investigation was admitted; None where it was refused, and nothing can be asked."""
    gone: bool
    """Its object is known to be gone."""


_SUBJECT = text(f"""
  SELECT namespace, name, chain_name, chain_version, CAST(chain AS text) AS chain, gone_at
  FROM investigations WHERE id = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def subject(database: databases.Database, investigation: UUID) -> Subject | None:
    """Return the facts of the investigation, or None if there is none.

    Raises UnreadableError if its chain is unreadable.
    """
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
      cancel = NULL, suspend = false, unreadable = NULL
    FROM held, queued
    WHERE work.investigation = held.investigation AND held.state = 'ended' AND NOT gone AND others < :max_queued
    RETURNING work.investigation, work.run, log_seq, claims
  ), begun AS (
    INSERT INTO runs (investigation, number, kind) SELECT investigation, run, 'chat' FROM asked
  ), told AS (
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body)
    SELECT investigation, log_seq, clock_timestamp(), claims + 1, :kind, :version, run, '', '', CAST(:body AS json)
    FROM asked
  ), audited AS (
    INSERT INTO audit (who, address, action, investigation, namespace, name)
    SELECT :who, :address, 'chat', id, namespace, name FROM asked JOIN investigations ON id = asked.investigation
  )
  SELECT held.run, held.state, held.gone, asked.run AS asked FROM held LEFT JOIN asked ON true
""")  # noqa: S608 - our own text


async def ask(
    database: databases.Database, investigation: UUID, question: str, *, max_queued: int, by: audit.Caller
) -> int | Refusal:
    """Queue a question, which is masked, and note in the audit who asks; the number of its run, or why it is not."""
    entry = entries.encode(entries.RunStarted(run=0, question=question))  # the number is a column
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
    """A question that is to stop."""

    run: int
    phase: work.Cancelled


_LATEST = text(f"""
  SELECT run FROM work JOIN investigations ON id = investigation
  WHERE investigation = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def cancel(
    database: databases.Database, investigation: UUID, *, by: audit.Caller
) -> Cancelled | Literal["unknown", "none"]:
    """Have the question that is open stopped, and note in the audit who asks; or why there is nothing to stop."""
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
