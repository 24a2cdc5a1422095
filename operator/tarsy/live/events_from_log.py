"""The live events of entries of a log, in the log's order. Pure functions.

An entry may have several live events; only the last one carries the entry's number. So a client that resumes after a
number has received all events of that entry, and one that was cut off within an entry receives them again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarsy.live import live_events
from tarsy.store.reads import log_entries, phase_rules, stage_rows, summaries
from tarsy.transcript import entries, timeline, timeline_events
from tarsy.views import timelines


@dataclass(frozen=True, kw_only=True)
class EntryEvents:
    """The live events of one entry."""

    seq: int
    entry: entries.Entry | entries.Unreadable
    execution: str
    events: Sequence[live_events.LiveEvent]
    timeline_ids: Collection[str]
    """The ids of the timeline events among them."""


def from_page(
    page: log_entries.LogPage,
    *,
    investigation: UUID,
    after: int,
    summary: summaries.Summary | None,
    translation: live_events.Translation | None = None,
    course: stage_rows.StageProgress | None = None,
    streamed: Collection[str] = (),
) -> list[EntryEvents]:
    """Return the live events of the entries after `after` in a page of the log, in their state at the page's end.

    `summary` is required if `needs_summary(page, ...)`. `course` has the stages, for the updates of `translation`.
    `streamed` has the ids of timeline events that were sent while they were written.
    """
    log = [logged for logged in page.log if logged.seq <= page.last]
    timeline_by_seq: dict[int, list[timeline_events.Event]] = defaultdict(list)
    for event in timeline.fold(log, claims=page.claims, executions=page.executions):
        timeline_by_seq[event.seq].append(event)
    page_events = []
    for logged in log:
        if logged.seq <= after:
            continue
        in_timeline = timeline_by_seq.get(logged.seq, [])
        bodies = [*(_timeline_body(event, logged, after, streamed) for event in in_timeline), *_bodies(logged, summary)]
        last = len(bodies) - 1
        events = [
            live_events.LiveEvent(kind, body, investigation=investigation, id=logged.seq if index == last else None)
            for index, (kind, body) in enumerate(bodies)
        ]
        if translation and summary:
            updates = translation.entry_updates(logged.entry, summary, course)
            events = [*update_events(updates, translation, investigation=summary.id), *events]
        page_events.append(
            EntryEvents(
                seq=logged.seq,
                entry=logged.entry,
                execution=logged.execution,
                events=events,
                timeline_ids=[event.id for event in in_timeline],
            )
        )
    return page_events


def needs_summary(page: log_entries.LogPage, *, after: int) -> bool:
    """Whether a stage starts, or a stage or run ends, in a page: their events need the investigation's summary."""
    return any(
        logged.seq > after and isinstance(logged.entry, entries.StageStarted | entries.StageEnded | entries.RunEnded)
        for logged in page.log
    )


def update_events(
    updates: Iterable[live_events.Body], translation: live_events.Translation, *, investigation: UUID
) -> Iterator[live_events.LiveEvent]:
    """Return the updates of a translation as live events for its channels only."""
    return (live_events.LiveEvent(kind, body, investigation=investigation, only=translation) for kind, body in updates)


def _timeline_body(
    event: timeline_events.Event, logged: entries.Logged, after: int, streamed: Collection[str]
) -> live_events.Body:
    is_new = event.created_seq > after and event.id not in streamed
    kind = "timeline_event.created" if is_new else "timeline_event.completed"
    return kind, {"run": logged.run, "event": timelines.Event.model_validate(event).model_dump(mode="json")}


def _bodies(logged: entries.Logged, summary: summaries.Summary | None) -> Iterator[live_events.Body]:
    """Yield the event of the start or end of a stage, an investigation or a question."""
    at = {"run": logged.run, "at": live_events.timestamp(logged.at)}
    match logged.entry:
        case entries.StageStarted(stage=stage):
            yield "stage.started", {"stage": stage, **at}
        case entries.StageEnded() as entry:
            body = {"stage": entry.stage, "outcome": entry.outcome, "message": entry.message, "lacks": [*entry.lacks]}
            yield "stage.completed", body | at
        case entries.RunEnded() as entry:
            end = {"ending": entry.ending, "reason": entry.reason, "message": entry.message}
            if entry.run != entries.INVESTIGATION:
                yield "question.completed", end | at
            else:
                yield "investigation.completed", end_body(summary) if summary else {"phase": entry.ending, **end}


def end_body(summary: summaries.Summary) -> dict[str, Any]:
    """Return the fields of the event of an ended investigation."""
    return {
        "phase": summary.phase,
        "ending": summary.ending,
        "reason": summary.reason,
        "message": summary.message,
        "final_analysis": summary.final_analysis,
        "summary": summary.summary,
        "grounds": summary.grounds,
        "grounded": phase_rules.is_grounded(summary.grounds),
        "ended_at": live_events.timestamp(summary.ended_at) if summary.ended_at else None,
        "revision": summary.revision,
    }


def status_body(summary: summaries.Summary) -> dict[str, Any]:
    """Return the fields of `investigation.status`; each stage of the chain has its phase, as in the object's status."""
    begun = {stage.name: stage.outcome or "Running" for stage in summary.stages}
    not_begun = "Cancelled" if summary.ended_at else "Pending"
    return {
        "phase": summary.phase,
        "progress": summary.progress,
        "current_stage": summary.current_stage,
        "stages": [{"name": name, "phase": begun.get(name, not_begun)} for name in summary.stage_names],
        "attempts": summary.attempts,
        "cancel": summary.cancel,
        "message": summary.shown_message,
        "revision": summary.revision,
    }
