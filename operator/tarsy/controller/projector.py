"""Writes `.status`: a pure function of the store, applied whenever the store has moved on.

A change of phase is written at once. Other changes wait for their turn, because every status write stores the whole
object again, and every replica's watch tells of it: a second for each ten objects that are under way, three at most.

The revision of the work row goes along; the CRD refuses one that falls, so two replicas that project at once,
or a late one, can do no harm.
"""

from __future__ import annotations

import asyncio
import bisect
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tarsy.controller import headline, workqueue
from tarsy.kube import client, objects
from tarsy.masking import given
from tarsy.resources import base, investigations
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.store.reads import history, phase_rules
from tarsy.transcript import printable

POLL_SECONDS = 1.0
BATCH = 1000
FINAL_ANALYSIS_MAX = 8192
SUMMARY_MAX = 1024
GAP_MAX, GAP_CHARACTERS = 800, 253
"""The bounds of a gap's tool and of its reason, each: bytes, and characters."""
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
        summary = await history.summary(self._database, identity)
        if summary is None or not summary.stale:  # another replica was faster
            if summary is None or summary.state == "ended":
                self._shown.pop(identity, None)
            return
        status = status_of(summary)
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

    async def _post_events(self, summary: history.Summary, posted: set[str], where: dict[str, str]) -> None:
        """Post what is new; after a restart all are posted again, which the API server takes for the same."""
        for event in events_of(summary):
            if (key := f"{event.reason} {event.message}") not in posted:
                await objects.post_event(self._cluster, event, **where)
                posted.add(key)


def events_of(summary: history.Summary) -> Iterator[objects.Event]:
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


def _stages(summary: history.Summary) -> str:
    count = len(summary.stage_names)
    return "1 stage" if count == 1 else f"{count} stages"


def _events_of_stage(stage: history.Stage) -> Iterator[objects.Event]:
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


def status_of(summary: history.Summary) -> investigations.Status:
    """The status that shows `summary`."""
    started = {stage.name: stage for stage in summary.stages}
    analysis = printable.text(given.KNOWN.text(summary.final_analysis))
    excerpt = _cut(analysis, FINAL_ANALYSIS_MAX)
    ended = sum(phase_rules.ended_by_itself(stage.outcome, cut_off=stage.cut_off) for stage in summary.stages)
    running = next((stage.name for stage in summary.stages if stage.ended_at is None), None)
    return investigations.Status(
        sequence=summary.revision,
        observed_generation=summary.generation,
        phase=summary.phase,
        conditions=_conditions(summary),
        author=_cut(summary.author, investigations.AUTHOR_MAX) or None,
        chain=_chain(summary),
        progress=f"{ended}/{len(summary.stage_names)}" if summary.stage_names else None,
        current_stage=None if summary.ended_at else running,
        stages=[
            _stage(name, started.get(name), agents=agents, of=summary)
            for name, agents in zip(summary.stage_names, summary.stage_agents, strict=True)
        ],
        usage=investigations.Usage(
            input_tokens=summary.input_tokens,
            output_tokens=summary.output_tokens,
            thinking_tokens=summary.thinking_tokens,
            total_tokens=summary.total_tokens,
            llm_calls=summary.llm_calls,
            tool_calls=summary.tool_calls,
            cost=None if summary.cost is None else investigations.cost_text(summary.cost),
        ),
        target=_cut(summary.target, investigations.TARGET_MAX) or None,
        headline=_headline(summary) or None,
        summary=_cut(summary.summary, SUMMARY_MAX) or None,
        gaps=[
            investigations.Gap(
                tool=_cut(gap["tool"], GAP_MAX)[:GAP_CHARACTERS], reason=_cut(gap["reason"], GAP_MAX)[:GAP_CHARACTERS]
            )
            for gap in summary.gaps
        ],
        final_analysis=excerpt or None,
        final_analysis_truncated=excerpt != analysis or None,
        message=_cut(summary.shown_message, base.MESSAGE_MAX) or None,
        attempts=summary.attempts,
        duplicates=summary.duplicates,
        alert_status=summary.alert_status,
        previous=_previous(summary),
        start_time=summary.started_at,
        completion_time=summary.ended_at,
        duration=_duration(summary.started_at, summary.ended_at),
        transcript=f"/api/v1/investigations/{summary.id}",
    )


def _headline(summary: history.Summary) -> str:
    """The result of `summary` in one short line; of what has failed, or has no result, its message."""
    has_result = summary.ending in ("Completed", "CompletedWithErrors")
    texts = (summary.summary, summary.final_analysis) if has_result else ()
    sentence = next(filter(None, (headline.headline(given.KNOWN.text(text)) for text in texts)), "")
    return sentence or headline.cut(given.KNOWN.text(summary.shown_message))


def _time(at: datetime) -> str:
    """A time in UTC, to the second (RFC 3339)."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(summary: history.Summary) -> list[base.Condition]:
    def condition(kind: str, *, true: bool, reason: str, at: datetime, message: str = "") -> base.Condition:
        return base.Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=_cut(message, base.MESSAGE_MAX),
            last_transition_time=at,
            observed_generation=summary.generation,
        )

    accepted = summary.chain_name is not None
    refusal = "" if accepted else summary.message
    conditions = [
        condition(
            "Accepted",
            true=accepted,
            reason="Admitted" if accepted else summary.reason,
            at=summary.admitted_at,
            message=refusal,
        )
    ]
    if summary.ended_at is None:
        at = summary.started_at or summary.admitted_at
        # A status that stands still looks like work, unless it says when it was true.
        as_of = f"as of {_time(summary.committed_at or at)}, the last commit"
        message = "; ".join(filter(None, [as_of, summary.waits_for or "; ".join(summary.retrying)]))
        return [*conditions, condition("Reconciling", true=True, reason=summary.phase, at=at, message=message)]
    outcome = {"Failed": "Failed", "TimedOut": "Failed", "Cancelled": "Cancelled"}.get(summary.ending or "", "Complete")
    ends = ["Finished", outcome, *(["Stalled"] if outcome == "Failed" else [])]
    conditions += [
        condition(kind, true=True, reason=summary.reason, at=summary.ended_at, message=summary.message) for kind in ends
    ]
    if summary.grounds:
        true = summary.grounds in ("Inspected", "InspectedWithGaps")
        gaps = "; ".join(f"{gap['tool']}: {gap['reason']}" for gap in summary.gaps)
        conditions.append(condition("Grounded", true=true, reason=summary.grounds, at=summary.ended_at, message=gaps))
    return conditions


def _chain(summary: history.Summary) -> investigations.ChainReference | None:
    if summary.chain_name is None:
        return None
    return investigations.ChainReference(
        name=summary.chain_name,
        namespace=summary.chain_namespace or "",
        generation=summary.chain_generation or 0,
        hash=summary.chain_hash or "",
    )


def _previous(summary: history.Summary) -> investigations.Previous | None:
    if summary.previous is None:
        return None
    return investigations.Previous(name=summary.previous.name, uid=str(summary.previous.id))


def _stage(name: str, stage: history.Stage | None, *, agents: int, of: history.Summary) -> investigations.StageStatus:
    if stage is None:
        return investigations.StageStatus(
            name=name, phase="Cancelled" if of.ended_at else "Pending", agents=f"0/{agents}"
        )
    phases: dict[str | None, investigations.StagePhase] = {
        "Completed": "Completed",
        "CompletedWithErrors": "CompletedWithErrors",
        "Failed": "Failed",
        "TimedOut": "TimedOut",
        "Cancelled": "Cancelled",
        "Skipped": "Skipped",
        None: "Running",
    }
    return investigations.StageStatus(
        name=name,
        phase=phases[stage.outcome],
        agents=f"{stage.completed}/{agents}",
        start_time=stage.started_at,
        completion_time=stage.ended_at if stage.started_at else None,
        duration=_duration(stage.started_at, stage.ended_at),
        iterations=stage.iterations,
        tool_calls=stage.tool_calls,
        tokens=stage.total_tokens,
        message=_cut("; ".join(filter(None, [stage.message, *stage.lacks])), base.MESSAGE_MAX) or None,
    )


def _cut(text: str, longest: int) -> str:
    """Return the beginning of `text` that fits into `longest` bytes of JSON, printable and without known secrets."""
    text = printable.text(given.KNOWN.text(text))[:longest]

    def size(end: int) -> int:
        return len(json.dumps(text[:end], ensure_ascii=False).encode()) - len('""')

    return text[: bisect.bisect_right(range(1, len(text) + 1), longest, key=size)]


def _duration(start: datetime | None, end: datetime | None) -> str | None:
    """Whole seconds as Kubernetes prints them (`1m32s`), None until both are known."""
    if start is None or end is None:
        return None
    seconds = round((end - start) / timedelta(seconds=1))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{seconds}s"
