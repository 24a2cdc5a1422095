"""Lists of investigations: a row for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from tarsy.resources import investigations
from tarsy.store.reads import listing, summaries, verdicts
from tarsy.transcript import entries
from tarsy.views import base


class Previous(base.View):
    """An earlier investigation of the same alert, or of its group, which this one follows."""

    id: UUID
    name: str


class Split(base.View):
    """An investigation that an alert was taken out of, or that one got which was taken out."""

    id: UUID
    name: str


class RetryOf(base.View):
    """The ended investigation that this one runs again."""

    id: UUID
    name: str
    from_stage: str | None
    """The first stage that ran again, with copies of the results of the earlier ones; None for all."""


class RetriedBy(base.View):
    """The newest investigation that runs this one again."""

    id: UUID
    name: str


class StageProgress(base.View):
    """A stage of the chain, also one that has not begun."""

    name: str
    agents: list[str]
    """The names of its agents, one for each; empty if an earlier version of TARSy admitted the investigation."""
    phase: investigations.StagePhase
    started_at: datetime | None
    seconds: float | None
    """From start to end; None if it has not ended, or never started."""
    message: str
    """The errors of the stage; the first 300 characters."""
    copied: bool
    """Whether it ran in the investigation that this one runs again: its work is a copy, its cost is counted there."""


class Deletion(base.View):
    """The deletion of an investigation, which can be restored until it is purged."""

    at: datetime
    purge_at: datetime | None
    """The time after which it is purged, by `retention.purge` as it is now; None while it is held, or in a dry run."""
    hold: str | None
    """The reason that keeps it; None without one."""


class Row(base.View):
    """One investigation in a list; a single investigation has these fields and more."""

    id: UUID
    namespace: str
    name: str
    alert_type: str
    alert_status: Literal["firing", "resolved"] | None
    severity: str | None
    fingerprint: str | None
    """The fingerprint of its alert; None if it stands for no alert."""
    author: str
    """The author; "" if unknown."""
    chain_name: str | None
    phase: investigations.Phase
    progress: str
    """The number of ended stages, of all stages, such as 1/3."""
    current_stage: str | None
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    seconds: float | None
    """From start to end; None if it has not ended, or never started."""
    total_tokens: int
    cost: base.Cost | None
    """The cost of its model calls, a decimal number as text; None if none had a price."""
    summary: str
    """The final analysis in a few lines; in a list its first 1,024 characters."""
    message: str
    """The reason of its end, or of its waiting; in a list its first 1,024 characters."""
    grounded: bool | None
    """Whether its result rests on something that was inspected; None without a result."""
    duplicates: int
    """The number of repeats of its alert that were counted on it."""
    alert_count: int | None
    """The number of its alerts, if others have joined the first one; else None."""
    previous: Previous | None
    """The investigation that it follows; None if it follows none."""
    retry_of: RetryOf | None
    """The ended investigation that it runs again; None if it is no retry."""
    retried_by: RetriedBy | None
    """The newest investigation that runs it again; None if none does."""
    split_from: Split | None
    """The investigation that its alert was taken out of; None if it was taken out of none."""
    split_into: list[Split]
    """The 10 newest investigations of alerts that were taken out of it, the newest first."""
    labels: dict[str, str]
    """The labels that identify its alert: alertname, namespace, and the one that names a workload, node or instance."""
    alert_summary: str
    """The first line of the alert's annotation `summary`, 253 characters at most; "" without one."""
    grounds: entries.Grounds | None
    """The grounds of the result; None without a result."""
    stage_progress: list[StageProgress]
    """All stages of the chain, in its order."""
    feedback: dict[verdicts.Verdict, int]
    """The number of persons with each verdict on it."""
    deletion: Deletion | None
    """Its deletion; None but in a list of deleted ones."""


class Page(base.View):
    """A page of investigations."""

    items: list[Row]
    namespaces: list[str]
    """The namespaces of the list: those that the request names, else all that are served and the caller may list."""
    unchecked_namespaces: list[base.UncheckedNamespace]
    """The namespaces that may be missing in the list: whether the caller may list them cannot be checked now."""
    counts: dict[investigations.Phase, int]
    """The number of investigations that match all filters but `phase`, by phase."""
    counts_exact: bool
    """Whether the counts are complete; else there may be more: see `q`."""
    next: str | None
    """The cursor of the next page; None on the last page. A page with a cursor may have few items: see `q`."""


def page(
    listed: listing.Page,
    *,
    namespaces: Iterable[str],
    unchecked: Mapping[str, str],
    cursor: str | None,
    purge_after: timedelta | None,
) -> Page:
    """Return a page of a list of `namespaces`, without `unchecked` ones; `cursor` is the next page's.

    `purge_after` is the time from a deletion to the purge; None if none is purged.
    """
    return Page(
        items=[row(investigation, purge_after=purge_after) for investigation in listed.items],
        namespaces=sorted(namespaces),
        unchecked_namespaces=base.unchecked_namespaces(unchecked),
        counts=dict(listed.counts),
        counts_exact=listed.exact,
        next=cursor,
    )


def deletion(*, at: datetime | None, hold: str | None, purge_after: timedelta | None) -> Deletion | None:
    """Return the deletion of an investigation, or None if it is not deleted."""
    if at is None:
        return None
    return Deletion(at=at, purge_at=None if hold is not None or purge_after is None else at + purge_after, hold=hold)


def row(listed: listing.Listed, *, purge_after: timedelta | None = None) -> Row:
    """Return the row of an investigation."""
    fields = {field.name: getattr(listed, field.name) for field in dataclasses.fields(listed)}
    return Row.model_validate(
        fields
        | {
            "seconds": base.seconds(listed.started_at, listed.ended_at),
            "stage_progress": stage_progress(listed.stage_list),
            "deletion": deletion(at=listed.deleted_at, hold=listed.hold, purge_after=purge_after),
        }
    )


def stage_progress(stages: Iterable[summaries.ListedStage]) -> list[StageProgress]:
    """Return the stages of an investigation."""
    return [
        StageProgress(
            name=stage.name,
            agents=list(stage.agents),
            phase=stage.phase,
            started_at=stage.started_at,
            seconds=base.seconds(stage.started_at, stage.ended_at),
            message=stage.message,
            copied=stage.is_copy,
        )
        for stage in stages
    ]
