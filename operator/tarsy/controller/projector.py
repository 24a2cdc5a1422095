"""Writes `.status`: a pure function of the store, applied whenever the store has moved on.

The sequence number of the work row goes along; the CRD refuses one that falls, so two replicas that project at once,
or a late one, can do no harm.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime, timedelta
from uuid import UUID

from tarsy.kube import client, objects
from tarsy.resources import investigation
from tarsy.store import database as databases
from tarsy.store import history, work

POLL_SECONDS = 2.0
BATCH = 100
FINAL_ANALYSIS_MAX = 8192
MESSAGE_MAX = 1024

log = logging.getLogger(__name__)


class Projector:
    """Projects what the store knows to the cluster."""

    def __init__(self, *, cluster: client.Cluster, database: databases.Database) -> None:
        self._cluster = cluster
        self._database = database
        self._hinted = asyncio.Event()

    def hint(self) -> None:
        """A status may be out of date."""
        self._hinted.set()

    async def run(self) -> None:
        """Project until cancelled: on every hint, and every so often without."""
        while True:
            self._hinted.clear()
            try:
                for identity in await work.unprojected(self._database, limit=BATCH):
                    await self._project(identity)
            except (databases.StoreDownError, client.ClusterDownError) as error:
                log.warning("statuses wait: %s", error, extra={"action": "projection_waits"})
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._hinted.wait()
            except TimeoutError:
                continue

    async def _project(self, identity: UUID) -> None:
        found = await history.summary(self._database, identity)
        if found is None:
            return
        try:
            outcome = await objects.apply_status(
                self._cluster, namespace=found.namespace, name=found.name, uid=str(identity), status=status_of(found)
            )
        except objects.RefusedError:
            # A defect of ours: the same status would be refused again. What comes next may not be.
            log.exception("a status was refused", extra={"action": "status_refused", "investigation": identity})
        else:
            log.debug("projected", extra={"action": f"status_{outcome}", "investigation": identity})
        await work.projected(self._database, identity, seq=found.seq)


def status_of(found: history.Summary) -> investigation.Status:
    """The status that shows `found`."""
    started = {stage.name: stage for stage in found.stages}
    ended = sum(stage.ended_at is not None for stage in found.stages)
    running = next((stage.name for stage in found.stages if stage.ended_at is None), None)
    return investigation.Status(
        sequence=found.seq,
        observed_generation=found.generation,
        phase=_phase(found),
        conditions=_conditions(found),
        chain=_chain(found),
        progress=f"{ended}/{len(found.stage_names)}" if found.stage_names else "",
        current_stage=None if found.ended_at else running,
        stages=[_stage(name, started.get(name), over=found.ended_at is not None) for name in found.stage_names],
        usage=investigation.Usage(
            input_tokens=found.input_tokens,
            output_tokens=found.output_tokens,
            thinking_tokens=found.thinking_tokens,
            total_tokens=found.total_tokens,
            llm_calls=found.llm_calls,
            tool_calls=sum(stage.tool_calls for stage in found.stages),
        ),
        final_analysis=found.final_analysis[:FINAL_ANALYSIS_MAX],
        final_analysis_truncated=len(found.final_analysis) > FINAL_ANALYSIS_MAX,
        message=found.message[:MESSAGE_MAX],
        attempts=found.attempts,
        start_time=found.started_at,
        completion_time=found.ended_at,
        duration=_duration(found.started_at, found.ended_at),
    )


def _phase(found: history.Summary) -> investigation.Phase:
    match found.ending, found.state:
        case "Completed" | "CompletedWithErrors" | "Failed" as ending, _:
            return ending
        case _, "running":
            return "Running"
        case _:
            return "Queued"


def _conditions(found: history.Summary) -> list[investigation.Condition]:
    def condition(kind: str, *, true: bool, reason: str, at: datetime, message: str = "") -> investigation.Condition:
        return investigation.Condition(
            type=kind,
            status="True" if true else "False",
            reason=reason,
            message=message[:MESSAGE_MAX],
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
        reason, at = ("Running", found.started_at) if found.started_at else ("Queued", found.admitted_at)
        return [*conditions, condition("Reconciling", true=True, reason=reason, at=at or found.admitted_at)]
    outcome = "Failed" if found.ending == "Failed" else "Complete"
    ends = ["Finished", outcome, *(["Stalled"] if outcome == "Failed" else [])]
    return conditions + [
        condition(kind, true=True, reason=found.reason, at=found.ended_at, message=found.message) for kind in ends
    ]


def _chain(found: history.Summary) -> investigation.ChainReference | None:
    if found.chain_name is None:
        return None
    return investigation.ChainReference(
        name=found.chain_name, namespace=found.chain_namespace or "", generation=found.chain_generation or 0
    )


def _stage(name: str, stage: history.Stage | None, *, over: bool) -> investigation.StageStatus:
    if stage is None:
        return investigation.StageStatus(name=name, phase="Pending")
    # One that was under way when its investigation was given up has no outcome.
    unended: investigation.StagePhase = "Failed" if over else "Running"
    phases: dict[str | None, investigation.StagePhase] = {"Completed": "Completed", "Failed": "Failed"}
    return investigation.StageStatus(
        name=name,
        phase=phases.get(stage.outcome, unended),
        start_time=stage.started_at,
        completion_time=stage.ended_at,
        iterations=stage.iterations,
        tool_calls=stage.tool_calls,
        tokens=stage.tokens,
        message=stage.message[:MESSAGE_MAX],
    )


def _duration(start: datetime | None, end: datetime | None) -> str:
    """Whole seconds as Kubernetes prints them (`1m32s`), "" until both are known."""
    if start is None or end is None:
        return ""
    seconds = round((end - start) / timedelta(seconds=1))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes or hours else "") + f"{seconds}s"
