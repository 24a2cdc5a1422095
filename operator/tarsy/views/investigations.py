"""One investigation: its facts and its state; alone, and as a complete export."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import RootModel, WithJsonSchema

from tarsy.ingest import retries
from tarsy.resources import chains, schema
from tarsy.store.reads import group_alerts, phase_rules, summaries, transcript_pages, verdicts
from tarsy.transcript import entries
from tarsy.views import base, executions, rows, timelines, transcripts

EXPORT_VERSION = 2


class StageSummary(base.View):
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
    """The number of its agents that have completed."""
    iterations: int
    tool_calls: int
    total_tokens: int


class Gap(base.View):
    """Something that could not be inspected."""

    tool: str
    reason: str


class Feedback(base.View):
    """The feedback of a person on an investigation."""

    author: str
    verdict: verdicts.Verdict
    """Whether it was right."""
    cause: str
    """The true cause, in the person's words, masked; "" if none was given."""
    note: str
    """Masked; "" if none was given."""
    given_at: datetime
    changed_at: datetime


class Run(base.View):
    """One run: 0 is the investigation itself, each later one a question that was asked after its end."""

    number: int
    kind: Literal["investigation", "chat"]
    question: str
    """The question, masked; "" for the investigation itself."""
    attempts: int
    started_at: datetime | None
    """The time of its first claim by a worker."""
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    """The final analysis; of a question its answer."""
    cost: base.Cost | None
    """The cost of its model calls, a decimal number as text; None if none had a price."""


class ChainSpec(RootModel[Annotated[dict[str, Any], WithJsonSchema(schema.crd_schema(chains.Spec, at="chain"))]]):
    """A chain's spec as it was written, masked."""


class GroupAlert(base.View):
    """One alert of a group, masked."""

    alert_type: str
    severity: str
    fingerprint: str
    status: Literal["firing", "resolved"]
    starts_at: datetime
    labels: dict[str, str]
    """Those that identify it."""


class ListedAlert(GroupAlert):
    """One alert in the list of an investigation's alerts."""

    number: int
    """Rises with each alert that joins; 0 for the alert that the investigation was made for."""


class AlertPage(base.View):
    """A page of the alerts of an investigation, as they joined."""

    items: list[ListedAlert]
    last: int
    """The number of the last alert that the page has: `after` of the next page."""
    more: bool
    """Whether there are further alerts."""


class AlertTypeCount(base.View):
    """The number of alerts of a type."""

    alert_type: str
    count: int


class GroupAlerts(base.View):
    """The alerts of an investigation."""

    total: int
    firing: int
    types: list[AlertTypeCount]
    """The 20 most frequent types."""
    newest: list[GroupAlert]
    """The 10 newest alerts, the newest first."""


class Facts(rows.Row):
    """The facts of one investigation, without its log."""

    generation: int
    """The generation of its object, as last seen."""
    state: str
    """queued, running or ended."""
    cancel: str | None
    """The reason of its cancellation: user, deleted or resolved."""
    suspend: bool
    waits_for: str
    """The thing it waits for, if no worker can run it: a program that can read its log, or a usable LLM provider."""
    alert_data: str
    """The alert as the agents read it, masked."""
    runbook_url: str | None
    generator_url: str | None
    """The page of the alert's rule, as the sender of the notification gave it, masked."""
    external_url: str | None
    """The page of the notification's sender, masked."""
    mcp: dict[str, Any] | None
    """The alert's selection of tools; null without one."""
    chain_namespace: str | None
    chain_generation: int | None
    chain_hash: str | None
    chain: ChainSpec | None
    """The chain's spec at the time of the admission, masked; None if there was no chain."""
    stage_names: list[str]
    """The chain's stages, with those that have not started."""
    stage_agents: list[int]
    """The number of agents of each stage."""
    stages: list[StageSummary]
    """The stages that have started, or were skipped."""
    hold: str | None
    """The reason that keeps it from deletion; null without one."""
    revision: int
    """Rises with every change; `status.sequence` in the cluster."""
    attempts: int
    """The number of times that a worker began it."""
    ending: str | None
    reason: str
    final_analysis: str
    gaps: list[Gap]
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    llm_calls: int
    tool_calls: int
    retriable_stages: list[str]
    """The stages from which it can be run again; empty if it has not ended, or had no chain."""
    runs: list[Run]
    """Its own run, then the questions."""
    alert_group: GroupAlerts | None
    """Its alerts, if others have joined the first one."""
    feedback_by_person: list[Feedback]
    """The feedback of each person, the latest change first; of 50 persons at most."""


class Investigation(Facts):
    """An investigation and its state; its messages and calls are under `/messages` and `/trace`."""

    executions: list[executions.Execution]
    """By run, stage as it began, and position in it; the first 1,000 of the runs above."""
    unreadable: list[transcripts.Unreadable]
    """The first entries of its log whose kind or version this version of TARSy does not know."""


class Export(Facts):
    """The JSON document: all stored facts of one investigation; each list has the order of the commits."""

    version: Literal[2]
    """Rises if programs that read the document have to change.

    1 had most of the facts in an object `summary`, costs as numbers, `native` and `attempts` of other names.
    """
    log_seq: int
    """The number of the last entry of the log that the document includes."""
    alerts: list[ListedAlert]
    """Its alerts, as they joined."""
    executions: list[executions.WholeExecution]
    messages: list[transcripts.Message]
    llm_interactions: list[transcripts.ModelCall]
    mcp_interactions: list[transcripts.ToolCall]
    timeline: list[timelines.Event]
    """Each event in its newest form."""
    unreadable: list[transcripts.Unreadable]


def alert_page(alerts: list[group_alerts.Listed], *, after: int, more: bool) -> AlertPage:
    """Return the page of alerts whose numbers are above `after`."""
    return AlertPage(
        items=[ListedAlert.model_validate(vars(alert)) for alert in alerts],
        last=alerts[-1].number if alerts else after,
        more=more,
    )


def facts(details: summaries.Details, *, mask: base.Mask) -> Facts:
    """Return the facts of an investigation."""
    summary = details.summary
    return Facts.model_validate(
        {
            **vars(summary),
            "phase": summary.phase,
            "progress": summary.progress,
            "current_stage": summary.current_stage,
            "seconds": base.seconds(summary.started_at, summary.ended_at),
            "message": summary.shown_message,
            "waits_for": summary.waits_for,
            "grounded": phase_rules.is_grounded(summary.grounds),
            "alert_data": details.alert_data,
            "severity": details.severity,
            "stage_progress": rows.stage_progress(summary.stage_list),
            "generator_url": details.generator_url,
            "external_url": details.external_url,
            "fingerprint": details.fingerprint,
            "runbook_url": details.runbook_url,
            "mcp": details.mcp and details.mcp.model_dump(mode="json", exclude_none=True),
            "chain": None if details.chain is None else ChainSpec(base.masked(details.chain, mask)),
            "retriable_stages": _retriable_stages(details),
            "runs": details.runs,
            "alert_count": summary.alerts and summary.alerts.total,
            "alert_group": summary.alerts,
            "feedback": details.feedback,
            "feedback_by_person": details.feedback_by_person,
            "deletion": None,
        }
    )


def _retriable_stages(details: summaries.Details) -> list[str]:
    summary = details.summary
    if summary.ended_at is None or details.chain is None:
        return []
    outcomes = {stage.name: stage.outcome for stage in summary.stages if stage.outcome and not stage.cut_off}
    stops = details.chain.get("failurePolicy") == "Stop"
    return retries.retriable_stages(summary.stage_names, outcomes, stops_after_failure=stops)


def investigation(
    details: summaries.Details,
    outlines: Iterable[transcript_pages.ExecutionOutline],
    unreadable: Iterable[tuple[int, entries.Unreadable]],
    *,
    mask: base.Mask,
) -> Investigation:
    """Return an investigation with its executions and the entries of its log that cannot be read."""
    return Investigation(
        **dict(facts(details, mask=mask)),
        executions=[executions.Execution.model_validate(outline) for outline in outlines],
        unreadable=[transcripts.unreadable(*numbered) for numbered in unreadable],
    )
