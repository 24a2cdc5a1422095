"""The timeline: the events of an investigation for people. A pure function of the log.

The id of an event is made of the execution, the call number, and the part of that call. It is known before the event is
committed, so a stream of the event has the same id. Of two events with one id, the one with the higher `seq` is newer.

The event of a tool call has the status `streaming` from the answer that asks for it to its result. The end of the
execution closes events that still stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tarsy.transcript import entries, timeline_events
from tarsy.transcript.kinds import registry


def fold(
    log: Sequence[entries.Logged],
    *,
    claims: Mapping[int, int] | None = None,
    executions: Mapping[str, timeline_events.ExecutionTraits] | None = None,
) -> list[timeline_events.Event]:
    """Return the events of these entries in their newest state, by `seq` and by their order in the entry.

    If `log` is a part of a log: it has with each tool result the answer that asked for it, and with each answer the one
    before it. `claims` has the claims of other entries by `seq`, to detect takeovers between neighbours. `executions`
    has the traits of executions that started in other entries.
    """
    traits = dict(executions or {}) | {
        logged.execution: timeline_events.ExecutionTraits(kind=logged.entry.kind, strategy=logged.entry.agent.strategy)
        for logged in log
        if isinstance(logged.entry, entries.ExecutionStarted) and logged.entry.agent
    }
    claims_by_seq = {**(claims or {}), **{logged.seq: logged.claim for logged in log}}
    events: dict[str, timeline_events.Event] = {}
    streaming: dict[str, list[str]] = {}  # ids of events, by execution
    last_texts: dict[str, str] = {}  # ids of events, by execution
    for logged in log:
        is_start = isinstance(logged.entry, entries.RunStarted)  # it has the number of a claim that comes later
        if not is_start and logged.claim > claims_by_seq.get(logged.seq - 1, logged.claim):
            events |= _by_id([_resumed(logged)])
        changed = _by_id(_events(logged, traits.get(logged.execution, timeline_events.AGENT)))
        if not isinstance(logged.entry, entries.Unreadable):
            effects = registry.kind_of(logged.entry).timeline
            if outcome := effects.closes(logged.entry):
                status = timeline_events.closed_as(outcome)
                unclosed = (events[identity] for identity in streaming.pop(logged.execution, ()))
                changed |= _by_id(
                    replace(event, seq=logged.seq, status=status, updated_at=logged.at) for event in unclosed
                )
            last = last_texts.get(logged.execution)
            if last and (final_type := effects.last_text(logged.entry)) and final_type != events[last].type:
                corrected = replace(events[last], type=final_type, seq=logged.seq, updated_at=logged.at)
                changed = {last: corrected} | changed
        for event in changed.values():
            if event.type in _TEXTS:
                last_texts[event.execution] = event.id
            before = events.pop(event.id, None)  # removed, so that the event moves to the end
            if before:
                event = replace(event, created_at=before.created_at, created_seq=before.created_seq)
            events[event.id] = event
            if event.status == "streaming":
                streaming.setdefault(event.execution, []).append(event.id)
            elif event.id in streaming.get(event.execution, ()):
                streaming[event.execution].remove(event.id)
    return sorted(events.values(), key=lambda event: event.seq)


def page(
    changed: Sequence[timeline_events.Event], *, after: int, last: int, limit: int
) -> tuple[list[timeline_events.Event], int]:
    """Return at most `limit` events that changed after entry `after`, up to entry `last`; and the last entry covered.

    A page never ends inside an entry, so it has all events of its first entry, even if they are more than `limit`.
    """
    page_events = [event for event in changed if after < event.seq <= last]
    if len(page_events) <= limit:
        return page_events, last
    cut = page_events[limit].seq
    if cut == page_events[0].seq:
        cut_events = [event for event in page_events if event.seq == cut]
        return cut_events, cut
    page_events = [event for event in page_events if event.seq < cut]
    return page_events, cut - 1


def _by_id(changed: Iterable[timeline_events.Event]) -> dict[str, timeline_events.Event]:
    return {event.id: event for event in changed}


_TEXTS = ("llm_response", "final_analysis")


def _events(logged: entries.Logged, execution: timeline_events.ExecutionTraits) -> Iterable[timeline_events.Event]:
    """Return the events of an entry itself, in an execution with these traits."""
    context = timeline_events.Context(logged, execution)
    if isinstance(logged.entry, entries.Unreadable):
        content = f"entry {logged.seq} cannot be read by this version: {logged.entry.problem}"
        key = f"unreadable-{logged.seq}"
        return (context.event(key, "error", "failed", content, {"kind": logged.entry.kind}),)
    return registry.kind_of(logged.entry).timeline.events(logged.entry, context)


def _resumed(logged: entries.Logged) -> timeline_events.Event:
    return timeline_events.Event(
        id=f"run-{logged.run}.resumed-{logged.claim}",
        seq=logged.seq,
        created_seq=logged.seq,
        type="resumed",
        status="completed",
        stage="",
        execution="",
        content="continued under another claim, after a takeover or a wait",
        metadata={"claim": logged.claim},
        created_at=logged.at,
        updated_at=logged.at,
    )
