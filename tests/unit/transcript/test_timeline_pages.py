"""Pages of the timeline: none ends inside an entry, and together they are the timeline that is read at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import pytest
from support.timelines import (
    BEGAN,
    GET,
    STARTED,
    Log,
    answered,
    began,
    begun_as,
    ended,
    fell_back,
    log,
    ran,
    unanswered,
)
from tarsy.transcript import entries, messages, timeline, timeline_events


@pytest.mark.parametrize(("claims", "resumed"), [({}, 0), ({3: 2}, 0), ({3: 1}, 1), ({2: 1}, 0)])
def test_takeover_between_two_pages_is_detected_by_claim_of_previous_entry(
    claims: Mapping[int, int], resumed: int
) -> None:
    rows = Log().add(STARTED, began(), answered(GET)).taken_over().add(ran(GET)).rows
    events = timeline.fold(rows[3:], claims=claims)
    assert sum(event.type == "resumed" for event in events) == resumed


def test_an_empty_log_has_no_events() -> None:
    assert timeline.fold([]) == []
    assert timeline.page([], after=3, last=3, limit=5) == ([], 3)


def events_at(*seqs: int) -> list[timeline_events.Event]:
    return [
        timeline_events.Event(
            id=f"{index}",
            seq=seq,
            created_seq=seq,
            type="error",
            status="failed",
            stage="",
            execution="",
            content="",
            created_at=BEGAN,
            updated_at=BEGAN,
        )
        for index, seq in enumerate(seqs)
    ]


@pytest.mark.parametrize(
    ("seqs", "after", "last", "limit", "expected", "reached"),
    [
        ((1, 2, 3), 0, 3, 5, [1, 2, 3], 3),
        ((1, 2, 3), 0, 9, 5, [1, 2, 3], 9),
        ((1, 2, 3), 0, 3, 2, [1, 2], 2),
        ((1, 2, 3), 1, 3, 5, [2, 3], 3),
        ((1, 2, 3), 0, 2, 5, [1, 2], 2),
        ((1, 2, 2, 2, 3), 0, 3, 2, [1], 1),
        ((1, 2, 2, 2, 3), 1, 3, 2, [2, 2, 2], 2),
        ((1, 2, 2, 2, 3), 1, 3, 4, [2, 2, 2, 3], 3),
        ((4, 9), 0, 9, 1, [4], 8),
        ((4, 4), 0, 9, 1, [4, 4], 4),
    ],
)
def test_a_page_never_ends_inside_an_entry(
    seqs: Sequence[int], after: int, last: int, limit: int, expected: list[int], reached: int
) -> None:
    events, end = timeline.page(events_at(*seqs), after=after, last=last, limit=limit)
    assert ([event.seq for event in events], end) == (expected, reached)


def random_log(source: random.Random) -> list[entries.Logged]:
    """Three agents that mix as they like; some calls fail, some are never answered, some entries cannot be read."""
    made = Log()
    made.add(STARTED, *(began(f"e{index}", index=index) for index in range(3)))
    lives = [_life(f"e{index}", source) for index in range(3)]
    while lives:
        if source.random() < 0.05:
            made.taken_over()
        if source.random() < 0.05:
            unknown = entries.Unreadable(kind="Dreamt", version=1, problem="its kind is unknown here")
            made.add(unknown, execution=source.choice(["", "e0", "e1"]))
        life = source.choice(lives)
        step = next(life, None)
        if step is None:
            lives.remove(life)
        else:
            made.add(step)
    made.add(entries.StageEnded(stage="look", outcome="Failed"))
    return made.add(entries.RunEnded(ending="TimedOut", reason="DeadlineExceeded", message="too late")).rows


def _life(execution: str, source: random.Random) -> Iterator[entries.Entry]:
    call_number = 0
    for call_number in range(source.randrange(8)):
        if source.random() < 0.1:
            yield fell_back(execution=execution, call_number=call_number, to=f"other-{call_number}")
        if source.random() < 0.2:
            yield unanswered(execution=execution, call_number=call_number)
            continue
        if source.random() < 0.1:
            yield answered(execution=execution, call_number=call_number, text="so I think")
            continue
        calls = [
            messages.ToolCall(id=f"{call_number}.{index}", name="k8s.get", arguments="{}")
            for index in range(source.randrange(1, 5))
        ]
        yield answered(*calls, execution=execution, call_number=call_number, text=source.choice(["", "so"]))
        while calls and source.random() < 0.95:
            some = source.sample(calls, source.randrange(1, len(calls) + 1))
            calls = [call for call in calls if call not in some]
            yield ran(*some, execution=execution, failed=source.random() < 0.2)
        if calls:
            outcomes: list[entries.Outcome] = ["Failed", "TimedOut", "Cancelled"]
            yield ended(source.choice(outcomes), "cut off", execution=execution)
            return
    yield answered(execution=execution, call_number=call_number + 1, text="done", thinking=source.choice(["", "hm"]))
    yield ended(execution=execution)


def around(rows: Sequence[entries.Logged], *, after: int, last: int) -> list[entries.Logged]:
    """Return the entries that the events of a page need beside its own: the answers and the results of the same
    executions.

    Back to the answer whose calls the page's first entries may be about, and up to the next time that the model is
    asked: until then results of the page's last answers may come.
    """
    needed = []
    for execution in {row.execution for row in rows if after < row.seq <= last and row.execution}:
        own = [row for row in rows if row.execution == execution]
        back_to = max((r.seq for r in own if r.seq <= after and isinstance(r.entry, entries.Answered)), default=None)
        asked = entries.Answered | entries.Unanswered
        up_to = min((r.seq for r in own if r.seq > last and isinstance(r.entry, asked)), default=len(rows) + 1)
        needed += [row for row in own if back_to is not None and back_to <= row.seq <= after]
        needed += [row for row in own if last < row.seq < up_to]
    return needed


def read_on(
    rows: Sequence[entries.Logged], *, after: int, size: int, limit: int
) -> tuple[list[timeline_events.Event], int]:
    """One page of the timeline of `rows`, from no more than what it needs."""
    last = min(after + size, len(rows))
    log = sorted([*rows[after:last], *around(rows, after=after, last=last)], key=lambda row: row.seq)
    claims = {row.seq: row.claim for row in rows if row.seq == after}
    return timeline.page(timeline.fold(log, claims=claims), after=after, last=last, limit=limit)


def merged(latest: dict[str, timeline_events.Event], events: Sequence[timeline_events.Event]) -> None:
    """Merge events as a timeline's reader does: a later form of an event replaces the earlier, and stands last."""
    for event in events:
        before = latest.pop(event.id, None)
        assert before is None or before.seq < event.seq
        latest[event.id] = event


@pytest.mark.parametrize("growing", [False, True], ids=["of a log at rest", "of a log that grows"])
@pytest.mark.parametrize("seed", range(40))
def test_timeline_read_in_steps_of_any_size_equals_timeline_read_at_once(seed: int, growing: bool) -> None:
    source = random.Random(seed)  # noqa: S311 - it mixes, it guards nothing
    rows = random_log(source)
    latest: dict[str, timeline_events.Event] = {}
    after, there = 0, 0 if growing else len(rows)
    while after < len(rows):
        there = min(len(rows), there + source.randrange(4))
        size, limit = source.choice([1, 2, 5, 500]), source.choice([1, 2, 5, 500])
        events, reached = read_on(rows[:there], after=after, size=size, limit=limit)
        assert after <= reached <= there
        assert reached > after or there == after
        assert all(after < event.seq <= reached for event in events)
        merged(latest, events)
        after = reached
    final = timeline.fold(rows)
    assert list(latest.values()) == final
    assert [event.seq for event in final] == sorted(event.seq for event in final)
    assert all(event.status != "streaming" for event in final), "every end has closed what streamed"


def test_start_of_an_execution_counts_also_where_it_is_not_in_the_page() -> None:
    answer = log(STARTED, begun_as("agent", "react"), answered(text="Thought: so\nFinal Answer: It is."))[2:]
    kinds = {"e0": timeline_events.ExecutionTraits(kind="agent", strategy="react")}
    assert [event.type for event in timeline.fold(answer, executions=kinds)] == ["llm_thinking", "final_analysis"]
    assert [event.type for event in timeline.fold(answer)] == ["final_analysis"]
