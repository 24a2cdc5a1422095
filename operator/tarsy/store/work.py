"""The queue and the fence: admit, claim, keep, look for what the status does not show yet.

One row of `work` an investigation. Claims take it with `FOR UPDATE SKIP LOCKED` and leave a fresh token in it; every
later write of the claimer is conditional on that token, so a worker that lost its lease cannot write, however late it
wakes. Expiry is compared by the database's clock alone. A running row whose lease has passed is claimed like a queued
one: a takeover is nothing special.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.resources import chain as chains
from tarsy.resources import investigation as investigations
from tarsy.store import database as databases
from tarsy.store import notify, tables
from tarsy.transcript import messages


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why an investigation ends before it begins."""

    reason: str
    """CamelCase, for conditions."""
    message: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one investigation, until another claim of it."""

    investigation: UUID
    token: UUID
    attempts: int
    """Claims so far, this one included."""
    commits: int
    """Journal commits so far: the next one's precondition."""


async def admit(
    database: databases.Database,
    subject: investigations.AlertInvestigation,
    verdict: chains.AgentChain | Refusal,
) -> bool:
    """Queue `subject` with its chain as it is now, or record its refusal; False where it was admitted before.

    A StoreDownError means that nothing was kept.
    """
    identity = UUID(subject.metadata.uid)
    facts: dict[str, Any] = {
        "id": identity,
        "namespace": subject.metadata.namespace,
        "name": subject.metadata.name,
        "generation": subject.metadata.generation,
        "alert_type": subject.spec.alert_type,
        "alert_data": messages.storable(subject.spec.alert_data),
    }
    if isinstance(verdict, Refusal):
        facts |= {"ending": "Failed", "reason": verdict.reason, "message": verdict.message, "ended_at": _NOW}
    else:
        facts |= {
            "chain_name": verdict.metadata.name,
            "chain_namespace": verdict.metadata.namespace,
            "chain_generation": verdict.metadata.generation,
            "chain": verdict.spec.model_dump(mode="json", by_alias=True, exclude_none=True),
        }
    async with database.begin() as connection:
        insert = postgresql.insert(tables.investigations).values(**facts).on_conflict_do_nothing(index_elements=["id"])
        added = (await connection.execute(insert.returning(tables.investigations.c.id))).first() is not None
        if added:
            state = "ended" if isinstance(verdict, Refusal) else "queued"
            await connection.execute(tables.work.insert().values(investigation=identity, state=state))
    if added:
        await notify.send(database, notify.STATUS, str(identity))
        await notify.send(database, notify.WORK)
    return added


_NOW = text("now()")

_CLAIM = text("""
  WITH next AS (
    SELECT investigation FROM work
    WHERE state = 'queued' OR (state = 'running' AND lease_until < clock_timestamp())
    ORDER BY queued_at
    FOR UPDATE SKIP LOCKED
    LIMIT 1
  ), started AS (
    UPDATE investigations SET started_at = coalesce(started_at, clock_timestamp())
    FROM next WHERE id = next.investigation
  )
  UPDATE work
  SET state = 'running', owner = :owner, token = gen_random_uuid(), lease_until = clock_timestamp() + :lease,
      attempts = attempts + 1, seq = seq + 1
  FROM next WHERE work.investigation = next.investigation
  RETURNING work.investigation, token, attempts, commits
""")


async def claim(database: databases.Database, *, owner: UUID, lease: timedelta) -> Claim | None:
    """Take the investigation that waits longest, for `owner` (a process) and for `lease`; None when none waits."""
    async with database.begin() as connection:
        row = (await connection.execute(_CLAIM, {"owner": owner, "lease": lease})).one_or_none()
    if row is None:
        return None
    await notify.send(database, notify.STATUS, str(row.investigation))
    return Claim(investigation=row.investigation, token=row.token, attempts=row.attempts, commits=row.commits)


async def release(database: databases.Database, claim: Claim) -> None:
    """Give a claim back unfinished, without counting it as an attempt: another worker may go on at once."""
    async with database.begin() as connection:
        await connection.execute(
            text("""
              UPDATE work SET state = 'queued', token = NULL, lease_until = NULL, attempts = attempts - 1, seq = seq + 1
              WHERE investigation = :investigation AND token = :token AND state = 'running'
            """),
            {"investigation": claim.investigation, "token": claim.token},
        )
    await notify.send(database, notify.WORK)


async def unprojected(database: databases.Database, *, limit: int) -> list[UUID]:
    """Investigations whose status in the cluster is older than the store, the longest waiting first."""
    async with database.begin() as connection:
        rows = await connection.execute(
            text("SELECT investigation FROM work WHERE projected_seq < seq ORDER BY queued_at LIMIT :limit"),
            {"limit": limit},
        )
        return [row.investigation for row in rows]


async def projected(database: databases.Database, investigation: UUID, *, seq: int) -> None:
    """Note that the status in the cluster shows everything up to `seq`."""
    async with database.begin() as connection:
        await connection.execute(
            text("""
              UPDATE work SET projected_seq = :seq WHERE investigation = :investigation AND projected_seq < :seq
            """),
            {"investigation": investigation, "seq": seq},
        )


async def fence(connection: sqlalchemy_asyncio.AsyncConnection, claim: Claim, *, commits: int, state: str) -> bool:
    """Lock the row, count one commit and set `state`, if `claim` still holds and `commits` is the count so far."""
    result = await connection.execute(
        text("""
          UPDATE work SET seq = seq + 1, commits = commits + 1, state = :state
          WHERE investigation = :investigation AND token = :token AND commits = :commits AND state = 'running'
        """),
        {"investigation": claim.investigation, "token": claim.token, "commits": commits, "state": state},
    )
    return result.rowcount == 1


async def commits(connection: sqlalchemy_asyncio.AsyncConnection, claim: Claim) -> int | None:
    """The number of commits so far, if `claim` still holds."""
    count: int | None = await connection.scalar(
        text("SELECT commits FROM work WHERE investigation = :investigation AND token = :token"),
        {"investigation": claim.investigation, "token": claim.token},
    )
    return count


class Heartbeat:
    """Renews all leases of a process with one statement, over a connection of its own.

    Made for the lease thread, whose loop is not the engine's: an asyncio engine belongs to one loop.
    """

    def __init__(self, url: str, *, lease: timedelta) -> None:
        self._url = url
        self._lease = lease
        self._connection: asyncpg.Connection | None = None

    async def beat(self, tokens: Collection[UUID]) -> Mapping[UUID, UUID]:
        """Renew these claims; return investigation and token of those that hold. StoreDownError: nobody knows."""
        timeout = self._lease.total_seconds() / 2
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._url, timeout=timeout, command_timeout=timeout)
            rows = await self._connection.fetch(
                """
                UPDATE work SET lease_until = clock_timestamp() + $2
                WHERE token = ANY($1)
                RETURNING investigation, token
                """,
                list(tokens),
                self._lease,
            )
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            await self.close()
            raise databases.StoreDownError(f"no heartbeat: {error}") from error
        return {row["investigation"]: row["token"] for row in rows}

    async def close(self) -> None:
        """Drop the connection; the next beat opens another."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
