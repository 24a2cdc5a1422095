"""Writes `.status` (`investigation_statuses`) when the store has a newer one, and posts Kubernetes events.

A change of phase is written at once. Other changes of an object are written at an interval, because each write stores
the whole object again and wakes every replica's watch: one second for each ten objects in progress, three at most.

The status carries the revision of the `work` row. The CRD refuses a lower revision than the present one, so concurrent
and late writes of other replicas do no harm.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from uuid import UUID

from tarsy.controller import investigation_statuses, workqueue
from tarsy.kube import client, events, objects
from tarsy.resources import investigations
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import summaries
from tarsy.telemetry import metrics

POLL_SECONDS = 1.0
BATCH = 1000
WRITES_A_SECOND = 10
"""The limit for objects whose phase stays the same, unless the interval would exceed INTERVAL_MAX."""
INTERVAL_MIN, INTERVAL_MAX = 1.0, 3.0
"""Seconds between two writes of an object whose phase stays the same."""
FORGOTTEN_SECONDS = 60.0
"""Time without a write after which an object is forgotten: another replica may have written its last status."""
WRITERS = 4
REFUSED_SECONDS = 10.0
"""The pause after a refusal, for lack of a right, of a status in one namespace; its statuses stay out of date."""

log = logging.getLogger(__name__)


@dataclass
class _Written:
    """The last status that this process wrote of one investigation."""

    phase: str
    at: float
    """Monotonic seconds."""
    events: set[str] = field(default_factory=set)
    """Reason and message of each event that was posted."""


class Projector:
    """Writes the statuses of the investigations in the store to the cluster."""

    def __init__(self, *, cluster: client.Cluster, database: databases.Database, pages: str | None = None) -> None:
        """`pages` is the public address of the pages, to which statuses refer."""
        self._cluster = cluster
        self._database = database
        self._pages = pages
        self._queue = workqueue.WorkQueue(self._project, workers=WRITERS)
        self._missed = asyncio.Event()
        self._written: dict[UUID, _Written] = {}
        self._behind: dict[UUID, float] = {}
        """The investigations whose status is out of date, and the monotonic time since when none was written."""
        self._refused: dict[str, float] = {}
        """The namespaces in which a right is missing, and the monotonic time of the next attempt."""
        self._without_events: set[str] = set()
        """The namespaces in which the latest event was refused for lack of a right."""

    def oldest_unwritten(self) -> float:
        """Return the seconds for which the status that is longest out of date has not been written; 0 if none is."""
        return max(0.0, time.monotonic() - min(self._behind.values())) if self._behind else 0.0

    def hint(self, investigation: str = "") -> bool:
        """Queue `investigation`, whose status is out of date; for "", query the store for all such investigations.

        Return True: this process writes the status.
        """
        if investigation:
            self._queue.add(UUID(investigation))
        else:
            self._missed.set()
        return True

    async def run(self) -> None:
        """Write statuses until cancelled: after each hint, and every POLL_SECONDS."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._poll())

    async def _poll(self) -> None:
        while True:
            self._missed.clear()
            try:
                writable = [namespace for namespace in self._cluster.served if self._may_write(namespace)]
                stale, now = await work.stale(self._database, namespaces=writable, limit=BATCH), time.monotonic()
                self._behind = {identity: self._behind.get(identity, now) for identity in stale}
                for identity in stale:
                    if (written := self._written.get(identity)) is None or self._is_due(written):
                        self._queue.ensure(identity)
            except databases.StoreDownError as error:
                log.warning("statuses wait: %s", error, extra={"action": "projection_waits"})
            oldest = time.monotonic() - FORGOTTEN_SECONDS
            self._written = {identity: written for identity, written in self._written.items() if written.at >= oldest}
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._missed.wait()
            except TimeoutError:
                continue

    async def _project(self, identity: UUID) -> None:
        """Write one status: at once if its phase is new, else when the interval is over, which the poll checks."""
        summary = await summaries.load(self._database, identity)
        if summary is None or not summary.stale:  # another replica was faster
            if summary is None or summary.state == "ended":
                self._written.pop(identity, None)
            return
        if not self._may_write(summary.namespace):
            return
        status = investigation_statuses.build(summary, secrets=self._cluster.secrets, pages=self._pages)
        written = self._written.get(identity)
        if written is not None and written.phase == status.phase and not self._is_due(written):
            return
        posted = written.events if written else set()
        where = {"namespace": summary.namespace, "name": summary.name, "uid": str(identity)}
        try:
            outcome = await self._apply(status, **where)
            if outcome != "refused" and identity in self._behind:
                self._behind[identity] = time.monotonic()
            if outcome in ("refused", "older"):  # older: another replica was faster, and notes the revision it wrote
                return
            if outcome == "written":
                await self._post_events(summary, posted=posted, **where)
        except objects.RefusedError:
            # A defect of TARSy: the same status would be refused again. The next status may be accepted.
            log_fields = {"investigation": f"{summary.namespace}/{summary.name}", "uid": identity}
            log.exception("a status was refused", extra={"action": "status_refused", **log_fields})
            metrics.STATUSES_REFUSED.add()
        await work.projected(self._database, identity, revision=summary.revision)
        if summary.state == "ended":
            self._written.pop(identity, None)
        else:
            self._written[identity] = _Written(phase=status.phase, at=time.monotonic(), events=posted)

    async def _post_events(
        self, summary: summaries.Summary, *, posted: set[str], namespace: str, name: str, uid: str
    ) -> None:
        """Post the events that are not in `posted`, and add them to it.

        After a restart all events are posted again; the API server refuses those whose names it has. An event that is
        refused for lack of a right is not posted again; the refusal is logged once for its namespace.
        """
        for event in events_of(summary):
            if (key := f"{event.reason} {event.message}") not in posted:
                try:
                    await events.post(self._cluster, event, namespace=namespace, name=name, uid=uid)
                    self._without_events.discard(namespace)
                except objects.ForbiddenError as error:
                    if namespace not in self._without_events:
                        self._without_events.add(namespace)
                        log_fields = {"action": "events_refused", "namespace": namespace}
                        log.warning("events are left out in one namespace: %s", error, extra=log_fields)
                posted.add(key)

    def _may_write(self, namespace: str) -> bool:
        """Return whether statuses of a namespace are written now: it is served, and no right was just missed there."""
        return namespace in self._cluster.served and self._refused.get(namespace, 0.0) <= time.monotonic()

    async def _apply(
        self, status: investigations.Status, *, namespace: str, name: str, uid: str
    ) -> Literal["written", "gone", "older", "refused"]:
        """Write a status; "refused" if the right to it is missing. Then its namespace has a pause."""
        try:
            outcome = await objects.apply_status(self._cluster, namespace=namespace, name=name, uid=uid, status=status)
        except objects.ForbiddenError as error:
            if namespace not in self._refused:
                log.warning("statuses wait: %s", error, extra={"action": "statuses_refused", "namespace": namespace})
            self._refused[namespace] = time.monotonic() + REFUSED_SECONDS
            return "refused"
        self._refused.pop(namespace, None)
        return outcome

    def _is_due(self, written: _Written) -> bool:
        interval = min(max(INTERVAL_MIN, len(self._written) / WRITES_A_SECOND), INTERVAL_MAX)
        return time.monotonic() - written.at >= interval


def events_of(summary: summaries.Summary) -> Iterator[events.Event]:
    """Yield the Kubernetes events of the investigation so far."""
    if summary.started_at:
        message = f"chain {summary.chain_name} with {_stages(summary)}"
        yield events.Event(reason="Started", message=message, at=summary.started_at)
    for stage in summary.stages:
        yield from _events_of_stage(stage)
    if summary.ended_at and summary.ending:
        reason = "Completed" if summary.ending == "CompletedWithErrors" else summary.ending
        yield events.Event(
            reason=reason,
            message=summary.message or _stages(summary),
            at=summary.ended_at,
            warning=reason != "Completed",
        )
    for undelivered in summary.undelivered:
        yield events.Event(
            reason="DeliveryFailed",
            message=f"a message was given up; {undelivered.line}",
            at=undelivered.at,
            warning=True,
            recurs=True,
        )


def _stages(summary: summaries.Summary) -> str:
    count = len(summary.stage_names)
    return "1 stage" if count == 1 else f"{count} stages"


def _events_of_stage(stage: summaries.StageSummary) -> Iterator[events.Event]:
    """Yield the event of a stage's failure, and the event of the tools that its agents lacked."""
    if stage.ended_at is None:
        return
    failed = {
        "Failed": "StageFailed",
        "TimedOut": "StageFailed",
        "Completed": "AgentsFailed",
        "CompletedWithErrors": "SynthesisFailed" if stage.unjoined else "ToolsUnavailable",
    }
    if stage.message and (reason := failed.get(stage.outcome or "")):
        yield events.Event(
            reason=reason, message=f"stage {stage.name}: {stage.message}", at=stage.ended_at, warning=True
        )
    if stage.lacks:
        message = f"stage {stage.name}: {'; '.join(stage.lacks)}"
        yield events.Event(reason="ToolsUnavailable", message=message, at=stage.ended_at, warning=True)
