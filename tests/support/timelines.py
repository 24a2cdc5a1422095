"""A log that is written entry by entry, and its events, for tests of the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from support import stories
from tarsy.resources import chains
from tarsy.transcript import entries, messages, timeline, timeline_events

BEGAN = datetime(2026, 11, 21, 20, 0, tzinfo=UTC)
CALL = entries.ModelCall(provider="google-default", model="gemini-2.5-flash", seconds=1.5)
MODEL = {"provider": "google-default", "model": "gemini-2.5-flash"}
GET = messages.ToolCall(id="0.0", name="k8s.pods.get", arguments='{"name": "web-0"}')
LIST = messages.ToolCall(id="0.1", name="k8s.list", arguments="{}")
STARTED = entries.StageStarted(stage="look", clock=0.0)


def of_facts(facts: Sequence[entries.Entry], *, execution: str = "") -> list[timeline_events.Event]:
    """The timeline of these entries, all of one execution or of none."""
    return timeline.fold(
        [
            entries.Logged(seq=seq, at=BEGAN, claim=1, run=0, stage="", execution=execution, entry=fact)
            for seq, fact in enumerate(facts, 1)
        ]
    )


def began(execution: str = "e0", *, index: int = 0) -> entries.ExecutionStarted:
    return entries.ExecutionStarted(stage="look", execution=execution, index=index, name=execution, agent=None)


def answered(
    *calls: messages.ToolCall, execution: str = "e0", call_number: int = 0, text: str = "", thinking: str = ""
) -> entries.Answered:
    message = messages.Message(role="assistant", text=text, thinking=thinking, calls=calls)
    return entries.Answered(execution=execution, turn=call_number, messages=(message,), call=CALL)


def unanswered(*, execution: str = "e0", call_number: int = 0) -> entries.Unanswered:
    failure = messages.Failure(kind="timeout", text="nothing within 5 s")
    return entries.Unanswered(execution=execution, turn=call_number, failure=failure, call=CALL)


def fell_back(*, execution: str = "e0", call_number: int = 0, to: str = "other") -> entries.FellBack:
    failure = messages.Failure(kind="fatal", text="google-default: 401: the key", code="401")
    return entries.FellBack(execution=execution, turn=call_number, provider=to, failure=failure, call=CALL)


def ran(
    *calls: messages.ToolCall, execution: str = "e0", failed: bool = False, in_doubt: bool = False
) -> entries.ToolsAnswered:
    results = [
        messages.Message(
            role="tool", call_id=call.id, tool_name=call.name, text=f"of {call.id}", failed=failed, in_doubt=in_doubt
        )
        for call in calls
    ]
    runs = (entries.ToolRun(call=call, result=result, seconds=0.5) for call, result in zip(calls, results, strict=True))
    return entries.ToolsAnswered(execution=execution, runs=tuple(runs))


def ended(outcome: entries.Outcome = "Completed", error: str = "", *, execution: str = "e0") -> entries.ExecutionEnded:
    return entries.ExecutionEnded(execution=execution, outcome=outcome, error=error)


@dataclass
class Log:
    """A log that is written entry by entry, a second each."""

    claim: int = 1
    rows: list[entries.Logged] = field(default_factory=list)

    def add(self, *added: entries.Entry | entries.Unreadable, execution: str = "") -> Log:
        for entry in added:
            self.rows.append(
                entries.Logged(
                    seq=len(self.rows) + 1,
                    at=at(len(self.rows) + 1),
                    claim=self.claim,
                    run=0,
                    stage="" if isinstance(entry, entries.RunEnded | entries.Unreadable) and not execution else "look",
                    execution=execution or getattr(entry, "execution", ""),
                    entry=entry,
                )
            )
        return self

    def taken_over(self) -> Log:
        self.claim += 1
        return self


def at(seq: int) -> datetime:
    return BEGAN + timedelta(seconds=seq)


def log(*added: entries.Entry | entries.Unreadable) -> list[entries.Logged]:
    return Log().add(*added).rows


def seen(events: Sequence[timeline_events.Event]) -> list[tuple[int, str, str, str, str]]:
    return [(event.seq, event.id, event.type, event.status, event.content) for event in events]


def by_id(events: Sequence[timeline_events.Event]) -> dict[str, timeline_events.Event]:
    events_by_id = {event.id: event for event in events}
    assert len(events_by_id) == len(events)
    return events_by_id


def begun_as(kind: entries.ExecutionKind, strategy: chains.IterationStrategy) -> entries.ExecutionStarted:
    return entries.ExecutionStarted(
        stage="look", execution="e0", kind=kind, index=0, name="e0", agent=replace(stories.AGENT, strategy=strategy)
    )
