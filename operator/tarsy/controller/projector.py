"""Writes `.status` (`statuses`), whenever the store has moved on.

A change of phase is written at once. Other changes wait for their turn, because every status write stores the whole
object again, and every replica's watch tells of it: a second for each ten objects that are under way, three at most.

The revision of the work row goes along; the CRD refuses one that falls, so two replicas that project at once,
or a late one, can do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from tarsy.controller import statuses, workqueue
from tarsy.kube import client, objects
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import summaries

POLL_SECONDS = 1.0
BATCH = 1000
WRITES_A_SECOND = 10
"""The limit for objects whose phase stays the same, unless the interval would grow beyond LONGEST_TURN."""
SHORTEST_TURN, LONGEST_TURN = 1.0, 3.0
"""Seconds between two writes of an object whose phase stays."""
FORGOTTEN_SECONDS = 60.0
"""After so long without a write nothing is known of an object: others may have written its last status."""
WRITERS = 4

log = logging.getLogger(__name__)


@dataclass
class _Shown:
    """The last status that was written of one investigation."""

    phase: str
    at: float
    """Monotonic seconds."""
    events: set[str] = field(default_factory=set)
    """Reasons of the events that were posted."""


class Projector:
    """Projects what the store knows to the cluster."""

    def __init__(self, *, cluster: client.Cluster, database: databases.Database) -> None:
        self._cluster = cluster
        self._database = database
        self._queue = workqueue.WorkQueue(self._project, workers=WRITERS)
        self._missed = asyncio.Event()
        self._shown: dict[UUID, _Shown] = {}

    def hint(self, investigation: str = "") -> bool:
        """The status of `investigation` is out of date; without one, some may be. True: this process writes it."""
        if investigation:
            self._queue.add(UUID(investigation))
        else:
            self._missed.set()
        return True

    async def run(self) -> None:
        """Project until cancelled: on every hint, and every so often without."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            self._missed.clear()
            try:
                for identity in await work.stale(self._database, limit=BATCH):
                    if (projected := self._shown.get(identity)) is None or self._has_its_turn(projected):
                        self._queue.ensure(identity)
            except databases.StoreDownError as error:
                log.warning("statuses wait: %s", error, extra={"action": "projection_waits"})
            self._forget()
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._missed.wait()
            except TimeoutError:
                continue

    async def _project(self, identity: UUID) -> None:
        """Write one status; nothing of a phase that is shown already before its turn, the poll comes back to it."""
        summary = await summaries.load(self._database, identity)
        if summary is None or not summary.stale:  # another replica was faster
            if summary is None or summary.state == "ended":
                self._shown.pop(identity, None)
            return
        status = statuses.build(summary)
        projected = self._shown.get(identity)
        if projected is not None and projected.phase == status.phase and not self._has_its_turn(projected):
            return
        events = projected.events if projected else set()
        where = {"namespace": summary.namespace, "name": summary.name, "uid": str(identity)}
        try:
            outcome = await objects.apply_status(self._cluster, **where, status=status)
            if outcome == "older":  # another replica was faster, and will note what it wrote itself
                return
            if outcome == "written":
                await self._post_events(summary, events, where)
        except objects.RefusedError:
            # A defect of ours: the same status would be refused again. What comes next may not be.
            log_fields = {"investigation": f"{summary.namespace}/{summary.name}", "uid": identity}
            log.exception("a status was refused", extra={"action": "status_refused", **log_fields})
        await work.projected(self._database, identity, revision=summary.revision)
        if summary.state == "ended":
            self._shown.pop(identity, None)
        else:
            self._shown[identity] = _Shown(phase=status.phase, at=time.monotonic(), events=events)

    def _has_its_turn(self, projected: _Shown) -> bool:
        interval = min(max(SHORTEST_TURN, len(self._shown) / WRITES_A_SECOND), LONGEST_TURN)
        return time.monotonic() - projected.at >= interval

    def _forget(self) -> None:
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        for identity in [identity for identity, projected in self._shown.items() if projected.at < oldest]:
            del self._shown[identity]

    async def _post_events(self, summary: summaries.Summary, posted: set[str], where: dict[str, str]) -> None:
        """Post what is new; after a restart all are posted again, which the API server takes for the same."""
        for event in events_of(summary):
            if (key := f"{event.reason} {event.message}") not in posted:
                await objects.post_event(self._cluster, event, **where)
                posted.add(key)


def events_of(summary: summaries.Summary) -> Iterator[objects.Event]:
    """The Kubernetes events that tell the story of `summary` so far."""
    if summary.started_at:
        message = f"chain {summary.chain_name} with {_stages(summary)}"
        yield objects.Event(reason="Started", message=message, at=summary.started_at)
    for stage in summary.stages:
        yield from _events_of_stage(stage)
    if summary.ended_at and summary.ending:
        reason = "Completed" if summary.ending == "CompletedWithErrors" else summary.ending
        yield objects.Event(
            reason=reason,
            message=summary.message or _stages(summary),
            at=summary.ended_at,
            warning=reason != "Completed",
        )


def _stages(summary: summaries.Summary) -> str:
    count = len(summary.stage_names)
    return "1 stage" if count == 1 else f"{count} stages"


def _events_of_stage(stage: summaries.StageSummary) -> Iterator[objects.Event]:
    """Yield the event of what failed in a stage, and the one of what its agents had to do without."""
    if stage.ended_at is None:
        return
    failed = {
        "Failed": "StageFailed",
        "TimedOut": "StageFailed",
        "Completed": "AgentsFailed",
        "CompletedWithErrors": "SynthesisFailed" if stage.unjoined else "ToolsUnavailable",
    }
    if stage.message and (reason := failed.get(stage.outcome or "")):
        yield objects.Event(
            reason=reason, message=f"stage {stage.name}: {stage.message}", at=stage.ended_at, warning=True
        )
    if stage.lacks:
        message = f"stage {stage.name}: {'; '.join(stage.lacks)}"
        yield objects.Event(reason="ToolsUnavailable", message=message, at=stage.ended_at, warning=True)
