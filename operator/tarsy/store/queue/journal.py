"""The journal in Postgres: each commit is one statement, under the fence of its claim.

A commit whose reply is lost may have happened. It is repeated with the same precondition, the number of the last entry.
If that number is higher now under the same token, the commit did happen. So no entry is written twice or lost.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Protocol
from uuid import UUID, uuid4

from sqlalchemy import text

from tarsy import failpoints
from tarsy.config.model import budgets
from tarsy.store import log
from tarsy.store.base import databases, notify, visibility
from tarsy.store.queue import commit_metrics, ledgers, work
from tarsy.store.reads import former_runs, group_alerts, log_entries, snapshots, transcript_pages
from tarsy.transcript import commit_queue, entries, nesting, ports, record
from tarsy.transcript.kinds import registry

RETRY_SECONDS = 0.5

logger = logging.getLogger(__name__)


class Follower(Protocol):
    """Reads the entries of a journal's log, each once and in order: those of earlier claims, then each commit."""

    def loaded(self, snapshot: record.Snapshot, log: Sequence[entries.Logged]) -> None:
        """Read the log of the earlier claims."""
        ...

    def committed(self, first: int, at: datetime, added: Sequence[entries.Entry]) -> None:
        """Read entries that were committed together; `first` is the number of the first one."""
        ...


class PgJournal:
    """The journal of one claimed investigation."""

    def __init__(
        self,
        database: databases.Database,
        *,
        claim: work.Claim,
        so_far: record.Record,
        claimed: float,
        ensure_lease: Callable[[], Awaitable[None]],
        suspended: Callable[[], bool],
        moved: Callable[[UUID], None],
        follower: Follower | None,
    ) -> None:
        """`claimed` is the monotonic time of the claim; see `open`."""
        self.record = so_far
        self.joined = claim.joined
        self.waits: dict[str, ports.Wait] = {}
        self._database = database
        self._claim = claim
        self._claimed = claimed
        self._log_seq = claim.log_seq
        self._queue = commit_queue.CommitQueue(so_far, prepare=log.prepare, write=self._write)
        self._ensure_lease = ensure_lease
        self._suspended = suspended
        self._moved = moved
        self._commit_metrics = commit_metrics.CommitMetrics(so_far, run=claim.run, waited=claim.waited)
        self._follower = follower

    @classmethod
    async def open(
        cls,
        database: databases.Database,
        *,
        claim: work.Claim,
        ensure_lease: Callable[[], Awaitable[None]],
        suspended: Callable[[], bool],
        moved: Callable[[UUID], None] = lambda _: None,
        follower: Follower | None = None,
    ) -> PgJournal:
        """Load the record of the earlier claims; retry while the database is unavailable.

        `ensure_lease` and `suspended` are the lease's; `moved` is called after each commit. Raises UnreadableError if
        this program cannot read the log.
        """
        claimed = time.monotonic()
        while True:
            try:
                snapshot = await _snapshot(database, claim.investigation)
                log_so_far = await log_entries.load(database, claim.investigation) if claim.log_seq else []
            except databases.StoreDownError as error:
                logger.warning("a record cannot be read yet: %s", error, extra={"action": "load_waits"})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                so_far = _fold(snapshot, log_so_far, claim)
                if follower:
                    follower.loaded(snapshot, log_so_far)
                return cls(
                    database,
                    claim=claim,
                    so_far=so_far,
                    claimed=claimed,
                    ensure_lease=ensure_lease,
                    suspended=suspended,
                    moved=moved,
                    follower=follower,
                )

    def clock(self) -> float:
        """Return the seconds that the run has been running; the database counted those before the claim."""
        return self._claim.age + time.monotonic() - self._claimed

    def suspended(self) -> bool:
        """Whether the run is suspended."""
        return self._suspended()

    async def ensure_lease(self) -> None:
        """Wait while the lease is uncertain. Raises LeaseLostError when it is lost."""
        await self._ensure_lease()

    async def reserve(self, charges: Sequence[budgets.Charge], *, ended: Sequence[str] = ()) -> ports.Charged:
        """Reserve a request in the ledgers of budgets; retry while the database is unavailable, as the lease is then.

        The repetition has the same id, so nothing is reserved twice.
        """
        request = uuid4()
        while True:
            try:
                refused = await ledgers.reserve(
                    self._database,
                    charges,
                    request=request,
                    investigation=self._claim.investigation,
                    token=self._claim.token,
                    ended=[UUID(each) for each in ended],
                )
            except databases.StoreDownError as error:
                logger.warning("a request waits: %s", error, extra={"action": "budget_waits"})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if refused is None:
                    return ports.Charged(request=str(request))
                return ports.Charged(
                    exceeded=refused.budgets,
                    too_small=refused.too_small,
                    may_fit_later=refused.may_fit_later,
                    at=refused.at,
                )

    async def commit(self, *added: entries.Entry) -> None:
        """Commit `added`; retry while the database is unavailable, because the work is already paid for."""
        await self._queue.commit(*added)
        if any(isinstance(entry, entries.RunEnded) and entry.run == entries.INVESTIGATION for entry in added):
            # This is the only commit that changes the phase; the projector's poll finds all others.
            await notify.send(self._database, (notify.STATUS, str(self._claim.investigation)))

    async def whole(self, execution: str, call_id: str) -> str | None:
        """Return the full result of which the log has a part; retry while the database is unavailable."""
        return await self._whole(self._claim.investigation, self.record, execution, call_id)

    async def _whole(self, investigation: UUID, so_far: record.Record, execution: str, call_id: str) -> str | None:
        of_call = so_far.executions.get(execution)
        excerpt = of_call.excerpts.get(call_id) if of_call else None
        shown = of_call.text_of_result(call_id) if of_call and excerpt else ""
        while True:
            try:
                return await transcript_pages.full_result(
                    self._database, investigation, execution, call_id, shown=shown, excerpt=excerpt
                )
            except databases.StoreDownError as error:
                logger.warning("a result cannot be read yet: %s", error, extra={"action": "load_waits"})
                await asyncio.sleep(RETRY_SECONDS)

    async def joined_alerts(self, after: int) -> ports.JoinedAlerts | None:
        """Return the alerts that have joined with a number above `after`; retry while the database is unavailable."""
        while True:
            try:
                return await group_alerts.joined(self._database, self._claim.investigation, after=after)
            except databases.StoreDownError as error:
                logger.warning("joined alerts cannot be read yet: %s", error, extra={"action": "load_waits"})
                await asyncio.sleep(RETRY_SECONDS)

    async def former(self, within: int) -> ports.Former | None:
        """Return the last full investigation of the same alert; retry while the database is unavailable."""
        while True:
            try:
                return await self._former(within)
            except databases.StoreDownError as error:
                logger.warning("an earlier investigation cannot be read yet: %s", error, extra={"action": "load_waits"})
                await asyncio.sleep(RETRY_SECONDS)

    async def _former(self, within: int) -> ports.Former | None:
        last = await former_runs.last(self._database, self._claim.investigation, within=within)
        if last is None:
            return None
        try:
            snapshot, log_so_far = await read(self._database, last.id)
            so_far = registry.fold(snapshot, map(_readable, log_so_far))
        except (snapshots.UnreadableError, nesting.OutOfOrderError, LookupError, ValueError):
            return None  # it was purged since, or belongs to another version
        return ports.Former(
            name=last.name,
            ended_at=last.ended_at,
            is_disputed=last.is_disputed,
            record=so_far,
            whole=functools.partial(self._whole, last.id, so_far),
        )

    async def settle(self) -> None:
        """Finish commits that were cancelled in progress and may have happened."""
        await self._queue.settle()

    async def _write(self, batch: Sequence[log.Prepared]) -> None:
        failpoints.hit("journal.commit.before")
        while True:
            try:
                at = await self._try_to_write(batch)
            except databases.StoreDownError as error:
                logger.warning("a commit waits: %s", error, extra={"action": "commit_waits"})
                await asyncio.sleep(RETRY_SECONDS)
            else:
                break
        self._log_seq += len(batch)
        self._commit_metrics.observe([prepared.entry for prepared in batch], clock=self.clock())
        self._moved(self._claim.investigation)
        failpoints.hit("journal.commit.after")
        if self._follower:
            self._follower.committed(self._log_seq - len(batch) + 1, at, [prepared.entry for prepared in batch])

    async def _try_to_write(self, batch: Sequence[log.Prepared]) -> datetime:
        """Write a batch, and return the time of its commit."""
        statement, values = log.append_statement(
            batch,
            investigation=self._claim.investigation,
            log_seq=self._log_seq,
            token=self._claim.token,
            where=self._run_and_stage,
        )
        written = await self._database.run(statement, **values)
        if not written:
            if await work.last_entry(self._database, self._claim) != self._log_seq + len(batch):
                raise ports.LeaseLostError(f"another worker holds investigation {self._claim.investigation} now")
            written = await self._database.run(_COMMITTED, id=self._claim.investigation, seq=self._log_seq + 1)
        self.joined = written[0].joined
        at: datetime = written[0].at
        return at

    def _run_and_stage(self, execution: str) -> tuple[int, str]:
        started = self.record.executions[execution].started
        return started.run, started.stage


_COMMITTED = text("""
  SELECT at, joined FROM entries JOIN work USING (investigation) WHERE investigation = :id AND seq = :seq
""")

_FACTS = text(f"""
  SELECT known.id, known.namespace, known.name, known.alert_type, known.alert_data, known.severity, known.runbook_url,
    known.chain_name, known.chain_namespace, known.chain_version, known.copied_entries, known.admitted_at,
    known.traceparent, known.starters, known.retry_of, CAST(known.chain AS text) AS chain,
    former.name AS former_name, former.ended_at AS former_ended_at,
    coalesce(nullif(summary, ''), final_analysis, '') AS former_summary
  FROM investigations AS known
  LEFT JOIN (
    SELECT id, name, ended_at FROM investigations
    WHERE {visibility.VISIBLE} AND ending IN ('Completed', 'CompletedWithErrors')
  ) AS former ON former.id = known.previous
  LEFT JOIN runs ON runs.investigation = former.id AND number = 0
  WHERE known.id = :id
""")  # noqa: S608 - our own texts


async def read(database: databases.Database, investigation: UUID) -> tuple[record.Snapshot, list[entries.Logged]]:
    """Return an admitted investigation and its whole log. Raises UnreadableError if its chain cannot be read."""
    return await _snapshot(database, investigation), await log_entries.load(database, investigation)


_ATTEMPTS = text("SELECT attempts FROM runs WHERE investigation = :id AND number = :run")


async def was_interrupted(database: databases.Database, investigation: UUID, run: int) -> bool:
    """Return whether a worker of this run has ended without releasing its claim."""
    rows = await database.run(_ATTEMPTS, id=investigation, run=run)
    return bool(rows) and rows[0].attempts > 0


def _fold(snapshot: record.Snapshot, rows: Sequence[entries.Logged], claim: work.Claim) -> record.Record:
    """Return the record of the claimed investigation. Raises UnreadableError if this program cannot read the log."""
    so_far = record.Record(snapshot=snapshot)
    if [row.seq for row in rows] != list(range(1, claim.log_seq + 1)):
        raise snapshots.UnreadableError(f"the log does not have exactly the entries 1 to {claim.log_seq}")
    for row in rows:
        entry = _readable(row)
        try:
            registry.apply(so_far, entry)
        except (nesting.OutOfOrderError, LookupError) as error:
            raise snapshots.UnreadableError(f"entry {row.seq} cannot follow those before it: {error}") from error
        if row.seq == snapshot.copied_entries:
            so_far.forget_retries()
    if claim.run not in so_far.runs:
        raise snapshots.UnreadableError(f"the log does not have the question of run {claim.run}")
    return so_far


def _readable(row: entries.Logged) -> entries.Entry:
    """Return the entry of a row; raises UnreadableError if this program cannot read it."""
    if isinstance(row.entry, entries.Unreadable):
        unreadable = row.entry
        raise snapshots.UnreadableError(
            f"entry {row.seq} (kind {unreadable.kind!r}, version {unreadable.version}) cannot be read: "
            f"{unreadable.problem}"
        )
    return row.entry


async def _snapshot(database: databases.Database, investigation: UUID) -> record.Snapshot:
    (facts,) = await database.run(_FACTS, id=investigation)
    return record.Snapshot(
        id=str(facts.id),
        namespace=facts.namespace,
        name=facts.name,
        alert_type=facts.alert_type,
        alert_data=facts.alert_data,
        severity=facts.severity,
        runbook_url=facts.runbook_url,
        chain_name=facts.chain_name,
        chain_namespace=facts.chain_namespace or "",
        chain=snapshots.chain_of(facts.chain, version=facts.chain_version),
        admitted_at=facts.admitted_at,
        traceparent=facts.traceparent or "",
        depth=facts.starters,
        former=record.Former(name=facts.former_name, ended_at=facts.former_ended_at, summary=facts.former_summary)
        if facts.former_summary
        else None,
        retry_of=str(facts.retry_of or ""),
        copied_entries=facts.copied_entries,
    )
