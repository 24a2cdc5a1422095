"""Readiness of this process, and health of all processes.

Readiness: whether this process can do the work of its roles now, and if not, which parts are missing (`checks`). A
process answers before it has any part. MCP servers and models are not checked: if one is down, transcripts say so, and
other investigations run. `/healthz` checks nothing: an answer means that the process lives and its loop runs. A restart
would not repair a database.

Health: the states of all parts that the processes report, MCP servers and providers too.

The answers are public: they hold names and states. Reasons are in the log.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel

from tarsy import errors
from tarsy.config.load import settings
from tarsy.probes import checks
from tarsy.serve import problems, strict
from tarsy.store.base import databases, schema
from tarsy.store.fleet import catalogue, reporter
from tarsy.telemetry import component_states
from tarsy.views import system_warnings

FRESH_SECONDS = 1.0
MISSING_FRESH_SECONDS = 0.2
"""Seconds that an answer is repeated, and that one with missing parts is, so that probes do not load the database."""
PROBES = ("/healthz", "/readyz")
RETRY_SECONDS = 5.0
"""The wait of a starting process between two checks; a request for its readiness ends it."""

log = logging.getLogger(__name__)


class Serving(BaseModel):
    """The process serves."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The process can do the work of its roles."""

    status: Literal["ready"] = "ready"
    notes: list[str] = []
    """Warnings about a platform file that is not in force as it stands."""


class Readiness:
    """The readiness of one process."""

    def __init__(
        self,
        roles: Collection[settings.Role],
        *readiness_checks: checks.Check,
        notes: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`roles` are those of this process, which is starting; `notes` returns warnings for the answer when ready."""
        self.notes = notes
        self._roles = roles
        self._checks: list[checks.Check] = list(readiness_checks)
        self._state: Literal["starting", "working", "stopping"] = "starting"
        self._lock = asyncio.Lock()
        self._requested = asyncio.Event()
        """Set by a request for the readiness that has run the checks."""
        self._missing: tuple[str, ...] = ()
        self._checked_at = -FRESH_SECONDS

    def add(self, check: checks.Check) -> None:
        """Add a check."""
        self._checks.append(check)

    async def wait_for(self, *awaited: checks.Check) -> None:
        """Return once these checks find nothing missing."""
        while True:
            self._requested.clear()
            if not any(await asyncio.gather(*(check() for check in awaited))):
                return
            await self._check_if_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._requested.wait()

    def start(self) -> None:
        """Report ready from now on, unless a part is missing."""
        self._state = "working"

    def stop(self) -> None:
        """Report not ready from now on."""
        self._state = "stopping"

    async def ensure(self) -> None:
        """Raise a Problem (503) if the process is not ready; it names what is missing."""
        if await self._check_if_due():
            self._requested.set()
        reason = None
        if self._state == "stopping":
            reason = "the process is stopping"
        elif self._missing:
            reason = "; ".join(self._missing)
        elif self._state == "starting":
            reason = "the process is starting"
        if reason:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")

    async def _check_if_due(self) -> bool:
        """Run all checks, unless they have just been run; return whether they were run. Log a change of the outcome."""
        async with self._lock:
            valid_for = MISSING_FRESH_SECONDS if self._missing else FRESH_SECONDS
            if self._state == "stopping" or time.monotonic() - self._checked_at < valid_for:
                return False
            parts = [*itertools.chain.from_iterable(await asyncio.gather(*(check() for check in self._checks)))]
            missing = tuple(f"{part.name} ({', '.join(sorted({*part.needed_by} & {*self._roles}))})" for part in parts)
            if missing and missing != self._missing:
                log.warning("not ready: %s", "; ".join(part.reason for part in parts), extra={"action": "not_ready"})
            elif missing != self._missing and self._state == "working":
                log.info("ready", extra={"action": "ready"})
            self._missing = missing
            self._checked_at = time.monotonic()
            return True


class State(BaseModel):
    """A state, and its beginning."""

    state: str
    since: datetime


class WorkersState(State):
    """The state of all workers."""

    live: int
    slots: int
    """Investigations that all of them can run at once."""


class Report(BaseModel):
    """The states of all parts; if several processes report a part, the worst counts."""

    status: Literal["ok", "degraded", "down"]
    database: State
    watch: State | None
    """The watch of the cluster; null without a controller."""
    workers: WorkersState
    mcp_servers: dict[str, State]
    providers: dict[str, State]
    """The providers that the platform file names or refers to."""


_GOOD = {"answering", "connected", "open", "present", "usable"}


class Health:
    """The states of all parts that the processes report; an answer is repeated for a second."""

    def __init__(self, database: databases.Database, process_reporter: reporter.Reporter) -> None:
        self._database = database
        self._reporter = process_reporter
        self._workers = component_states.StateTracker("absent")
        self._lock = asyncio.Lock()
        self._latest: Report | None = None
        self._checked_at = 0.0

    async def report(self) -> Report:
        """Return all states; if the database is unavailable, only those that this process knows."""
        async with self._lock:
            if self._latest is None or time.monotonic() - self._checked_at >= FRESH_SECONDS:
                self._latest = await self._check()
                self._checked_at = time.monotonic()
            return self._latest

    async def _check(self) -> Report:
        try:
            async with asyncio.timeout(schema.PING_SECONDS):
                facts: Sequence[system_warnings.ProcessFact] = await catalogue.read(
                    self._database, "process", "watch", "server", "provider"
                )
        except (errors.TemporaryError, TimeoutError):
            self._reporter.database.change("away")
            facts = self._reporter.facts()
        else:
            self._reporter.database.change("answering")
        return self._report(facts)

    def _report(self, facts: Sequence[system_warnings.ProcessFact]) -> Report:
        live = [fact for fact in facts if fact.kind == "process" and fact.detail.slots]
        self._workers.change("present" if live else "absent")
        since = min((fact.since for fact in live), default=self._workers.since)
        watches = [fact for fact in facts if fact.kind == "watch"]
        report = Report(
            status="ok",
            database=_state(self._reporter.database),
            watch=_state(system_warnings.worst(watches)) if watches else None,
            workers=WorkersState(
                state=self._workers.state,
                since=since,
                live=len(live),
                slots=sum(fact.detail.slots for fact in live),
            ),
            mcp_servers=_by_name(fact for fact in facts if fact.kind == "server"),
            providers=_by_name(fact for fact in facts if fact.kind == "provider" and fact.detail.named),
        )
        parts = (report.watch, report.workers, *report.mcp_servers.values(), *report.providers.values())
        if self._reporter.database.state == "away":
            report.status = "down"
        elif any(part is None or part.state not in _GOOD for part in parts):
            report.status = "degraded"
        return report


def _by_name(facts: Iterable[system_warnings.ProcessFact]) -> dict[str, State]:
    by_name: dict[str, list[system_warnings.ProcessFact]] = {}
    for fact in facts:
        by_name.setdefault(fact.name, []).append(fact)
    return {name: _state(system_warnings.worst(facts_of_name)) for name, facts_of_name in sorted(by_name.items())}


def _state(fact: system_warnings.ComponentState) -> State:
    return State(state=fact.state, since=fact.since)


def probes(readiness: Readiness) -> APIRouter:
    """Return the routes `/healthz` and `/readyz`, which need no token and which each process serves."""
    router = strict.router(tag="health")

    @router.get("/healthz", operation_id="checkLiveness")
    async def healthz() -> Serving:
        """Answer while the process lives and its main loop runs, whatever else is missing."""
        return Serving()

    @router.get("/readyz", operation_id="checkReadiness")
    async def readyz() -> Ready:
        """Answer 200 while the process can do the work of its roles; 503 names the missing parts."""
        await readiness.ensure()
        return Ready(notes=list(readiness.notes()))

    return router


def routes(health: Health) -> APIRouter:
    """Return the route `/health`, which needs no token."""
    router = strict.router(tag="health")

    @router.get("/health", operation_id="reportHealth", responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": Report}})
    async def report(response: Response) -> Report:
        """Return the states of all parts in all processes, without reasons and addresses, so no token is needed.

        503: the database is unavailable, and only the states that this process knows are listed.
        """
        current = await health.report()
        if current.status == "down":
            response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return current

    return router
