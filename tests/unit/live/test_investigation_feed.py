"""Events for subscribers of one investigation, about text that is being written and entries that are committed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from support import stories
from support import watching as watchers
from tarsy.live import backlogs, events_from_log, investigation_feed, live_events
from tarsy.store.base import databases
from tarsy.store.live import payloads
from tarsy.transcript import entries

ID = UUID(int=7)


@dataclass
class Listening:
    """Subscriber with the events that it received since it was last asked."""

    feed: investigation_feed.InvestigationFeed
    box: backlogs.Backlog

    async def received(self) -> list[Any]:
        events = []
        while self.box._queue:
            events.append(summary_of(watchers.event(await self.box.next())))
        return events


def summary_of(message: dict[str, Any]) -> Any:
    if message["type"] == "stream.chunk":
        return message["offset"], message["delta"]
    event = message["event"]
    return event["id"], event["type"], event["status"], event["content"]


@pytest.fixture
async def listening() -> Listening:
    source = investigation_feed.Source(databases.Database("postgresql://postgres@127.0.0.1:1/postgres"))
    feed = investigation_feed.InvestigationFeed(ID, source)
    box = watchers.box()
    feed.subscribers.add(backlogs.Subscriber(box, live_events.Channel(str(ID))))
    return Listening(feed, box)


def piece(
    text: str,
    *,
    at: int = 0,
    call_number: int = 0,
    execution: str = "one",
    over: bool = False,
    as_: str = "llm_response",
) -> payloads.Piece:
    return payloads.Piece(
        investigation=ID,
        run=0,
        stage="look",
        execution=execution,
        event=f"{execution}.{call_number}.text",
        type=as_,  # type: ignore[arg-type]
        at=at,
        text=text,
        state="over" if over else "grows",
    )


def settled(
    feed: investigation_feed.InvestigationFeed,
    entry: entries.Entry,
    *,
    execution: str = "one",
    events: tuple[str, ...] = (),
) -> None:
    logged = events_from_log.EntryEvents(seq=3, entry=entry, execution=execution, events=[], timeline_ids=events)
    feed.send(feed.texts.settle(logged))


async def test_streamed_text_grows_and_begins_again(listening: Listening) -> None:
    for text_piece in (piece("it is"), piece(" CPU", at=5), piece("not", at=0), piece("note", as_="final_analysis")):
        listening.feed.add_text(text_piece)
    assert await listening.received() == [
        ("one.0.text", "llm_response", "streaming", "it is"),
        (5, " CPU"),
        (0, "not"),
        ("one.0.text", "final_analysis", "streaming", "note"),
    ]
    assert [
        summary_of(watchers.event(chunk.encode(live_events.Channel("x"), "event stream")))
        for chunk in listening.feed.texts.begun()
    ] == [("one.0.text", "final_analysis", "streaming", "note")]


@pytest.mark.parametrize(
    ("entry", "late", "is_told"),
    [
        (stories.answers(call_number=1), piece("late", call_number=1), False),
        (stories.answers(call_number=1), piece("late", call_number=0), False),
        (stories.answers(call_number=1), piece("next", call_number=2), True),
        (stories.answers(call_number=1), piece("another's", call_number=0, execution="two"), True),
        (stories.unanswered(call_number=1), piece("late", call_number=1), False),
        (stories.ended(), piece("late", call_number=9), False),
        (stories.stage_ended(), piece("next", call_number=0), True),
    ],
)
async def test_text_of_a_model_call_after_its_commit_is_dropped(
    listening: Listening, entry: entries.Entry, late: payloads.Piece, is_told: bool
) -> None:
    settled(listening.feed, entry)
    listening.feed.add_text(late)
    assert bool(await listening.received()) == is_told


async def test_text_that_never_reaches_the_log_is_discarded_with_its_model_call(listening: Listening) -> None:
    for text_piece in (
        piece("a", call_number=0),
        piece("b", call_number=1),
        piece("c", call_number=2),
        piece("d", execution="two"),
    ):
        listening.feed.add_text(text_piece)
    await listening.received()
    settled(listening.feed, stories.answers(call_number=1), events=("one.1.text",))
    assert await listening.received() == [("one.0.text", "llm_response", "failed", "a")]
    assert listening.feed.texts.ids == {"one.2.text", "two.0.text"}
    settled(listening.feed, stories.run_ended(), execution="")
    assert {chunk[0] for chunk in await listening.received()} == {"one.2.text", "two.0.text"}
    assert not listening.feed.texts.ids


def word(text: str, *, call_number: int = 0, index: int = 0, at: int = 0) -> payloads.Piece:
    """Return a piece of text of a tool that is at work."""
    return replace(
        piece(text, call_number=call_number, at=at, as_="tool_result"), event=f"one.{call_number}.{index}.result"
    )


async def test_progress_of_a_tool_is_sent_only_before_its_result(listening: Listening) -> None:
    asked = stories.asks("k8s.get", "k8s.list")
    settled(listening.feed, asked)
    for text_piece in (word("1/2\n"), word("2/2\n", at=4), word("1/9\n", index=1)):
        listening.feed.add_text(text_piece)
    assert await listening.received() == [
        ("one.0.0.result", "tool_result", "streaming", "1/2\n"),
        (4, "2/2\n"),
        ("one.0.1.result", "tool_result", "streaming", "1/9\n"),
    ]
    settled(listening.feed, stories.ran(asked), events=("one.0.0.call", "one.0.0.result"))
    for text_piece in (word("late"), word("2/9\n", index=1, at=4)):
        listening.feed.add_text(text_piece)
    assert await listening.received() == [(4, "2/9\n")]
    settled(listening.feed, stories.answers(call_number=1))
    assert await listening.received() == [("one.0.1.result", "tool_result", "failed", "1/9\n2/9\n")]
    listening.feed.add_text(word("late", index=1))
    assert await listening.received() == []
    listening.feed.add_text(word("next", call_number=1))
    assert len(await listening.received()) == 1


async def test_text_that_arrives_while_a_page_is_read_is_sent_after_the_page(listening: Listening) -> None:
    with listening.feed.texts_held_back():
        listening.feed.add_text(piece("late"))
        listening.feed.add_text(piece("next", call_number=1))
        assert await listening.received() == []
        settled(listening.feed, stories.answers(call_number=0), events=("one.0.text",))
    assert await listening.received() == [("one.1.text", "llm_response", "streaming", "next")]


async def test_end_of_an_unknown_text_has_no_event(listening: Listening) -> None:
    listening.feed.add_text(piece("", over=True))
    assert await listening.received() == []
    assert not listening.feed.texts.finished
