"""The queue and the fence: admit, claim, keep, look for what the status does not show yet.

One row of `work` an investigation. Claims take it with `FOR UPDATE SKIP LOCKED` and leave a fresh token in it; every
later write of the claimer is conditional on that token, so a worker that lost its lease cannot write, however late it
wakes. Whatever writes of an investigation locks this row first: two orders would be deadlocks. Expiry is compared by
the database's clock alone. A running row whose lease has passed is claimed like a queued
one: a takeover is nothing special.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal
from uuid import UUID

import asyncpg
import sqlalchemy
from sqlalchemy import func, literal, null, select, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.resources import chain as chains
from tarsy.resources import investigation as investigations
from tarsy.resources import naming
from tarsy.store import database as databases
from tarsy.store import notify, tables


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why an investigation ends before it begins."""

    reason: str
    """CamelCase, for conditions."""
    message: str


Cancellation = Literal["user", "deleted", "resolved"]
"""Why an investigation is to be stopped for good: `spec.cancel`, its object is gone, its alert resolved."""

StopRequest = Cancellation | Literal["suspend"]
"""What is wanted of a running investigation: that it stops for good, or after its next commit."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one investigation, until another claim of it."""

    investigation: UUID
    token: UUID
    attempts: int
    """Claims so far, this one included."""
    fruitless: int
    """Claims since the last commit, this one included: many say that the investigation ends its workers."""
    commits: int
    """Journal commits so far: the next one's precondition."""
    cancel: Cancellation | None
    """Set where it was cancelled while nobody ran it."""
    age: float
    """Seconds since its first claim, but for those in which it was suspended."""


async def admit(
    database: databases.Database,
    subject: investigations.AlertInvestigation,
    verdict: chains.AgentChain | Refusal,
    *,
    mask: Callable[[str], str],
) -> bool:
    """Queue `subject` with its chain as it is now, or record its refusal; False where it was admitted before.

    `mask` is applied to alert data that stands in the object; large data was masked when it was stored. A
    StoreDownError means that nothing was kept.
    """
    identity = UUID(subject.metadata.uid)
    inline = subject.spec.alert_data_ref is None
    async with database.single() if inline else database.begin() as connection:
        data, verdict = await _alert_data(connection, subject, verdict, mask=mask)
        facts = _facts(subject, data, mask=mask) | _verdict(verdict)
        added = (await connection.execute(_admission(subject, facts))).first() is not None
    if added:
        await notify.send(database, notify.WORK)
        await notify.send(database, notify.STATUS, str(identity))
    return added


def _admission(subject: investigations.AlertInvestigation, facts: dict[str, Any]) -> sqlalchemy.Executable:
    """All rows of an admission as one statement; it returns a row, or none where the investigation is there already."""
    insert = postgresql.insert(tables.investigations).values(**facts).on_conflict_do_nothing(index_elements=["id"])
    added = insert.returning(tables.investigations.c.id).cte("added")
    state = "ended" if "ending" in facts else "queued"
    suspend = bool(subject.spec.suspend)
    row = {
        "investigation": added.c.id,
        "state": literal(state),
        "priority": literal(subject.spec.priority or 0),
        "suspend": literal(suspend),
        "suspended_at": func.now() if suspend else null(),
    }
    queued = tables.work.insert().from_select(list(row), select(*row.values()))
    statement = select(added.c.id).add_cte(queued.cte("queued"))
    if state == "ended" or subject.spec.fingerprint is None or subject.spec.starts_at is None:
        return statement  # an episode that was refused is not over with: deleted, it may come again
    episode = select(
        added.c.id,
        literal(subject.metadata.namespace),
        literal(subject.spec.fingerprint),
        literal(naming.milliseconds(subject.spec.starts_at)),
    )
    identified = postgresql.insert(tables.identities).from_select(
        ["investigation", "namespace", "fingerprint", "starts_ms"], episode
    )
    # An episode that is forgotten, or was made again by hand, is from now on this investigation's.
    newest = identified.on_conflict_do_update(
        index_elements=tables.identities.primary_key,
        set_={"investigation": identified.excluded.investigation, "first_seen": func.now()},
    )
    return statement.add_cte(newest.cte("identified"))


async def _alert_data(
    connection: sqlalchemy_asyncio.AsyncConnection,
    subject: investigations.AlertInvestigation,
    verdict: chains.AgentChain | Refusal,
    *,
    mask: Callable[[str], str],
) -> tuple[str, chains.AgentChain | Refusal]:
    """The alert's text, from the object or, once, from where ingest left it."""
    reference = subject.spec.alert_data_ref
    if reference is None:
        return mask(subject.spec.alert_data or ""), verdict
    table = tables.large_alerts
    taken = table.delete().where(
        table.c.namespace == subject.metadata.namespace,
        table.c.object_name == subject.metadata.name,
        table.c.name == reference.name,
    )
    found = (await connection.execute(taken.returning(table.c.data))).scalar_one_or_none()
    if found is not None:
        return found, verdict
    message = f"alertDataRef '{reference.name}' is not there: it was used by another object, or has expired"
    return "", Refusal(reason="AlertDataNotFound", message=message)


def _facts(subject: investigations.AlertInvestigation, data: str, *, mask: Callable[[str], str]) -> dict[str, Any]:
    spec, metadata = subject.spec, subject.metadata
    return {
        "id": UUID(metadata.uid),
        "namespace": metadata.namespace,
        "name": metadata.name,
        "generation": metadata.generation,
        "alert_type": spec.alert_type,
        "alert_data": data,
        "fingerprint": spec.fingerprint,
        "severity": spec.severity and mask(spec.severity),
        "runbook_url": spec.runbook_url and mask(spec.runbook_url),
        "alert_status": "firing" if spec.fingerprint else None,
        "ttl_seconds": spec.ttl_seconds_after_finished,
    }


def _verdict(verdict: chains.AgentChain | Refusal) -> dict[str, Any]:
    if isinstance(verdict, Refusal):
        return {
            "ending": "Failed",
            "reason": verdict.reason,
            "message": verdict.message,
            "ended_at": func.now(),
        }
    return {
        "chain_name": verdict.metadata.name,
        "chain_namespace": verdict.metadata.namespace,
        "chain_generation": verdict.metadata.generation,
        "chain_hash": verdict.digest(),
        "chain": verdict.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
    }


_CLAIM = text("""
  WITH next AS (
    SELECT investigation FROM work
    WHERE (state = 'queued' OR (state = 'running' AND lease_until < clock_timestamp())) AND NOT suspend
    ORDER BY priority DESC, queued_at
    FOR UPDATE SKIP LOCKED
    LIMIT 1
  ), started AS (
    UPDATE investigations SET started_at = coalesce(started_at, clock_timestamp())
    FROM next WHERE id = next.investigation
    RETURNING started_at
  )
  UPDATE work
  SET state = 'running', owner = :owner, token = gen_random_uuid(), lease_until = clock_timestamp() + :lease,
      attempts = attempts + 1, fruitless = fruitless + 1, seq = seq + 1
  FROM next, started WHERE work.investigation = next.investigation
  RETURNING work.investigation, token, attempts, fruitless, commits, cancel,
    extract(epoch FROM clock_timestamp() - started_at - suspended_for) AS age
""")


_TURN = text("SELECT pg_advisory_xact_lock(:key)")
_TURN_KEY = 0x746172737971  # "tarsyq": those that may not be too many together claim one after the other
_RUNNING = text("SELECT count(*) FROM work WHERE state = 'running' AND lease_until >= clock_timestamp()")


async def claim(database: databases.Database, *, owner: UUID, lease: timedelta, max_running: int = 0) -> Claim | None:
    """Take the investigation that comes first, by priority and then by age, for `owner` (a process) and for `lease`.

    None where none waits, or where `max_running` (0: no limit) run already, in all processes.
    """
    async with database.begin() if max_running else database.single() as connection:
        if max_running:
            await connection.execute(_TURN, {"key": _TURN_KEY})
            if await connection.scalar(_RUNNING) >= max_running:
                return None
        row = (await connection.execute(_CLAIM, {"owner": owner, "lease": lease})).one_or_none()
    if row is None:
        return None
    return Claim(
        investigation=row.investigation,
        token=row.token,
        attempts=row.attempts,
        fruitless=row.fruitless,
        commits=row.commits,
        cancel=row.cancel,
        age=float(row.age),
    )


async def admitted(database: databases.Database, investigation: UUID) -> bool:
    """Whether the investigation has been admitted, or refused."""
    async with database.single() as connection:
        found = await connection.scalar(
            text("SELECT 1 FROM work WHERE investigation = :investigation"), {"investigation": investigation}
        )
        return found is not None


async def queued(database: databases.Database) -> int:
    """How many investigations wait for a worker."""
    async with database.single() as connection:
        count: int = await connection.scalar(text("SELECT count(*) FROM work WHERE state = 'queued' AND NOT suspend"))
        return count


async def observe(database: databases.Database, subject: investigations.AlertInvestigation) -> None:
    """Note what may have changed in an admitted object, if this generation of it is news.

    Suspended, a queued one stands still at once, a running one when its worker has given it back.
    """
    async with database.single() as connection:
        seen = await connection.execute(
            text("""
              WITH held AS (
                SELECT investigation FROM work WHERE investigation = :investigation FOR NO KEY UPDATE
              ), seen AS (
                UPDATE investigations SET generation = :generation, ttl_seconds = CAST(:ttl AS bigint)
                FROM held WHERE id = held.investigation AND generation < :generation
                RETURNING id, started_at
              )
              UPDATE work
              SET seq = seq + 1, suspend = :suspend,
                  suspended_at = CASE WHEN :suspend AND state = 'queued' THEN coalesce(suspended_at, clock_timestamp())
                                 END,
                  suspended_for = suspended_for + CASE
                    WHEN :suspend OR suspended_at IS NULL OR started_at IS NULL THEN interval '0'
                    ELSE clock_timestamp() - greatest(suspended_at, started_at) END
              FROM seen WHERE investigation = id
            """),
            {
                "investigation": UUID(subject.metadata.uid),
                "generation": subject.metadata.generation,
                "ttl": subject.spec.ttl_seconds_after_finished,
                "suspend": bool(subject.spec.suspend),
            },
        )
    if seen.rowcount:
        await notify.send(database, notify.CANCEL, subject.metadata.uid)
        await notify.send(database, notify.WORK)
        await notify.send(database, notify.STATUS, subject.metadata.uid)


async def cancel(database: databases.Database, investigation: UUID, *, why: Cancellation) -> bool:
    """Have it stopped: a queued one ends here, a running one by its worker. False where there is nothing to stop."""
    async with database.begin() as connection:
        state = await connection.scalar(
            text("SELECT state FROM work WHERE investigation = :id AND cancel IS NULL FOR NO KEY UPDATE"),
            {"id": investigation},
        )
        if state not in ("queued", "running"):
            return False
        await connection.execute(
            text("UPDATE work SET cancel = :why, seq = seq + 1 WHERE investigation = :id"),
            {"id": investigation, "why": why},
        )
        if state == "queued":
            await _end_cancelled(connection, [investigation])
    await notify.send(database, notify.CANCEL, str(investigation))
    await notify.send(database, notify.STATUS, str(investigation))
    return True


async def sweep(database: databases.Database) -> int:
    """End or suspend what its worker should have, but is gone: no claim may ever come. Return how many were ended."""
    async with database.begin() as connection:
        rows = await connection.execute(
            text("""
              SELECT investigation FROM work
              WHERE state = 'running' AND cancel IS NOT NULL AND lease_until < clock_timestamp()
              FOR UPDATE SKIP LOCKED
            """)
        )
        stranded = [row.investigation for row in rows]
        if stranded:
            await _end_cancelled(connection, stranded)
        await connection.execute(
            text("""
              UPDATE work
              SET state = 'queued', token = NULL, lease_until = NULL, seq = seq + 1, suspended_at = clock_timestamp()
              WHERE state = 'running' AND suspend AND cancel IS NULL AND lease_until < clock_timestamp()
            """)
        )
        await connection.execute(
            text("DELETE FROM large_alerts WHERE created_at < clock_timestamp() - interval '1 hour'")
        )
    for investigation in stranded:
        await notify.send(database, notify.STATUS, str(investigation))
    return len(stranded)


async def _end_cancelled(connection: sqlalchemy_asyncio.AsyncConnection, stopped: Sequence[UUID]) -> None:
    """End cancelled investigations that nobody runs; the token goes, so that a late worker writes nothing more."""
    await connection.execute(
        text("""
          UPDATE investigations
          SET ended_at = clock_timestamp(), ending = 'Cancelled',
              reason = CAST(:reasons AS json) ->> cancel, message = CAST(:messages AS json) ->> cancel
          FROM work WHERE id = investigation AND id = ANY(:stopped)
        """),
        {
            "stopped": list(stopped),
            "reasons": json.dumps(CANCELLED_REASONS),
            "messages": json.dumps(CANCELLED_MESSAGES),
        },
    )
    await connection.execute(
        text("""
          UPDATE work SET state = 'ended', token = NULL, seq = seq + 1 WHERE investigation = ANY(:stopped)
        """),
        {"stopped": list(stopped)},
    )


CANCELLED_REASONS: dict[Cancellation, str] = {
    "user": "CancelledByUser",
    "deleted": "ObjectDeleted",
    "resolved": "AlertResolved",
}
CANCELLED_MESSAGES: dict[Cancellation, str] = {
    "user": "cancelled by spec.cancel",
    "deleted": "cancelled because its object was deleted",
    "resolved": "cancelled because its alert resolved, as the chain's onResolved says",
}


async def release(database: databases.Database, claim: Claim) -> None:
    """Give a claim back unfinished, without counting it as an attempt: another worker may go on at once.

    A suspended one is not claimed, and its clock stands still from here on; a cancelled one ends.
    """
    async with database.begin() as connection:
        released = await connection.execute(
            text("""
              UPDATE work SET state = 'queued', token = NULL, lease_until = NULL, seq = seq + 1,
                attempts = attempts - 1, fruitless = greatest(fruitless - 1, 0),
                suspended_at = CASE WHEN suspend THEN clock_timestamp() END
              WHERE investigation = :investigation AND token = :token AND state = 'running'
              RETURNING cancel
            """),
            {"investigation": claim.investigation, "token": claim.token},
        )
        if released.scalar_one_or_none() is not None:
            await _end_cancelled(connection, [claim.investigation])
    await notify.send(database, notify.STATUS, str(claim.investigation))
    await notify.send(database, notify.WORK)


@dataclass(frozen=True, kw_only=True)
class Open:
    """An investigation that has not ended."""

    id: UUID
    name: str


async def open_in(database: databases.Database, *, namespace: str) -> list[Open]:
    """The investigations of a namespace that have not ended."""
    async with database.single() as connection:
        rows = await connection.execute(
            text("""
              SELECT id, name FROM work JOIN investigations ON id = investigation
              WHERE namespace = :namespace AND state <> 'ended'
            """),
            {"namespace": namespace},
        )
        return [Open(id=row.id, name=row.name) for row in rows]


async def unprojected(database: databases.Database, *, limit: int) -> list[UUID]:
    """Investigations whose status in the cluster is older than the store, the longest waiting first."""
    async with database.single() as connection:
        rows = await connection.execute(
            text("SELECT investigation FROM work WHERE projected_seq < seq ORDER BY queued_at LIMIT :limit"),
            {"limit": limit},
        )
        return [row.investigation for row in rows]


async def projected(database: databases.Database, investigation: UUID, *, seq: int) -> None:
    """Note that the status in the cluster shows everything up to `seq`."""
    async with database.single() as connection:
        await connection.execute(
            text("""
              UPDATE work SET projected_seq = :seq WHERE investigation = :investigation AND projected_seq < :seq
            """),
            {"investigation": investigation, "seq": seq},
        )


FENCED = """
  fenced AS (
    UPDATE work SET seq = seq + 1, commits = commits + 1, fruitless = 0, state = :state
    WHERE investigation = :investigation AND token = :token AND commits = :commits AND state = 'running'
    RETURNING investigation
  )"""
"""A part of a statement (`WITH`): locks the row, counts one commit and sets `state`, if the claim of `token` still
holds and `commits` is the count so far. Else `fenced` has no row, and what is joined with it does nothing."""

_COMMITS = text("SELECT commits FROM work WHERE investigation = :investigation AND token = :token")


async def commits(connection: sqlalchemy_asyncio.AsyncConnection, claim: Claim) -> int | None:
    """The number of commits so far, if `claim` still holds."""
    held = {"investigation": claim.investigation, "token": claim.token}
    count: int | None = await connection.scalar(_COMMITS, held)
    return count


class Heartbeat:
    """Renews all leases of a process with one statement, over a connection of its own.

    Made for the lease thread, whose loop is not the engine's: an asyncio engine belongs to one loop.
    """

    def __init__(self, url: str, *, lease: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._connection: asyncpg.Connection | None = None

    async def beat(self, tokens: Collection[UUID]) -> Mapping[UUID, StopRequest | None]:
        """Renew these claims; return those that hold, by token, with what is wanted. StoreDownError: who knows."""
        timeout = self._lease.total_seconds() / 2
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await databases.connect(self._url, timeout=timeout, command_timeout=timeout)
            rows = await self._connection.fetch(
                """
                UPDATE work SET lease_until = clock_timestamp() + $2
                WHERE token = ANY($1)
                RETURNING token, coalesce(cancel, CASE WHEN suspend THEN 'suspend' END) AS request
                """,
                list(tokens),
                self._lease,
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            await self.close()
            raise databases.StoreDownError(f"no heartbeat: {str(error) or type(error).__name__}") from error
        return {row["token"]: row["request"] for row in rows}

    async def close(self) -> None:
        """Drop the connection; the next beat opens another."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
