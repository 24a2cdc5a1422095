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
from tarsy.resources import base, investigation
from tarsy.store.base import database as databases
from tarsy.store.queue import work
from tarsy.store.reads import history, phase_rules
from tarsy.transcript import printable

POLL_SECONDS = 1.0
BATCH = 1000
FINAL_ANALYSIS_MAX = 8192
SUMMARY_MAX = 1024
GAP_MAX, GAP_CHARACTERS = 800, 253
"""Of what a gap's tool and reason are, each: bytes, and characters."""
WRITES_A_SECOND = 10
"""Of objects whose phase stays, as long as no turn gets longer than LONGEST_TURN for it."""
SHORTEST_TURN, LONGEST_TURN = 1.0, 3.0
"""Seconds between two writes of an object whose phase stays."""
FORGOTTEN_SECONDS = 60.0
"""After so long without a write nothing is known of an object: others may have written its last status."""
WRITERS = 4

log = logging.getLogger(__name__)


@dataclass
class _Shown:
    """What was last written of one investigation."""

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
                    if (shown := self._shown.get(identity)) is None or self._has_its_turn(shown):
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
        found = await history.summary(self._database, identity)
        if found is None or not found.stale:  # another replica was faster
            if found is None or found.state == "ended":
                self._shown.pop(identity, None)
            return
        status = status_of(found)
        shown = self._shown.get(identity)
        if shown is not None and shown.phase == status.phase and not self._has_its_turn(shown):
            return
        events = shown.events if shown else set()
        where = {"namespace": found.namespace, "name": found.name, "uid": str(identity)}
        try:
            outcome = await objects.apply_status(self._cluster, **where, status=status)
            if outcome == "older":  # another replica was faster, and will note what it wrote itself
                return
            if outcome == "written":
                await self._post_events(found, events, where)
        except objects.RefusedError:
            # A defect of ours: the same status would be refused again. What comes next may not be.
            told = {"investigation": f"{found.namespace}/{found.name}", "uid": identity}
            log.exception("a status was refused", extra={"action": "status_refused", **told})
        await work.projected(self._database, identity, revision=found.revision)
        if found.state == "ended":
            self._shown.pop(identity, None)
        else:
            self._shown[identity] = _Shown(phase=status.phase, at=time.monotonic(), events=events)

    def _has_its_turn(self, shown: _Shown) -> bool:
        turn = min(max(SHORTEST_TURN, len(self._shown) / WRITES_A_SECOND), LONGEST_TURN)
        return time.monotonic() - shown.at >= turn

    def _forget(self) -> None:
        oldest = time.monotonic() - FORGOTTEN_SECONDS
        for identity in [identity for identity, shown in self._shown.items() if shown.at < oldest]:
            del self._shown[identity]

    async def _post_events(self, found: history.Summary, posted: set[str], where: dict[str, str]) -> None:
        """Post what is new; after a restart all are posted again, which the API server takes for the same."""
        for event in events_of(found):
            if (key := f"{event.reason} {event.message}") not in posted:
                await objects.post_event(self._cluster, event, **where)
                posted.add(key)


def events_of(found: history.Summary) -> Iterator[objects.Event]:
    """The Kubernetes events that tell the story of `found` so far."""
    if found.started_at:
        message = f"chain {found.chain_name} with {_stages(found)}"
        yield objects.Event(reason="Started", message=message, at=found.started_at)
    for stage in found.stages:
        yield from _events_of_stage(stage)
    if found.ended_at and found.ending:
        reason = "Completed" if found.ending == "CompletedWithErrors" else found.ending
        yield objects.Event(
            reason=reason,
            message=found.message or _stages(found),
            at=found.ended_at,
            warning=reason != "Completed",
        )


def _stages(found: history.Summary) -> str:
    count = len(found.stage_names)
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


def status_of(found: history.Summary) -> investigation.Status:
    """The status that shows `found`."""
    started = {stage.name: stage for stage in found.stages}
    analysis = printable.text(given.KNOWN.text(found.final_analysis))
    shown = _cut(analysis, FINAL_ANALYSIS_MAX)
    ended = sum(_ended_by_itself(stage, of=found) for stage in found.stages)
    running = next((stage.name for stage in found.stages if stage.ended_at is None), None)
    return investigation.Status(
        sequence=found.revision,
        observed_generation=found.generation,
        phase=found.phase,
        conditions=_conditions(found),
        author=_cut(found.author, investigation.AUTHOR_MAX) or None,
        chain=_chain(found),
        progress=f"{ended}/{len(found.stage_names)}" if found.stage_names else None,
        current_stage=None if found.ended_at else running,
        stages=[
            _stage(name, started.get(name), agents=agents, of=found)
            for name, agents in zip(found.stage_names, found.stage_agents, strict=True)
        ],
        usage=investigation.Usage(
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            thinking_tokens=found.thinking_tokens,
            total_tokens=found.total_tokens,
            llm_calls=found.llm_calls,
            tool_calls=found.tool_calls,
            cost=None if found.cost is None else investigation.cost_text(found.cost),
        ),
        target=_cut(found.target, investigation.TARGET_MAX) or None,
        headline=_headline(found) or None,
        summary=_cut(found.summary, SUMMARY_MAX) or None,
        gaps=[
            investigation.Gap(
                tool=_cut(gap["tool"], GAP_MAX)[:GAP_CHARACTERS], reason=_cut(gap["reason"], GAP_MAX)[:GAP_CHARACTERS]
            )
            for gap in found.gaps
        ],
        final_analysis=shown or None,
        final_analysis_truncated=shown != analysis or None,
        message=_cut(found.shown_message, base.MESSAGE_MAX) or None,
        attempts=found.attempts,
        duplicates=found.duplicates,
        alert_status=found.alert_status,
        previous=_previous(found),
        start_time=found.started_at,
        completion_time=found.ended_at,
        duration=_duration(found.started_at, found.ended_at),
        transcript=f"/api/v1/investigations/{found.id}",
    )


def _headline(found: history.Summary) -> str:
    """The result of `found` in one short line; of what has failed, or has no result, its message."""
    has_result = found.ending in ("Completed", "CompletedWithErrors")
    texts = (found.summary, found.final_analysis) if has_result else ()
    shown = next(filter(None, (headline.of(given.KNOWN.text(text)) for text in texts)), "")
    return shown or headline.cut(given.KNOWN.text(found.shown_message))


def _time(at: datetime) -> str:
    """A time in UTC, to the second (RFC 3339)."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _conditions(found: history.Summary) -> list[base.Condition]:
    def condition(kind: str, *, true: bool, reason: str, at: datetime, message: str = "") -> base.Condition:
        return base.Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=_cut(message, base.MESSAGE_MAX),
            last_transition_time=at,
            observed_generation=found.generation,
        )

    accepted = found.chain_name is not None
    refusal = "" if accepted else found.message
    conditions = [
        condition(
            "Accepted",
            true=accepted,
            reason="Admitted" if accepted else found.reason,
            at=found.admitted_at,
            message=refusal,
        )
    ]
    if found.ended_at is None:
        at = found.started_at or found.admitted_at
        # A status that stands still looks like work, unless it says when it was true.
        as_of = f"as of {_time(found.committed_at or at)}, the last commit"
        message = "; ".join(filter(None, [as_of, found.waits_for or "; ".join(found.retrying)]))
        return [*conditions, condition("Reconciling", true=True, reason=found.phase, at=at, message=message)]
    outcome = {"Failed": "Failed", "TimedOut": "Failed", "Cancelled": "Cancelled"}.get(found.ending or "", "Complete")
    ends = ["Finished", outcome, *(["Stalled"] if outcome == "Failed" else [])]
    conditions += [
        condition(kind, true=True, reason=found.reason, at=found.ended_at, message=found.message) for kind in ends
    ]
    if found.grounds:
        true = found.grounds in ("Inspected", "InspectedWithGaps")
        gaps = "; ".join(f"{gap['tool']}: {gap['reason']}" for gap in found.gaps)
        conditions.append(condition("Grounded", true=true, reason=found.grounds, at=found.ended_at, message=gaps))
    return conditions


def _chain(found: history.Summary) -> investigation.ChainReference | None:
    if found.chain_name is None:
        return None
    return investigation.ChainReference(
        name=found.chain_name,
        namespace=found.chain_namespace or "",
        generation=found.chain_generation or 0,
        hash=found.chain_hash or "",
    )


def _previous(found: history.Summary) -> investigation.Previous | None:
    if found.previous is None:
        return None
    return investigation.Previous(name=found.previous.name, uid=str(found.previous.id))


def _ended_by_itself(stage: history.Stage, *, of: history.Summary) -> bool:
    return phase_rules.ended_by_itself(
        stage.outcome, says_the_same=stage.message == of.message, reason=of.reason if of.ended_at else None
    )


def _stage(name: str, stage: history.Stage | None, *, agents: int, of: history.Summary) -> investigation.StageStatus:
    if stage is None:
        return investigation.StageStatus(
            name=name, phase="Cancelled" if of.ended_at else "Pending", agents=f"0/{agents}"
        )
    phases: dict[str | None, investigation.StagePhase] = {
        "Completed": "Completed",
        "CompletedWithErrors": "CompletedWithErrors",
        "Failed": "Failed",
        "TimedOut": "TimedOut",
        "Cancelled": "Cancelled",
        "Skipped": "Skipped",
        None: "Running",
    }
    return investigation.StageStatus(
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
    """As much of `text` as `longest` bytes of the object's JSON hold: printable, and without known secrets."""
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
