"""Live events for earlier clients: sessions instead of investigations, and updates of their stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from tarsy.api.compat import stages, statuses
from tarsy.live import live_events
from tarsy.resources import investigations
from tarsy.store.reads import stage_rows, summaries
from tarsy.transcript import entries
from tarsy.views import base


class StageProgress(base.View):
    """The progress of one stage."""

    stage: str
    agent: str
    """The agents' names, joined if there are several; "" if the chain's snapshot cannot be read."""
    status: statuses.Stage


class AlertStatusUpdate(base.View):
    """The progress of an investigation, sent when its chain or a stage begins or ends."""

    type: Literal["alert_status"] = "alert_status"
    alert_id: UUID
    status: statuses.Processing
    current_step: str
    chain_id: str | None
    current_stage: str | None
    """The stage that runs."""
    total_stages: int
    completed_stages: int
    """The number of stages that have ended in any way; skipped stages do not count."""
    stage_progress: list[StageProgress]
    current_agent: str | None
    """The agents' names, joined if there are several."""
    result: str | None
    """The final analysis, once there is one."""
    error: str | None
    """The reason why it failed, or was stopped."""


@dataclass(frozen=True)
class SessionTranslation:
    """The translation of live events, a `live_events.Translation`."""

    prefix: str = "session"

    def translate(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Return an event with the names of earlier clients, and with their status if it has a phase."""
        translated = {"session_id" if key == "investigation" else key: value for key, value in message.items()}
        subject, dot, rest = message["type"].partition(".")
        if subject == "investigation":
            translated["type"] = f"{self.prefix}{dot}{rest}"
        if phase := message.get("phase"):
            translated["status"] = statuses.INVESTIGATIONS[phase].session
            translated["has_errors"] = phase == "CompletedWithErrors"
        return translated

    def entry_updates(
        self,
        entry: entries.Entry | entries.Unreadable,
        summary: summaries.Summary,
        progress: stage_rows.StageProgress | None,
    ) -> Iterator[live_events.Body]:
        """Yield the updates of the chain and its stages that an entry of the log causes."""
        return map(_body, entry_updates(entry, summary, _chain(progress)))

    def updates_since(
        self, since: int, summary: summaries.Summary, progress: stage_rows.StageProgress | None
    ) -> tuple[Sequence[live_events.Body], int]:
        """Return the updates after the first `since` ones, and the number of all so far."""
        updates, count = updates_since(since, summary, _chain(progress))
        return [_body(update) for update in updates], count


def _chain(progress: stage_rows.StageProgress | None) -> Sequence[stages.ChainStage]:
    return stages.chain_stages(progress) if progress else ()


def _body(update: AlertStatusUpdate) -> live_events.Body:
    return update.type, update.model_dump(mode="json", exclude={"type"})


def entry_updates(
    entry: entries.Entry | entries.Unreadable, summary: summaries.Summary, chain: Sequence[stages.ChainStage] = ()
) -> Iterator[AlertStatusUpdate]:
    """Yield the updates of an entry: none, unless the chain or a stage begins or ends with it.

    Each shows the state right after the entry, even if `summary` was read later. In the log's order, the first is
    `Starting chain execution` (before the first stage), and the last is `Chain execution finished`.
    """
    match entry:
        case entries.StageStarted(run=entries.INVESTIGATION, stage=stage):
            cause = ("StageStarted", stage)
        case entries.StageEnded(run=entries.INVESTIGATION, stage=stage):
            cause = ("StageEnded", stage)
        case entries.RunEnded(run=entries.INVESTIGATION):
            cause = ("RunEnded", "")
        case _:
            return
    yield from (_update(summary, chain, step) for step in _steps(summary) if step.cause == cause)


def updates_since(
    since: int, summary: summaries.Summary, chain: Sequence[stages.ChainStage] = ()
) -> tuple[Sequence[AlertStatusUpdate], int]:
    """Return the updates of an investigation after the first `since` ones, and the number of all so far.

    With `since` -1 only the latest is returned.
    """
    steps = list(_steps(summary))
    return [_update(summary, chain, step) for step in steps[since:]], len(steps)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A step of an investigation that has an update."""

    cause: tuple[str, str]
    """The kind of its entry, and the stage."""
    text: str
    outcomes: Mapping[str, str | None]
    """The outcomes of the stages that have started or were skipped by then."""
    current: str | None = None
    """The stage that runs."""
    is_end: bool = False


def _steps(summary: summaries.Summary) -> Iterator[_Step]:
    """Yield the steps so far, in order; a later summary adds to them."""
    outcomes: dict[str, str | None] = {}
    begun = False
    for stage in summary.stages:
        name = stage.name
        if stage.outcome == "Skipped":
            outcomes = {**outcomes, name: "Skipped"}
            continue
        if not begun:
            yield _Step(cause=("StageStarted", name), text="Starting chain execution", outcomes={})
            begun = True
        outcomes = {**outcomes, name: None}
        yield _Step(cause=("StageStarted", name), text=f"Starting {name}", outcomes=outcomes, current=name)
        if stage.outcome:
            outcomes = {**outcomes, name: stage.outcome}
            yield _Step(cause=("StageEnded", name), text=f"Completed {name}", outcomes=outcomes)
    if summary.ended_at and summary.ending:
        yield _Step(cause=("RunEnded", ""), text="Chain execution finished", outcomes=outcomes, is_end=True)


def _update(summary: summaries.Summary, chain: Sequence[stages.ChainStage], step: _Step) -> AlertStatusUpdate:
    agents = {stage.name: stage.agent for stage in chain}
    phase = cast("investigations.Phase", summary.ending) if step.is_end else "Running"
    return AlertStatusUpdate(
        alert_id=summary.id,
        status=statuses.INVESTIGATIONS[phase].processing,
        current_step=step.text,
        chain_id=summary.chain_name,
        current_stage=step.current,
        total_stages=len(summary.stage_names),
        completed_stages=sum(outcome not in (None, "Skipped") for outcome in step.outcomes.values()),
        stage_progress=[
            StageProgress(
                stage=name,
                agent=agents.get(name, ""),
                status=statuses.stage_status(name, step.outcomes, ended=step.is_end).status,
            )
            for name in summary.stage_names
        ],
        current_agent=agents.get(step.current or "") or None,
        result=summary.final_analysis or None if step.is_end else None,
        error=statuses.error_message(phase, summary.message or summary.reason),
    )
