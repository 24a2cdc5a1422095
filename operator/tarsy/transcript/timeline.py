"""The timeline: what happened, event by event, for people. A pure function of the log.

An event's id is known before what it tells of is committed, so that a stream of it can carry the same one: the
execution, the turn (which of its model calls) and the place in that turn. An event that is told again under its id has
changed; the one with the higher `seq` counts.

A tool call streams from the answer that asks for it to its result; an end closes what still streams.
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
    """The events of these entries in their newest form, by `seq` and in an entry by their places.

    An entry that is about calls needs the answer with these, and one that brings an answer the one before it; `claims`
    are those of entries that are not in `log`, by their numbers: a takeover shows between neighbours. `executions` are
    those whose starts are not in `log`.
    """
    traits = dict(executions or {}) | {
        logged.execution: timeline_events.ExecutionTraits(kind=logged.entry.kind, strategy=logged.entry.agent.strategy)
        for logged in log
        if isinstance(logged.entry, entries.ExecutionStarted) and logged.entry.agent
    }
    claims_by_seq = {**(claims or {}), **{logged.seq: logged.claim for logged in log}}
    known: dict[str, timeline_events.Event] = {}
    streaming: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for logged in log:
        begins = isinstance(logged.entry, entries.RunStarted)  # its claim is the one that it waits for
        if not begins and logged.claim > claims_by_seq.get(logged.seq - 1, logged.claim):
            known |= _by_id([_resumed(logged)])
        changed = _by_id(_events(logged, traits.get(logged.execution, timeline_events.AGENT)))
        if outcome := _closes(logged.entry):
            still = (known[identity] for identity in streaming.pop(logged.execution, ()))
            changed |= _by_id(_closed(event, outcome, logged) for event in still)
        if (last := texts.get(logged.execution)) and (kind := _turned_out(known[last], logged.entry)):
            changed = {last: replace(known[last], type=kind, seq=logged.seq, updated_at=logged.at)} | changed
        for event in changed.values():
            if event.type in _TEXTS:
                texts[event.execution] = event.id
            before = known.pop(event.id, None)  # popped, so that what changed last stands last
            if before:
                event = replace(event, created_at=before.created_at, created_seq=before.created_seq)
            known[event.id] = event
            if event.status == "streaming":
                streaming.setdefault(event.execution, []).append(event.id)
            elif event.id in streaming.get(event.execution, ()):
                streaming[event.execution].remove(event.id)
    return sorted(known.values(), key=lambda event: event.seq)


def page(
    changed: Sequence[timeline_events.Event], *, after: int, last: int, limit: int
) -> tuple[list[timeline_events.Event], int]:
    """Those that changed behind entry `after` and up to `last`, `limit` of them at most, and the entry that they reach.

    No page ends inside an entry, so the events of the first entry are all in it, however many they are.
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


def _closes(entry: entries.Entry | entries.Unreadable) -> entries.Outcome | None:
    """How an entry closes what still streams in its execution, if it does."""
    return None if isinstance(entry, entries.Unreadable) else registry.kind_of(entry).timeline.closes(entry)


def _turned_out(last: timeline_events.Event, entry: entries.Entry | entries.Unreadable) -> timeline_events.Type | None:
    """Return the type that the last text of an execution turns out to have, if it was reported as something else."""
    if isinstance(entry, entries.Unreadable):
        return None
    revealed = registry.kind_of(entry).timeline.last_text(entry)
    return revealed if revealed != last.type else None


def _closed(event: timeline_events.Event, outcome: entries.Outcome, logged: entries.Logged) -> timeline_events.Event:
    return replace(event, seq=logged.seq, status=timeline_events.closed_as(outcome), updated_at=logged.at)


def _resumed(logged: entries.Logged) -> timeline_events.Event:
    return timeline_events.Event(
        id=f"run-{logged.run}.resumed-{logged.claim}",
        seq=logged.seq,
        created_seq=logged.seq,
        type="resumed",
        status="completed",
        stage="",
        execution="",
        content="it went on under another claim, after a takeover or a rest",
        metadata={"claim": logged.claim},
        created_at=logged.at,
        updated_at=logged.at,
    )
