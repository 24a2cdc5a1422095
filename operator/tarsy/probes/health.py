"""Readiness: whether this process can do the work of its roles now, and if not, what is missing.

What each role needs is in `checks`. A process answers before anything of it is there, says what it waits for, and looks
again until it is. MCP servers and models are not asked for: what lacks one says so in its transcript, and other
investigations run. Whether to restart the process is another question, and `/healthz` asks for nothing: that it is
answered says that the process lives and its loop turns, and a restart mends no database.

`Health` says of all processes how everything stands that they know of, MCP servers and providers too.

The answers are for everybody, so they name what is missing, and states; why is in the log.
"""

from __future__ import annotations

import asyncio
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
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, reporter
from tarsy.telemetry import standing
from tarsy.views import system_warnings

FRESH_SECONDS = 1.0
MISSING_FRESH_SECONDS = 0.2
"""Seconds for which an answer is repeated: requests without a token must not keep the database busy."""
PROBES = ("/healthz", "/readyz")
AGAIN_SECONDS = 5.0
"""Seconds after which a waiting process looks again; sooner if its readiness is asked for."""

log = logging.getLogger(__name__)


class Serving(BaseModel):
    """The process serves."""

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The process can do the work of its roles."""

    status: Literal["ready"] = "ready"
    notes: list[str] = []
    """Further warnings: of a platform file that is not in force as it stands."""


class Readiness:
    """The readiness of one process."""

    def __init__(
        self, roles: Collection[settings.Role], *wanted: checks.Need, notes: Callable[[], Sequence[str]] = tuple
    ) -> None:
        """`roles` are those of this process, which needs what is `wanted`; it is starting.

        `notes` are told to everybody with the answer that it is ready.
        """
        self.notes = notes
        self._roles = roles
        self._wanted: list[checks.Need] = list(wanted)
        self._state: Literal["starting", "working", "stopping"] = "starting"
        self._one_at_a_time = asyncio.Lock()
        self._asked = asyncio.Event()
        """Set once readiness has been asked for, and the missing parts have been looked up."""
        self._missing: tuple[str, ...] = ()
        self._looked = -FRESH_SECONDS

    def want(self, need: checks.Need) -> None:
        """Be not ready without this, either, from now on."""
        self._wanted.append(need)

    async def provided(self, *wanted: checks.Need) -> None:
        """Return once nothing of these is missing; as long as something is, all that is missing is told."""
        while True:
            self._asked.clear()
            if not any(await asyncio.gather(*(need() for need in wanted))):
                return
            await self._look_if_due()
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._asked.wait()

    def start(self) -> None:
        """Be ready from now on, where nothing is missing."""
        self._state = "working"

    def stop(self) -> None:
        """Be not ready from now on."""
        self._state = "stopping"

    async def check(self) -> None:
        """Serve `GET /readyz`: return, or say with a problem what is missing."""
        if await self._look_if_due():
            self._asked.set()
        if self._state == "stopping":
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the process is stopping")
        if self._missing:
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {'; '.join(self._missing)}")
        if self._state == "starting":
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, "not ready: the process is starting")

    async def _look_if_due(self) -> bool:
        """Find what is missing, unless that has just been done; whether it was done now."""
        async with self._one_at_a_time:
            fresh = MISSING_FRESH_SECONDS if self._missing else FRESH_SECONDS
            due = time.monotonic() - self._looked >= fresh and self._state != "stopping"
            if due:
                await self._check()
                self._looked = time.monotonic()
            return due

    async def _check(self) -> None:
        """Find what is missing, each with the roles of this process that need it; tell the log what has changed."""
        all_missing = [lack for missing in await asyncio.gather(*(need() for need in self._wanted)) for lack in missing]
        missing = tuple(f"{lack.what} ({self._needing(lack)})" for lack in all_missing)
        if missing and missing != self._missing:
            log.warning("not ready: %s", "; ".join(lack.why for lack in all_missing), extra={"action": "not_ready"})
        elif missing != self._missing and self._state == "working":
            log.info("ready", extra={"action": "ready"})
        self._missing = missing

    def _needing(self, missing: checks.Missing) -> str:
        return ", ".join(role for role in sorted(missing.needed_by) if role in self._roles)


class State(BaseModel):
    """How something stands, and since when."""

    state: str
    since: datetime


class WorkersState(State):
    """The workers that are there."""

    live: int
    slots: int
    """Investigations that they can run at once, all together."""


class Report(BaseModel):
    """How everything stands; of what several processes tell the worst counts."""

    status: Literal["ok", "degraded", "down"]
    database: State
    watch: State | None
    """The watch of the cluster; null without a controller."""
    workers: WorkersState
    mcp_servers: dict[str, State]
    providers: dict[str, State]
    """Those that the platform file has or that anything refers to."""


_GOOD = {"answering", "connected", "open", "present", "usable"}


class Health:
    """How everything stands that the processes know of, by what they have said; one answer is given for a second."""

    def __init__(self, database: databases.Database, facts_keeper: reporter.Reporter) -> None:
        self._database = database
        self._kept = facts_keeper
        self._workers = standing.Standing("absent")
        self._one_at_a_time = asyncio.Lock()
        self._latest: Report | None = None
        self._looked = 0.0

    async def report(self) -> Report:
        """How everything stands. Where the database is away, only what this process knows by itself."""
        async with self._one_at_a_time:
            if self._latest is None or time.monotonic() - self._looked >= FRESH_SECONDS:
                self._latest = await self._check()
                self._looked = time.monotonic()
            return self._latest

    async def _check(self) -> Report:
        try:
            async with asyncio.timeout(databases.PING_SECONDS):
                facts: Sequence[system_warnings.ProcessFact] = await catalogue.read(
                    self._database, "process", "watch", "server", "provider"
                )
        except (errors.TemporaryError, TimeoutError):
            self._kept.database.be("away")
            facts = self._kept.facts()
        else:
            self._kept.database.be("answering")
        return self._report(facts)

    def _report(self, facts: Sequence[system_warnings.ProcessFact]) -> Report:
        live = [fact for fact in facts if fact.kind == "process" and fact.detail.slots]
        self._workers.be("present" if live else "absent")
        since = min((fact.since for fact in live), default=self._workers.since)
        watches = [fact for fact in facts if fact.kind == "watch"]
        report = Report(
            status="ok",
            database=_state(self._kept.database),
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
        if self._kept.database.state == "away":
            report.status = "down"
        elif any(part is None or part.state not in _GOOD for part in parts):
            report.status = "degraded"
        return report


def _by_name(facts: Iterable[system_warnings.ProcessFact]) -> dict[str, State]:
    places: dict[str, list[system_warnings.ProcessFact]] = {}
    for fact in facts:
        places.setdefault(fact.name, []).append(fact)
    return {name: _state(system_warnings.worst(facts_of_name)) for name, facts_of_name in sorted(places.items())}


def _state(fact: system_warnings.ComponentState) -> State:
    return State(state=fact.state, since=fact.since)


def probes(readiness: Readiness) -> APIRouter:
    """`/healthz` and `/readyz`, for everybody, of each process."""
    router = strict.router(tag="health")

    @router.get("/healthz", operation_id="checkLiveness")
    async def healthz() -> Serving:
        """Say that the process lives and its main loop turns, whatever else is missing."""
        return Serving()

    @router.get("/readyz", operation_id="checkReadiness")
    async def readyz() -> Ready:
        """Say that the process can do the work of its roles; 503 names what is missing."""
        await readiness.check()
        return Ready(notes=list(readiness.notes()))

    return router


def routes(health: Health) -> APIRouter:
    """`/health`, for everybody."""
    router = strict.router(tag="health")

    @router.get("/health", operation_id="reportHealth", responses={HTTPStatus.SERVICE_UNAVAILABLE: {"model": Report}})
    async def report(response: Response) -> Report:
        """Tell how everything stands, in all processes: states, and never reasons or addresses, so it needs no token.

        503: the database is away, and only what this process knows by itself is told.
        """
        current = await health.report()
        if current.status == "down":
            response.status_code = HTTPStatus.SERVICE_UNAVAILABLE
        return current

    return router
