"""Supervises one claim, from the lease to the last write, and owns the reason for which it ends.

    ended          the engine's last commit ended the run
    given up       it was claimed too often without a commit in between: the run itself may crash the processes
    cancelled      by spec.cancel, by the API, or because its object was deleted: the last commit says so
    timed out      the deadline of its chain, or of a question, has passed: the last commit says so
    suspended      by spec.suspend, which the engine checks before each step: the claim is released until it may go on
    parked         all its open executions wait for something outside: the claim is released until then
    unreadable     its log has entries that this program cannot read: the claim is released for programs that can
    lease lost     another worker holds it: nothing is written
    shutdown       this task is cancelled: the claim is released, and another worker goes on at once
    defect         an exception: the claim is kept until its lease ends, and the next attempt begins

The way of a cancel: `leases.LeaseManager` learns the reason from a heartbeat and calls `Lease.stop`; that cancels the
task of the engine, which has no code for it; then the last commit ends all that is open (`engine.outcomes.stopped`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from tarsy.engine import chat, investigation, outcomes
from tarsy.resources import chains
from tarsy.store.base import databases, notify
from tarsy.store.queue import journal as journals
from tarsy.store.queue import work
from tarsy.store.reads import snapshots
from tarsy.telemetry import logs, metrics
from tarsy.transcript import entries, ports, record
from tarsy.worker import leases

RELEASE_SECONDS = 5.0
"""The seconds for a release when the process stops; if it fails, the lease ends by itself."""

BUILD = record.build()
"""The entry kinds and versions that this program can read."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Supervisor:
    """Runs the claims of one process."""

    database: databases.Database
    runtime: ports.Runtime
    lease_manager: leases.LeaseManager
    max_attempts: int
    own_namespace: str
    """The operator's; "" if this process does not know it."""
    moved: Callable[[UUID], None] = lambda _: None
    """Called after each commit to an investigation's log."""
    follow: Callable[[work.Claim], journals.Follower | None] = lambda _: None
    """Returns what reads the log of a claim as it is written."""

    async def run(self, held: leases.Lease) -> None:
        """Run the claimed investigation until it ends, is stopped, or this task is cancelled."""
        with _log_fields(held.claim):
            claim = held.claim
            first = claim.attempts == 1 if claim.run else claim.log_seq <= 1  # at most the entry of the admission
            log.info("run %s", "started" if first else "goes on", extra=_about(claim, "run_started"))
            metrics.CLAIMS.add()
            if claim.is_takeover:
                metrics.TAKEOVERS.add()
            try:
                if claim.run == entries.INVESTIGATION:  # no status shows a question
                    await notify.send(self.database, (notify.STATUS, str(claim.investigation)))
                await self._supervised(held)
            except asyncio.CancelledError:
                await self.release(held.claim)
                raise
            except ports.LeaseLostError:
                log.warning("lost lease: another worker holds the investigation", extra={"action": "lease_lost"})
                metrics.LEASES_LOST.add()
            except snapshots.UnreadableError as error:
                log.warning("left to a worker of another version: %s", error, extra={"action": "unreadable"})
                await self.release(held.claim, unreadable=str(error))
            except Exception:  # the supervisor of a run: a defect in one run must not end the others
                log.exception("run failed by a defect", extra={"action": "run_broke"})
            finally:
                self.lease_manager.remove(held)

    async def _supervised(self, held: leases.Lease) -> None:
        if held.claim.attempts_without_progress > self.max_attempts and not held.stopped:
            message = f"given up after {self.max_attempts} attempts without progress: each ended with its worker"
            reason = "AttemptsExhausted"
            await work.give_up(self.database, held.claim, reason=reason, message=message)
            _log_end(held.claim, "Failed", reason=reason, seconds=held.claim.age)
            return
        journal = await journals.PgJournal.open(
            self.database,
            claim=held.claim,
            ensure_lease=held.ensure_lease,
            suspended=lambda: held.suspend,
            moved=self.moved,
            follower=self.follow(held.claim),
        )
        try:
            await self._work(held, journal)
        except ports.LeaseLostError:
            raise
        except BaseException:
            # A shutdown, or a defect of one agent: the commits of the other agents are completed.
            await self._settle(journal)
            raise
        if ended := journal.record.runs[held.claim.run].ended:
            _log_end(held.claim, ended.ending, reason=ended.reason, seconds=journal.clock())
        else:
            await self.release(held.claim, wait=min(journal.waits.values(), key=lambda wait: wait.until, default=None))

    async def _work(self, held: leases.Lease, journal: journals.PgJournal) -> None:
        """Run the engine, and write the last commit if the run was stopped."""
        run = held.claim.run
        snapshot = journal.record.snapshot
        seconds, limit = self._limit(snapshot, run)
        left = seconds - journal.clock()
        if left <= 0:  # a takeover after the deadline: no call may be sent
            held.stop("deadline")
        deadline = asyncio.get_running_loop().call_later(left, held.stop, "deadline")
        namespaces = (snapshot.namespace, snapshot.chain_namespace or snapshot.namespace)
        runtime = self.runtime.for_namespaces(namespaces, own=self.own_namespace)
        if run == entries.INVESTIGATION:
            engine = investigation.run(runtime=runtime, journal=journal)
        else:
            engine = chat.run(runtime=runtime, journal=journal, run=run)
        working = asyncio.create_task(engine)

        def stop() -> None:
            if not journal.record.runs[run].ended:  # else a heartbeat has found the lease over: only hints are left
                working.cancel()

        held.on_stop(stop)
        this_task = asyncio.current_task()
        try:
            await working
        except asyncio.CancelledError:
            if this_task and this_task.cancelling():  # a shutdown, and not only `held.on_stop`
                raise
            await journal.settle()
        finally:
            deadline.cancel()
        if journal.record.runs[run].ended:
            return
        match held.stopped:
            case "user" | "deleted" | "resolved" as why:
                reason, message = work.cancelled(why)
                ends = outcomes.stopped(journal.record, run, "Cancelled", reason=reason, message=message)
            case "deadline":
                message = f"not finished within the {seconds:g} s of {limit}"
                ends = outcomes.stopped(journal.record, run, "TimedOut", reason="DeadlineExceeded", message=message)
            case None:  # it is suspended or parked
                return
            case "lost":
                raise ports.LeaseLostError(f"the lease of investigation {held.claim.investigation} is lost")
        await journal.commit(*ends)

    def _limit(self, snapshot: record.Snapshot, run: int) -> tuple[float, str]:
        """Return the seconds that a run has, and the name of the setting."""
        if run == entries.INVESTIGATION:
            return snapshot.chain.active_deadline_seconds or chains.DEADLINE_SECONDS, "activeDeadlineSeconds"
        with self.runtime.in_force() as now:
            return now.platform.limits.chat.total_seconds(), "limits.chat"

    async def release(
        self, claim: work.Claim, *, unreadable: str | None = None, wait: ports.Wait | None = None
    ) -> None:
        """Release an unfinished claim; `unreadable` is the reason if this program cannot read its log.

        `wait` is what it is parked for.
        """
        with _log_fields(claim):
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await work.release(self.database, claim, unreadable=unreadable, build=BUILD, wait=wait)
            except (databases.StoreDownError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                log.warning("claim not released, its lease will end: %s", reason, extra={"action": "release_failed"})
            except Exception:  # as in `run`
                log.exception("claim not released, its lease will end", extra={"action": "release_broke"})
            else:
                if wait:
                    log.info("parked: %s", wait.message, extra={"action": "parked", "reason": wait.reason})
                else:
                    log.info("released claim", extra={"action": "released"})

    async def _settle(self, journal: journals.PgJournal) -> None:
        """Complete the commits of cancelled agents, if that is possible soon."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await journal.settle()
        except (ports.LeaseLostError, TimeoutError) as error:
            log.warning("last commits not completed: %s", error, extra={"action": "settle_failed"})
        except Exception:  # as in `run`: the defect of one commit is met again here
            log.exception("last commits not completed", extra={"action": "settle_broke"})


def _log_fields(claim: work.Claim) -> AbstractContextManager[None]:
    """Add the claim to each log line."""
    log_fields = {
        "investigation": claim.name,
        "uid": str(claim.investigation),
        "run": claim.run,
        "attempt": claim.attempts,
    }
    return logs.fields(**log_fields)


def _about(claim: work.Claim, action: str) -> dict[str, object]:
    return {"action": action, "alert": claim.alert_type, "chain": claim.chain}


def _log_end(claim: work.Claim, ending: str, *, reason: str, seconds: float) -> None:
    log_fields = {"ending": ending, "reason": reason, "seconds": round(seconds, 3)}
    log.info("run ended: %s after %.1f s", ending, seconds, extra=_about(claim, "run_ended") | log_fields)
