"""The queue and the fence: claim, release, cancel, suspend, end.

An investigation has one row of `work`. A claim locks it with `FOR UPDATE SKIP LOCKED` and writes a new token into it.
Every later write of the worker checks the token, so a worker that has lost its lease cannot write, however late it
wakes. Each statement that writes to an investigation locks this row first, and one that writes to several locks them in
the order of their ids or passes over those that are locked, because two orders of locks would deadlock.
Leases expire by the database's clock only. A running row whose lease has expired is claimed like a queued one: a
takeover is an ordinary claim.

Runs without a worker are ended and suspended here too, under the same lock and with their entries in the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy import errors
from tarsy.resources import investigations
from tarsy.store import log
from tarsy.store.base import audit, databases, notify, tables, visibility
from tarsy.store.queue import claim_filter, turns
from tarsy.store.reads import phase_rules
from tarsy.transcript import entries, ports

StopRequest = phase_rules.Cancellation | Literal["suspend"]
"""A request to a running investigation: to end, or to pause after its next commit."""

Cancelled = Literal["Cancelled", "Cancelling"]
"""The phase after a cancel: a run without a worker ends at once, any other is stopped by its worker."""


class BusyError(errors.TemporaryError):
    """Other writers were faster; the same claim may succeed in a moment."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one investigation, until it is claimed again."""

    investigation: UUID
    token: UUID
    run: int
    """The number of the run."""
    attempts: int
    """The number of claims of the run that were not released, including this one."""
    attempts_without_progress: int
    """The number of claims since the last commit, including this one. If it is high, the run may crash its workers."""
    log_seq: int
    """The number of the log's last entry: the next commit's precondition."""
    joined: int
    """The number of the last alert that has joined the investigation; 0 if none has."""
    cancel: phase_rules.Cancellation | None
    """The reason, if the run was cancelled while it had no worker."""
    age: float
    """Seconds since the run's first claim, without suspensions."""
    waited: float
    """Seconds from the admission of the investigation to the run's first claim."""
    is_takeover: bool
    """Whether another claim had not ended, but its lease had."""
    name: str
    """The object's namespace/name."""
    alert_type: str
    chain: str
    """The chain's name."""


_STATUS_CHANGED = "revision = revision + CAST(work.run = 0 AS integer), stale = stale OR work.run = 0"
"""The assignments of each change that the status shows; it shows run 0, and not questions."""

_CLAIM = text(f"""
  WITH RECURSIVE {turns.NEXT}, first AS (
    SELECT next.*, namespace, name, alert_type, chain_name, admitted_at,
      CAST(:checked AS text[]) IS NULL OR next.run > 0 OR chain_hash IS NULL OR chain_hash = ANY(:checked) AS is_checked
    FROM next JOIN investigations ON id = next.investigation
  ), {turns.TAKEN}, started AS (
    UPDATE runs
    SET started_at = coalesce(started_at, clock_timestamp()),
      suspended_for = suspended_for + CASE
        WHEN suspended_at IS NULL OR started_at IS NULL THEN interval '0'
        ELSE clock_timestamp() - greatest(suspended_at, started_at) END,
      suspended_at = NULL, attempts = attempts + 1
    FROM first
    WHERE is_checked AND (abandoned IS NOT NULL OR EXISTS (SELECT FROM taken))
      AND runs.investigation = first.investigation AND number = first.run
    RETURNING started_at, suspended_for, attempts
  ), claimed AS (
    UPDATE work
    SET state = 'running', owner = :owner, token = gen_random_uuid(), lease_until = clock_timestamp() + :lease,
        claims = claims + 1, attempts_without_progress = attempts_without_progress + 1, unreadable = NULL,
        passed_over_since = NULL, {_STATUS_CHANGED}
    FROM first, started
    WHERE work.investigation = first.investigation
    RETURNING work.investigation, token, work.run, started.attempts, attempts_without_progress, log_seq, joined, cancel,
      extract(epoch FROM clock_timestamp() - started_at - suspended_for) AS age,
      extract(epoch FROM started_at - admitted_at) AS waited, first.state = 'running' AS is_takeover,
      first.namespace || '/' || first.name AS name, first.alert_type, coalesce(first.chain_name, '') AS chain
  )
  SELECT claimed.*, (SELECT investigation FROM first WHERE NOT is_checked) AS unchecked,
    claimed.investigation IS NULL AND EXISTS (SELECT FROM possible) AS waits
  FROM (VALUES (1)) AS one_row LEFT JOIN claimed ON true
""")  # noqa: S608 - our own text


_LOCK_CLAIMS = text("SELECT pg_advisory_xact_lock(:key)")
_CLAIMS_KEY = 0x746172737971  # "tarsyq": with a limit of running ones, processes claim one after the other
_RUNNING = text("SELECT count(*) FROM work WHERE state = 'running' AND lease_until >= clock_timestamp()")


async def claim(
    database: databases.Database,
    *,
    owner: UUID,
    lease: timedelta,
    build: str,
    max_running: int = 0,
    only: claim_filter.ClaimFilter | None = None,
) -> Claim | None:
    """Claim the first investigation in the order of `turns`, for the process `owner`, for the time `lease`.

    `build` states which logs the program can read (`record.build`). `only` passes over runs that the worker cannot do.
    Return None if none waits, if the chains of all that wait are at their limits, or if `max_running` (0: no limit) run
    already in all processes. Raises BusyError if other claims were faster, and `claim_filter.UncheckedChainError` if
    the worker has to check a snapshot first.
    """
    values = {"owner": owner, "lease": lease, "build": build, **claim_filter.values(only)}
    row: Any
    if max_running:
        async with database.begin() as connection:
            await connection.execute(_LOCK_CLAIMS, {"key": _CLAIMS_KEY})
            if await connection.scalar(_RUNNING) >= max_running:
                return None
            row = (await connection.execute(_CLAIM, values)).one()
    else:
        (row,) = await database.run(_CLAIM, **values)
    if row.investigation is None:
        if row.unchecked is not None:
            raise claim_filter.UncheckedChainError(row.unchecked)
        if row.waits:
            raise BusyError("the waiting rows are locked, or their chain's turn was taken, by other writers")
        return None
    return Claim(
        investigation=row.investigation,
        token=row.token,
        run=row.run,
        attempts=row.attempts,
        attempts_without_progress=row.attempts_without_progress,
        log_seq=row.log_seq,
        joined=row.joined,
        cancel=row.cancel,
        age=float(row.age),
        waited=float(row.waited),
        is_takeover=row.is_takeover,
        name=row.name,
        alert_type=row.alert_type,
        chain=row.chain,
    )


_LAST_ENTRY = text("SELECT log_seq FROM work WHERE investigation = :investigation AND token = :token")


async def last_entry(database: databases.Database, claim: Claim) -> int | None:
    """Return the number of the log's last entry; None if `claim` is no longer held."""
    rows = await database.run(_LAST_ENTRY, investigation=claim.investigation, token=claim.token)
    return rows[0].log_seq if rows else None


_QUEUED = text("SELECT count(*) FROM work WHERE state = 'queued' AND NOT suspend AND unreadable IS NULL")


async def queued(database: databases.Database) -> int:
    """Return the number of investigations that wait for a worker."""
    (row,) = await database.run(_QUEUED)
    count: int = row.count
    return count


_OBSERVE = text(f"""
  WITH held AS (
    SELECT investigation, run, state FROM work
    WHERE investigation = :investigation
      AND EXISTS (
        SELECT 1 FROM investigations WHERE id = :investigation AND generation < :generation AND {visibility.VISIBLE}
      )
    FOR NO KEY UPDATE
  ), seen AS (
    UPDATE investigations SET generation = :generation, ttl_seconds = CAST(:ttl AS bigint)
    FROM held WHERE id = held.investigation AND generation < :generation AND {visibility.VISIBLE}
    RETURNING id
  ), stopped AS (
    UPDATE runs SET suspended_at = coalesce(suspended_at, clock_timestamp())
    FROM held, seen
    WHERE runs.investigation = seen.id AND number = 0 AND held.run = 0 AND held.state = 'queued' AND :suspend
  )
  UPDATE work SET suspend = :suspend AND run = 0, revision = revision + 1, stale = true
  FROM seen WHERE investigation = id
  RETURNING investigation
""")  # noqa: S608 - our own text


async def observe(database: databases.Database, manifest: investigations.AlertInvestigation) -> None:
    """Store the mutable fields of an admitted object's spec, if its generation is new.

    `suspend` pauses a queued run at once, and a running one when its worker has released it; the clock goes on with the
    next claim. It does not pause questions, because the spec is about run 0. A known generation takes no lock, because
    claims pass over locked rows.
    """
    seen = await database.run(
        _OBSERVE,
        investigation=UUID(manifest.metadata.uid),
        generation=manifest.metadata.generation,
        ttl=manifest.spec.ttl_seconds_after_finished,
        suspend=bool(manifest.spec.suspend),
    )
    if seen:
        uid = manifest.metadata.uid
        await notify.send(database, (notify.CANCEL, uid), (notify.WORK, ""), (notify.STATUS, uid))


_CANCEL = text(f"""
  WITH open AS (
    SELECT investigation, cancel AS known,
      state IN ('queued', 'parked') OR lease_until < clock_timestamp() AS has_no_worker
    FROM work
    WHERE investigation = :id AND run = coalesce(CAST(:run AS integer), run) AND state <> 'ended'
    FOR NO KEY UPDATE
  ), stopped AS (
    UPDATE work SET cancel = :why, {_STATUS_CHANGED}
    FROM open WHERE work.investigation = open.investigation AND known IS NULL
  )
  SELECT known, has_no_worker FROM open
""")  # noqa: S608 - our own text


_LOCK = text("SELECT 1 FROM work WHERE investigation = :id FOR NO KEY UPDATE")
"""A statement of its own: one that has waited for the lock sees other tables as they were before."""
_FIRES = text("""
  WITH RECURSIVE originals AS (
    SELECT id, retry_of FROM investigations WHERE id = :id
    UNION
    SELECT known.id, known.retry_of FROM investigations AS known JOIN originals ON known.id = originals.retry_of
  )
  SELECT EXISTS (SELECT FROM identities JOIN originals ON id = investigation WHERE status = 'firing')
""")


async def cancel(
    database: databases.Database,
    investigation: UUID,
    *,
    why: phase_rules.Cancellation,
    run: int = entries.INVESTIGATION,
    by: audit.Caller | None = None,
) -> Cancelled | None:
    """Cancel a run. If it is queued or parked, or its lease has expired, it ends here; otherwise its worker ends it.

    Return None if the run is not open, or if `why` is that its alerts resolved, and one has joined or fires again
    meanwhile. `by` is the caller of the API; the audit has the first one. A second cancel ends the run here if its
    worker has died meanwhile, and changes nothing else.
    """
    async with database.begin() as connection:
        if why == "resolved":
            await connection.execute(_LOCK, {"id": investigation})
            if await connection.scalar(_FIRES, {"id": investigation}):
                return None
        cancelled = await _cancel(connection, investigation, why=why, run=run, by=by)
    _tell_end(database, investigation, cancelled)
    if cancelled:
        await notify.send(database, (notify.CANCEL, str(investigation)), (notify.STATUS, str(investigation)))
    return cancelled


_GONE = text("UPDATE investigations SET gone_at = clock_timestamp() WHERE id = :id AND gone_at IS NULL")


async def gone(database: databases.Database, investigation: UUID) -> None:
    """Record that the object has left the cluster, and cancel the open run, even if it is a question.

    Both happen under the lock under which questions are queued, so no question is queued in between.
    """
    async with database.begin() as connection:
        await connection.execute(_LOCK, {"id": investigation})
        cancelled = await _cancel(connection, investigation, why="deleted", run=None)
        await connection.execute(_GONE, {"id": investigation})
    _tell_end(database, investigation, cancelled)
    if cancelled:
        await notify.send(database, (notify.CANCEL, str(investigation)), (notify.STATUS, str(investigation)))


def _tell_end(database: databases.Database, investigation: UUID, cancelled: Cancelled | None) -> None:
    if cancelled == "Cancelled":  # otherwise its worker ends it
        database.run_ended(investigation)


async def _cancel(
    connection: sqlalchemy_asyncio.AsyncConnection,
    investigation: UUID,
    *,
    why: phase_rules.Cancellation,
    run: int | None,
    by: audit.Caller | None = None,
) -> Cancelled | None:
    """Cancel the run if it is open; None means the latest run."""
    row = (await connection.execute(_CANCEL, {"id": investigation, "run": run, "why": why})).one_or_none()
    if row is None:
        return None
    if by is not None and (row.known is None or row.has_no_worker):
        await audit.write(connection, investigation, "chat/cancel" if run else "cancel", by=by)
    if row.has_no_worker:
        await _end_cancelled(connection, investigation, row.known or why)
        return "Cancelled"
    return "Cancelling"


_IS_STRANDED = """((state = 'running' AND lease_until < clock_timestamp() AND (cancel IS NOT NULL OR suspend))
      OR (state = 'parked' AND cancel IS NOT NULL))"""  # the latter after a cancel by a build that parks no runs
_NOT_PARKED = "state = 'queued', wake_at = NULL, wait_reason = NULL, wait_message = NULL"
_STRANDED = text(f"""
  WITH due AS (
    SELECT investigation FROM work
    WHERE state = 'parked' AND wake_at <= clock_timestamp() AND NOT suspend AND cancel IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
  ), woken AS (
    UPDATE work SET {_NOT_PARKED}, {_STATUS_CHANGED} FROM due WHERE work.investigation = due.investigation
    RETURNING work.investigation
  )
  SELECT investigation, true AS is_woken FROM woken
  UNION ALL SELECT investigation, false FROM work WHERE {_IS_STRANDED}
""")  # noqa: S608 - our own text
_HOLD_STRANDED = text(f"""
  SELECT cancel FROM work WHERE investigation = :id AND {_IS_STRANDED} FOR NO KEY UPDATE SKIP LOCKED
""")  # noqa: S608 - our own text
_SUSPEND = text("""
  WITH stranded AS (
    UPDATE work
    SET state = 'queued', token = NULL, lease_until = NULL, revision = revision + 1, stale = true
    WHERE investigation = :id
    RETURNING investigation, run
  )
  UPDATE runs SET suspended_at = clock_timestamp()
  FROM stranded WHERE runs.investigation = stranded.investigation AND number = run
""")


async def sweep(database: databases.Database) -> int:
    """End or suspend, on request, runs whose worker has died, and queue the parked runs whose time has come.

    No worker may ever claim them. Return the number of ended runs. Each has its own transaction, so several processes
    may sweep at once.
    """
    ended = 0
    rows = await database.run(_STRANDED)
    if woken := [(notify.STATUS, str(row.investigation)) for row in rows if row.is_woken]:
        await notify.send(database, (notify.WORK, ""), *woken)
    for stranded in (row for row in rows if not row.is_woken):
        identity = {"id": stranded.investigation}
        async with database.begin() as connection:
            held = (await connection.execute(_HOLD_STRANDED, identity)).one_or_none()
            if held is None:  # another process has locked it
                continue
            if held.cancel is None:
                await connection.execute(_SUSPEND, identity)
            else:
                await _end_cancelled(connection, stranded.investigation, held.cancel)
                ended += 1
        if held.cancel is not None:
            database.run_ended(stranded.investigation)
        await notify.send(database, (notify.STATUS, str(stranded.investigation)))
    return ended


CANCELLED_MESSAGES: dict[phase_rules.Cancellation, str] = {
    "user": "cancelled by request",
    "deleted": "cancelled because its object was deleted",
    "resolved": "cancelled because its alert resolved, as the chain's onResolved says",
}


def cancelled(why: phase_rules.Cancellation) -> tuple[str, str]:
    """Return reason and message of a cancelled run's end."""
    return phase_rules.CANCELLED_REASONS[why], CANCELLED_MESSAGES[why]


async def _end_cancelled(
    connection: sqlalchemy_asyncio.AsyncConnection, investigation: UUID, why: phase_rules.Cancellation
) -> None:
    """End a cancelled run without a worker; its `work` row is locked."""
    reason, message = cancelled(why)
    await end(connection, investigation, "Cancelled", reason=reason, message=message)


async def give_up(database: databases.Database, claim: Claim, *, reason: str, message: str) -> None:
    """End the claimed run as Failed, without reading its log, because that may crash its workers."""
    async with database.begin() as connection:
        rows = await connection.execute(
            text("SELECT 1 FROM work WHERE investigation = :id AND token = :token FOR NO KEY UPDATE"),
            {"id": claim.investigation, "token": claim.token},
        )
        held = rows.first()
        if held is not None:
            await end(connection, claim.investigation, "Failed", reason=reason, message=message)
    if held is not None:
        database.run_ended(claim.investigation)
    await notify.send(database, (notify.STATUS, str(claim.investigation)))


async def end(
    connection: sqlalchemy_asyncio.AsyncConnection,
    investigation: UUID,
    ending: entries.Outcome,
    *,
    reason: str,
    message: str,
) -> None:
    """End a run and its open stages and executions. The `work` row is locked; its worker can no longer write."""
    row = (
        await connection.execute(
            text("""
              UPDATE work
              SET log_seq = greatest(log_seq, (SELECT coalesce(max(seq), 0) FROM entries WHERE investigation = :id))
              WHERE investigation = :id
              RETURNING run, log_seq, token
            """),  # entries that an admin inserted must not prevent the end
            {"id": investigation},
        )
    ).one()
    open_in_run = {"id": investigation, "run": row.run}
    stages = await connection.execute(
        text("SELECT name FROM stages WHERE investigation = :id AND run = :run AND ended_at IS NULL"), open_in_run
    )
    executions = list(
        await connection.execute(
            text("SELECT id, stage FROM executions WHERE investigation = :id AND run = :run AND ended_at IS NULL"),
            open_in_run,
        )
    )
    ends: list[entries.Entry] = [
        entries.ExecutionEnded(execution=execution.id, outcome=ending, error=message) for execution in executions
    ]
    ends += [entries.StageEnded(run=row.run, stage=stage.name, outcome=ending, message=message) for stage in stages]
    ends.append(entries.RunEnded(run=row.run, ending=ending, reason=reason, message=message))
    places = {execution.id: (row.run, execution.stage) for execution in executions}
    statement, values = log.append_statement(
        [log.prepare(end) for end in ends],
        investigation=investigation,
        log_seq=row.log_seq,
        token=row.token,
        where=places.__getitem__,
        clear_token=True,
    )
    await connection.execute(statement, values)


_RELEASE = text(f"""
  WITH released AS (
    UPDATE work
    SET state = CASE WHEN CAST(:wait_reason AS text) IS NULL THEN 'queued' ELSE 'parked' END, token = NULL,
      lease_until = NULL, {_STATUS_CHANGED},
      wake_at = CAST(:wake_at AS timestamptz), wait_reason = :wait_reason, wait_message = CAST(:wait_message AS text),
      attempts_without_progress = greatest(attempts_without_progress - 1, 0),
      unreadable = CAST(:unreadable AS text),
      unreadable_by = CASE WHEN CAST(:unreadable AS text) IS NULL THEN unreadable_by
        ELSE array_append(array_remove(unreadable_by, CAST(:build AS text)), CAST(:build AS text)) END
    WHERE investigation = :investigation AND token = :token AND state = 'running'
    RETURNING investigation, run, suspend, cancel
  ), unattempted AS (
    UPDATE runs
    SET attempts = attempts - 1,
      suspended_at = CASE WHEN suspend OR coalesce(CAST(:unreadable AS text), :wait_reason) IS NOT NULL
        THEN clock_timestamp() END
    FROM released
    WHERE runs.investigation = released.investigation AND number = run
  )
  SELECT cancel FROM released
""")  # noqa: S608 - our own text


async def release(
    database: databases.Database,
    claim: Claim,
    *,
    unreadable: str | None = None,
    build: str = "",
    wait: ports.Wait | None = None,
) -> None:
    """Release an unfinished claim without counting it as an attempt: another worker may go on at once.

    A suspended run is not claimed, and its clock stops; a cancelled run ends. If the program `build` cannot read the
    log (`unreadable` is the reason), only other programs can claim the run, and the clock stops too. With `wait` the
    run is parked: its clock stops until it is claimed again, from the time `wait.until` on.
    """
    async with database.begin() as connection:
        released = await connection.execute(
            _RELEASE,
            {
                "investigation": claim.investigation,
                "token": claim.token,
                "unreadable": unreadable,
                "build": build,
                "wait_reason": wait and wait.reason,
                "wait_message": wait and wait.message,
                "wake_at": wait and wait.until,
            },
        )
        if (why := released.scalar_one_or_none()) is not None:
            await _end_cancelled(connection, claim.investigation, why)
    if why is not None:
        database.run_ended(claim.investigation)
    await notify.send(database, (notify.STATUS, str(claim.investigation)), (notify.WORK, ""))


_TRY_AGAIN = text(f"""
  WITH held AS (
    SELECT investigation FROM work WHERE {tables.IS_OPEN} AND :build = ANY(unreadable_by)
    ORDER BY investigation FOR NO KEY UPDATE
  )
  UPDATE work SET unreadable_by = array_remove(unreadable_by, :build)
  FROM held WHERE work.investigation = held.investigation
""")  # noqa: S608 - our own text


async def try_unreadable_again(database: databases.Database, *, build: str) -> None:
    """Let the program `build` claim again the runs that it could not read; a process does this once at its start."""
    await database.run(_TRY_AGAIN, build=build)


_STALE = text("""
  SELECT investigation FROM work JOIN investigations ON investigation = id
  WHERE stale AND (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
  ORDER BY work.queued_at LIMIT :limit
""")


async def stale(database: databases.Database, *, namespaces: Sequence[str] | None = None, limit: int) -> Sequence[UUID]:
    """Return investigations whose status in the cluster is out of date, the longest waiting first.

    `namespaces` are theirs; None is all.
    """
    return [row.investigation for row in await database.run(_STALE, namespaces=namespaces, limit=limit)]


_PROJECTED = text("UPDATE work SET stale = false WHERE investigation = :id AND revision = :revision")


async def projected(database: databases.Database, investigation: UUID, *, revision: int) -> None:
    """Record that the status in the cluster shows `revision`."""
    await database.run(_PROJECTED, id=investigation, revision=revision)
