"""Reads of investigations, for people and programs: what one is and how it stands, and its timeline.

What is answered are models of this room, made from what the store has: the two may change apart.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from pydantic import RootModel, WithJsonSchema

from tarsy.api.investigations import lists, reads
from tarsy.auth import permissions
from tarsy.resources import chains, schema
from tarsy.serve import answers, strict
from tarsy.store.base import databases
from tarsy.store.reads import conversations, history, phase_rules
from tarsy.transcript import entries, timeline
from tarsy.views import shapes, timelines, transcripts

EVENTS_MAX = 500
"""Events of one page of a timeline."""
RUNS_MAX = 100
"""Runs that are told of an investigation: its own, and the newest questions."""
EXECUTIONS_MAX = 1000
"""Executions of theirs that are told, the first ones."""
UNREADABLE_MAX = 100
"""Entries that cannot be read, of which is told."""


class StageSummary(shapes.Part):
    """One stage in numbers."""

    name: str
    outcome: str | None
    message: str
    """The errors of the stage."""
    lacks: list[str]
    """The things that its agents lacked."""
    started_at: datetime | None
    ended_at: datetime | None
    completed: int
    """How many of its agents have completed."""
    iterations: int
    tool_calls: int
    total_tokens: int


class Gap(shapes.Part):
    """Something that could not be inspected."""

    tool: str
    reason: str


class Run(shapes.Part):
    """One run: 0 is the investigation itself, each later one a question that was asked after its end."""

    number: int
    kind: Literal["investigation", "chat"]
    question: str
    """Masked."""
    attempts: int
    started_at: datetime | None
    """When a worker first had it."""
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    """The final analysis; of a question its answer."""
    cost: shapes.Cost | None
    """The cost of its model calls, a decimal number as text; None if none had a price."""


class ChainSpec(RootModel[Annotated[dict[str, Any], WithJsonSchema(schema.crd_schema(chains.Spec, at="chain"))]]):
    """A chain's spec as it was written, masked."""


class Facts(shapes.Row):
    """The facts of one investigation, without its log."""

    generation: int
    """The generation of its object, as last seen."""
    state: str
    """queued, running or ended."""
    cancel: str | None
    """Why it was cancelled: user, deleted or resolved."""
    suspend: bool
    waits_for: str
    """The thing it waits for, if no worker can run it: a program that can read its log, or a usable LLM provider."""
    alert_data: str
    """As the agents read it, masked."""
    runbook_url: str | None
    mcp: dict[str, Any] | None
    """The alert's selection of tools; null without one."""
    chain_namespace: str | None
    chain_generation: int | None
    chain_hash: str | None
    chain: ChainSpec | None
    """The chain's spec as it was when the investigation was admitted, masked; None where there was none."""
    stage_names: list[str]
    """The chain's stages, those that have not started too."""
    stage_agents: list[int]
    """How many agents each of them has."""
    stages: list[StageSummary]
    """Those that have started, or were skipped."""
    revision: int
    """Rises with every change; `status.sequence` in the cluster."""
    attempts: int
    """How often a worker began it."""
    ending: str | None
    reason: str
    final_analysis: str
    gaps: list[Gap]
    grounds: entries.Grounds | None
    """The grounds of the result; None without a result."""
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    llm_calls: int
    tool_calls: int
    runs: list[Run]
    """Its own, and then the questions."""


class Investigation(Facts):
    """An investigation and its state; its messages and calls are under `/messages` and `/trace`."""

    executions: list[shapes.Execution]
    """By run, stage as it began, and place in it; the first 1,000 of the runs above."""
    unreadable: list[shapes.Unreadable]
    """The first entries of its log that are of a kind or a version which this version of TARSy does not know."""


def routes(database: databases.Database, may: permissions.Access, room: answers.Room) -> APIRouter:
    """An investigation, and its timeline."""
    router = strict.router(prefix="/api/v1/investigations/{identity}", tag="investigations")

    @router.get("", operation_id="readInvestigation", response_model=Investigation)
    async def investigation(target: permissions.Known = Depends(may.reads)) -> Response:
        """Return an investigation and its state, with its newest 100 runs."""
        return await room.answer(lambda: read(database, target.id))

    @router.get("/timeline", operation_id="readTimeline", response_model=timelines.Timeline)
    async def timeline(
        target: permissions.Known = Depends(may.reads),
        after: Annotated[int, Query(ge=0, le=2**63 - 1, description="`last` of the page before; 0 begins.")] = 0,
        limit: Annotated[int, Query(ge=1, le=EVENTS_MAX, description="Of events, or a few more.")] = EVENTS_MAX,
    ) -> Response:
        """Return the events of the timeline that changed after entry `after`, in their newest form."""
        return await room.answer(lambda: read_timeline(database, target.id, after=after, limit=limit))

    return router


async def read(database: databases.Database, identity: UUID) -> Investigation:
    """Serve `GET /api/v1/investigations/{id}`; the id is the object's uid."""
    with reads.store_is_up():
        head = await history.head(database, identity, runs=RUNS_MAX)
        if head is None:
            raise reads.none_such(identity)
        runs = [run.number for run in head.runs]
        outlines = await conversations.outlines(database, identity, upto=head.log_seq, limit=EXECUTIONS_MAX, runs=runs)
        unknown = await conversations.unknown(database, identity, upto=head.log_seq, limit=UNREADABLE_MAX)
    return Investigation(
        **dict(await asyncio.to_thread(facts, head)),
        executions=[shapes.Execution.model_validate(row) for row in outlines],
        unreadable=[transcripts.unreadable(*row) for row in unknown],
    )


async def read_timeline(database: databases.Database, identity: UUID, *, after: int, limit: int) -> timelines.Timeline:
    """Serve `GET /api/v1/investigations/{id}/timeline`: what changed behind entry `after`, `limit` events or so.

    A page ends with an entry, never inside one: who goes on from its `last` misses nothing. It is empty only where
    nothing follows.
    """
    entries_max = limit
    while True:
        with reads.store_is_up():
            log_page = await history.log_page(database, identity, after=after, limit=entries_max)
        if log_page is None:
            raise reads.none_such(identity)
        page = await asyncio.to_thread(_timeline, log_page, after=after, limit=limit)
        if log_page.last == after:  # there is no more, whatever the number of its last entry says
            return page.model_copy(update={"more": False})
        if page.events or not page.more:
            return page
        after, entries_max = page.last, EVENTS_MAX


def facts(head: history.Head) -> Facts:
    """Return the facts of an investigation, as they are answered."""
    summary = head.summary
    return Facts.model_validate(
        {
            **vars(summary),
            "phase": summary.phase,
            "progress": summary.progress,
            "current_stage": summary.current_stage,
            "seconds": lists.seconds(summary.started_at, summary.ended_at),
            "message": summary.shown_message,
            "waits_for": summary.waits_for,
            "grounded": phase_rules.is_grounded(summary.grounds),
            "alert_data": head.alert_data,
            "severity": head.severity,
            "fingerprint": head.fingerprint,
            "runbook_url": head.runbook_url,
            "mcp": head.mcp and head.mcp.model_dump(mode="json", exclude_none=True),
            "chain": None if head.chain is None else ChainSpec(transcripts.masked(head.chain)),
            "runs": head.runs,
        }
    )


def _timeline(page: history.LogPage, *, after: int, limit: int) -> timelines.Timeline:
    events, last = timeline.page(
        timeline.fold(page.log, claims=page.claims, executions=page.executions),
        after=after,
        last=page.last,
        limit=limit,
    )
    page_events = [timelines.Event.model_validate(event) for event in events]
    return timelines.Timeline(events=page_events, last=last, more=page.more or last < page.last)
