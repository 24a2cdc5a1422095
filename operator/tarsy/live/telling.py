"""The messages for entries of a log, in their order. Pure functions.

An entry may have several messages; only the last one carries its number. So a client that resumes behind a number has
received all of the entry, and one that was cut off within it receives it again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tarsy.live import wire
from tarsy.store.reads import history, phase_rules, stage_rows
from tarsy.transcript import entries, timeline, timeline_events
from tarsy.views import timelines


@dataclass(frozen=True, kw_only=True)
class Told:
    """The messages for one entry."""

    seq: int
    entry: entries.Entry | entries.Unreadable
    execution: str
    messages: Sequence[wire.Message]
    events: Collection[str]
    """The ids of the timeline's events that are among it."""


def of_page(
    page: history.LogPage,
    *,
    investigation: UUID,
    after: int,
    summary: history.Summary | None,
    translation: wire.Translation | None = None,
    course: stage_rows.Course | None = None,
    heard: Collection[str] = (),
) -> list[Told]:
    """Return the messages for a page of the log behind entry `after`: the events as they stood at its end.

    `summary` is there if `frames(page, ...)`; `course` is for the updates of `translation`; `heard` are the ids of the
    events that were sent while they were written.
    """
    log = [logged for logged in page.log if logged.seq <= page.last]
    events: dict[int, list[timeline_events.Event]] = defaultdict(list)
    for event in timeline.fold(log, claims=page.claims, executions=page.executions):
        events[event.seq].append(event)
    page_events = []
    for logged in log:
        if logged.seq <= after:
            continue
        own = events.get(logged.seq, [])
        bodies = [
            *(_of_event(event, logged, is_new=event.created_seq > after and event.id not in heard) for event in own),
            *_of_frame(logged, summary),
        ]
        updates = (
            update_messages(translation.entry_updates(logged.entry, summary, course), translation, of=summary.id)
            if translation and summary
            else ()
        )
        page_events.append(
            Told(
                seq=logged.seq,
                entry=logged.entry,
                execution=logged.execution,
                messages=[*updates, *_in_sequence(bodies, investigation, logged.seq)],
                events=[event.id for event in own],
            )
        )
    return page_events


def frames(page: history.LogPage, *, after: int) -> bool:
    """Whether a page tells of stages or of a run's end, for which the investigation's numbers are needed."""
    return any(
        logged.seq > after and isinstance(logged.entry, entries.StageStarted | entries.StageEnded | entries.RunEnded)
        for logged in page.log
    )


def _in_sequence(bodies: Sequence[wire.Body], investigation: UUID, seq: int) -> Iterator[wire.Message]:
    last = len(bodies) - 1
    for index, (kind, body) in enumerate(bodies):
        yield wire.Message(kind, body, of=investigation, id=seq if index == last else None)


def update_messages(updates: Iterable[wire.Body], translation: wire.Translation, *, of: UUID) -> Iterator[wire.Message]:
    """Yield a translation's updates of an investigation, as messages for its channels alone."""
    return (wire.Message(kind, body, of=of, only=translation) for kind, body in updates)


def _of_event(event: timeline_events.Event, logged: entries.Logged, *, is_new: bool) -> wire.Body:
    kind = "timeline_event.created" if is_new else "timeline_event.completed"
    return kind, {"run": logged.run, "event": timelines.Event.model_validate(event).model_dump(mode="json")}


def _of_frame(logged: entries.Logged, summary: history.Summary | None) -> Iterator[wire.Body]:
    at = {"run": logged.run, "at": wire.moment(logged.at)}
    match logged.entry:
        case entries.StageStarted(stage=stage):
            yield "stage.started", {"stage": stage, **at}
        case entries.StageEnded() as entry:
            body = {"stage": entry.stage, "outcome": entry.outcome, "message": entry.message, "lacks": [*entry.lacks]}
            yield "stage.completed", body | at
        case entries.RunEnded() as entry if entry.run == entries.INVESTIGATION:
            yield "investigation.completed", of_end(summary) if summary else _end(entry.ending, entry)
        case entries.RunEnded() as entry:
            yield "question.completed", {"ending": entry.ending, **_end(None, entry), **at}


def _end(phase: str | None, entry: entries.RunEnded) -> dict[str, Any]:
    body = {"reason": entry.reason, "message": entry.message}
    return body if phase is None else {"phase": phase, "ending": phase, **body}


def of_end(summary: history.Summary) -> dict[str, Any]:
    """Return the body of the message for an ended investigation."""
    return {
        "phase": summary.phase,
        "ending": summary.ending,
        "reason": summary.reason,
        "message": summary.message,
        "final_analysis": summary.final_analysis,
        "summary": summary.summary,
        "grounds": summary.grounds,
        "grounded": phase_rules.is_grounded(summary.grounds),
        "ended_at": wire.moment(summary.ended_at) if summary.ended_at else None,
        "revision": summary.revision,
    }


def of_status(summary: history.Summary) -> dict[str, Any]:
    """Where an investigation stands."""
    return {
        "phase": summary.phase,
        "progress": summary.progress,
        "current_stage": summary.current_stage,
        "stages": [{"name": name, "phase": phase} for name, phase in _phases(summary)],
        "attempts": summary.attempts,
        "cancel": summary.cancel,
        "message": summary.shown_message,
        "revision": summary.revision,
    }


def _phases(summary: history.Summary) -> Iterator[tuple[str, str]]:
    """Each stage of the chain with its phase, as in the status of the object."""
    begun = {stage.name: stage.outcome or "Running" for stage in summary.stages}
    not_begun = "Cancelled" if summary.ended_at else "Pending"
    return ((name, begun.get(name, not_begun)) for name in summary.stage_names)
