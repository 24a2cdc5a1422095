"""How far an investigation is, as earlier clients ask for it, and as they are told of it while it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from pydantic import Field

from tarsy.api.compat import plans, words
from tarsy.api.investigations import reads
from tarsy.store.base import databases
from tarsy.store.reads import summaries
from tarsy.transcript import entries
from tarsy.views import base

WITH_ITS_CHAIN = 20
"""Percent, once a worker has had it."""


class ProcessingStatus(base.View):
    """How far an investigation is."""

    alert_id: UUID
    """The investigation's id."""
    status: words.Processing
    progress: Annotated[int, Field(ge=0, le=100)]
    """Percent: 0 until a worker has it, 20 then, more with each stage that ends, 100 once it has ended."""
    message: str


class StageProgress(base.View):
    """How far one stage is."""

    stage: str
    agent: str
    """The agents' names, joined if there are several; "" if the chain's snapshot cannot be read."""
    status: words.Stage


class AlertStatusUpdate(base.View):
    """How far an investigation is, told when its chain or a stage begins or ends."""

    type: Literal["alert_status"] = "alert_status"
    alert_id: UUID
    status: words.Processing
    current_step: str
    chain_id: str | None
    current_stage: str | None
    """The stage that runs."""
    total_stages: int
    completed_stages: int
    """Those that have ended, however they did, but for skipped ones."""
    stage_progress: list[StageProgress]
    current_agent: str | None
    """The agents' names, joined if there are several."""
    result: str | None
    """The final analysis, once there is one."""
    error: str | None
    """Why it failed, or was stopped."""


async def read(database: databases.Database, identity: UUID) -> ProcessingStatus:
    """Serve `GET /processing-status/{alert_id}`."""
    summary = await summaries.load(database, identity)
    if summary is None:
        raise reads.unknown_investigation(identity)
    return processing_status(summary)


def processing_status(summary: summaries.Summary) -> ProcessingStatus:
    """How far `summary` is."""
    status = words.INVESTIGATIONS[summary.phase].processing
    return ProcessingStatus(
        alert_id=summary.id, status=status, progress=_percent(summary), message=_message(summary, status)
    )


def _percent(summary: summaries.Summary) -> int:
    if summary.ended_at:
        return 100
    if summary.started_at is None:
        return 0
    ended = sum(stage.ended_at is not None for stage in summary.stages)
    left = 100 - WITH_ITS_CHAIN
    return min(WITH_ITS_CHAIN + left * ended // max(len(summary.stage_names), 1), 99)


def _message(summary: summaries.Summary, status: words.Processing) -> str:
    match status:
        case "queued":
            return summary.waits_for or "Alert queued for processing"
        case "processing":
            return f"Executing chain: {summary.chain_name}"
        case "completed":
            return "Processing completed"
        case "failed":
            return f"Error: {summary.message or summary.reason}"


def alert_status_updates(
    entry: entries.Entry | entries.Unreadable, summary: summaries.Summary, chain: Sequence[plans.Plan] = ()
) -> Iterator[AlertStatusUpdate]:
    """Yield the updates of an entry: none, unless the chain or a stage begins or ends with it.

    Each shows the state right after the entry, whatever has happened since: in the log's order they are the whole
    story, from `Starting chain execution` (before the first stage) to `Chain execution finished`. `summary` is read at
    the entry or later; `chain` has the names of agents.
    """
    outcomes = {stage.name: stage.outcome for stage in summary.stages}
    match entry:
        case entries.StageStarted(run=entries.INVESTIGATION, stage=stage):
            before = {name: outcomes.get(name) for name in _before(stage, summary)}
            if not before:
                yield _update(summary, chain, before, step="Starting chain execution")
            yield _update(summary, chain, before | {stage: None}, step=f"Starting {stage}", current=stage)
        case entries.StageEnded(run=entries.INVESTIGATION, stage=stage, outcome=outcome) if outcome != "Skipped":
            before = {name: outcomes.get(name) for name in _before(stage, summary)}
            yield _update(summary, chain, before | {stage: outcome}, step=f"Completed {stage}")
        case entries.RunEnded(run=entries.INVESTIGATION):
            yield _update(summary, chain, outcomes, step="Chain execution finished", ended=entry)


def updates_since(
    since: int, summary: summaries.Summary, chain: Sequence[plans.Plan] = ()
) -> tuple[Sequence[AlertStatusUpdate], int]:
    """The updates of an investigation behind the first `since` ones, and the number of all so far.

    The same as its log gives, made from its numbers: so a reader of many investigations needs no log. With `since` -1
    only the latest is returned.
    """
    steps = list(_steps(summary))
    return [_update(summary, chain, **step) for step in steps[since:]], len(steps)


def _steps(summary: summaries.Summary) -> Iterator[dict[str, Any]]:
    """Yield the differences between the updates of an investigation, in order; a later call only adds to them."""
    outcomes: dict[str, str | None] = {}
    begun = False
    for stage in summary.stages:
        if stage.outcome == "Skipped":
            outcomes[stage.name] = "Skipped"
            continue
        if not begun:
            yield {"outcomes": {}, "step": "Starting chain execution"}
            begun = True
        outcomes[stage.name] = None
        yield {"outcomes": dict(outcomes), "step": f"Starting {stage.name}", "current": stage.name}
        if stage.outcome:
            outcomes[stage.name] = stage.outcome
            yield {"outcomes": dict(outcomes), "step": f"Completed {stage.name}"}
    if summary.ended_at and summary.ending:
        ended = entries.RunEnded(
            ending=cast("entries.Ending", summary.ending),
            reason=summary.reason,
            message=summary.message,
            final_analysis=summary.final_analysis,
        )
        yield {"outcomes": outcomes, "step": "Chain execution finished", "ended": ended}


def _before(stage: str, summary: summaries.Summary) -> Sequence[str]:
    """The stages before one: by then they have ended."""
    return list(itertools.takewhile(lambda name: name != stage, summary.stage_names))


def _update(
    summary: summaries.Summary,
    chain: Sequence[plans.Plan],
    outcomes: Mapping[str, str | None],
    *,
    step: str,
    current: str | None = None,
    ended: entries.RunEnded | None = None,
) -> AlertStatusUpdate:
    """Return the update of an investigation whose stages are in this state."""
    agents = {plan.name: plan.agent for plan in chain}
    status = words.INVESTIGATIONS[ended.ending].processing if ended else "processing"
    analysis = (ended.final_analysis or summary.final_analysis) if ended else ""  # pages of the log have none
    return AlertStatusUpdate(
        alert_id=summary.id,
        status=status,
        current_step=step,
        chain_id=summary.chain_name,
        current_stage=current,
        total_stages=len(summary.stage_names),
        completed_stages=sum(outcome not in (None, "Skipped") for outcome in outcomes.values()),
        stage_progress=[
            StageProgress(
                stage=name,
                agent=agents.get(name, ""),
                status=words.of_stage(name, outcomes, ended=ended is not None).status,
            )
            for name in summary.stage_names
        ],
        current_agent=agents.get(current) or None if current else None,
        result=analysis or None,
        error=(ended.message or ended.reason) if ended and status == "failed" else None,
    )
