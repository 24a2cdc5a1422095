"""Messages between processes about text that is being written: payloads, and how a listener reads them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from dataclasses import replace
from uuid import UUID

import hypothesis
import pytest
from hypothesis import strategies
from support.masking import NO_SECRETS
from tarsy.store.base import databases, notify
from tarsy.store.live import payloads, text_streams
from tarsy.transcript import ports, react, streams

ID, OTHER = UUID(int=14), UUID(int=15)
PIECE = payloads.Piece(
    investigation=ID,
    run=0,
    stage="data-collection",
    execution="0123456789abcdef",
    event="0123456789abcdef.3.text",
    type="llm_response",
    at=0,
    text="",
)
in_any_text = strategies.lists(
    strategies.tuples(
        strategies.sampled_from(["x", "\n", '"', "\\", "\x01", "\x7f", "\u2028", "ß", "\U0001f4a5", "\ufffd"]),
        strategies.integers(1, 9000),
    ),
    max_size=4,
).map(lambda runs: "".join(text * count for text, count in runs))


def applied(pieces: list[payloads.Piece], before: str = "") -> str:
    for piece in pieces:
        assert piece.at <= len(before), "there is no gap"
        before = piece.after(before)
    return before


@hypothesis.given(texts=strategies.lists(in_any_text, max_size=4), moved=strategies.integers(0, 300))
@hypothesis.settings(deadline=None, max_examples=50)
def test_text_pieces_fit_into_payloads_and_are_decoded_unchanged(texts: list[str], moved: int) -> None:
    pieces = [replace(PIECE, event=f"e.{index}.text", text=text) for index, text in enumerate(texts)]
    ids = [UUID(int=number) for number in range(moved)]
    encoded = payloads.encode(pieces, ids)
    assert all(len(payload.encode()) <= payloads.PAYLOAD_MAX for payload in encoded)
    decoded = [payloads.decode(payload) for payload in encoded]
    assert [identity for _, some in decoded for identity in some] == ids
    for piece in pieces:
        parts = [part for some, _ in decoded for part in some if part.event == piece.event]
        assert applied(parts) == piece.text
        assert [part.more for part in parts] == [True] * (len(parts) - 1) + [False]
        assert {replace(part, at=0, text="", more=False) for part in parts} == {replace(piece, text="")}


@pytest.mark.parametrize(
    "payload",
    ["", "x", "[]", '{"v":2,"p":[["as nobody knows"]],"m":[]}', '{"v":1}', "[" * 7000],
    ids=lambda text: text[:9],
)
def test_payload_of_another_version_is_ignored(payload: str) -> None:
    assert payloads.decode(payload) == ([], [])


any_json = strategies.recursive(
    strategies.one_of(
        strategies.none(),
        strategies.booleans(),
        strategies.integers(),
        strategies.floats(),
        strategies.text(strategies.characters(), max_size=5),
        strategies.sampled_from([str(ID), "grows", "over", "llm_response", "\ud83d", "\x00"]),
    ),
    lambda within: strategies.one_of(
        strategies.lists(within, max_size=5), strategies.dictionaries(strategies.text(max_size=2), within, max_size=3)
    ),
    max_leaves=8,
)
GOOD = [str(ID), 0, "stage", "execution", "event", "llm_response", "grows", 0, False, "text"]


@strategies.composite
def nearly_right(draw: strategies.DrawFn) -> object:
    """A row of a piece in which something is something else."""
    row = list(GOOD)
    row[draw(strategies.integers(0, len(row) - 1))] = draw(any_json)
    return row


@hypothesis.given(
    rows=strategies.lists(strategies.one_of(any_json, nearly_right()), max_size=4),
    moved=strategies.one_of(any_json, strategies.lists(any_json, max_size=4)),
)
@hypothesis.settings(deadline=None)
def test_only_payload_rows_that_tarsy_can_have_sent_are_accepted(rows: list[object], moved: object) -> None:
    """And what is told of it can be sent, and said again."""
    heard: list[payloads.Piece] = []
    database = databases.Database("postgresql://nobody@127.0.0.1:1/none")  # never asked
    audience = text_streams.TextReceiver(database, on_piece=heard.append, on_commit=lambda _: None)
    audience.watch(ID)
    audience.hint(json.dumps({"v": 1, "p": [*rows, GOOD], "m": moved}))
    text_streams.TextSender(database, secrets=NO_SECRETS).hint(json.dumps({"v": 1, "anew": moved, "still": rows}))
    pieces, _ = payloads.decode(json.dumps({"v": 1, "p": [*rows, GOOD], "m": []}))
    assert pieces, "what is right is taken"
    for piece in [*heard, *pieces]:
        assert piece.at >= 0
        assert [
            decoded_piece for some, _ in map(payloads.decode, payloads.encode([piece], [])) for decoded_piece in some
        ] == [piece]


@pytest.mark.leaps
async def test_text_so_far_is_requested_once_a_second_for_any_number_of_new_watchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hint_payloads: list[str] = []

    async def post(_: databases.Database, *hints: notify.Hint) -> None:
        hint_payloads.extend(payload for _, payload in hints if str(ID) in payload)

    monkeypatch.setattr(notify, "post", post)
    watching = Watching()
    running = asyncio.create_task(watching.audience.run())
    async with asyncio.timeout(60):
        while not hint_payloads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    for _ in range(10):
        watching.audience.forget(ID)
        watching.audience.watch(ID)
        await asyncio.sleep(3 * text_streams.GATHER_SECONDS)
    assert len(hint_payloads) == 1
    async with asyncio.timeout(60):
        while len(hint_payloads) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()


async def test_long_react_answer_is_parsed_off_the_event_loop_and_loses_no_later_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    speaker = text_streams.TextSender(
        databases.Database("postgresql://nobody@127.0.0.1:1/none"), secrets=NO_SECRETS
    )  # never asked
    speaker.hint(json.dumps({"v": 1, "anew": [str(ID)], "still": []}))
    streamed_call = ports.StreamedCall(
        investigation=str(ID), run=0, stage="look", execution="e0", number=0, kind="agent", strategy="react"
    )
    asked, go_on = asyncio.Event(), threading.Event()
    loop, read = asyncio.get_running_loop(), react.read

    def reading(text: str) -> react.Reading:
        assert threading.current_thread() is not threading.main_thread()
        loop.call_soon_threadsafe(asked.set)
        assert go_on.wait(60)
        return read(text)

    monkeypatch.setattr(react, "read", reading)
    lines = "the pod restarts because of its memory limit\n" * 1000
    with speaker.open_stream(streamed_call) as stream:
        stream.text("Thought: " + lines)
        batch = asyncio.create_task(speaker._batch())
        await asked.wait()
        stream.text("and of its CPU\n")
        go_on.set()
        sent_payloads = [*(await batch)[0], *(await speaker._batch())[0]]
    pieces = [piece for payload in sent_payloads for piece in payloads.decode(payload)[0]]
    assert applied(pieces) == (lines + "and of its CPU")


class Watching:
    """An audience of one investigation, and what it was told."""

    def __init__(self) -> None:
        self.pieces: list[payloads.Piece] = []
        self.moved: list[UUID | None] = []
        database = databases.Database("postgresql://nobody@127.0.0.1:1/none")  # never asked
        self.audience = text_streams.TextReceiver(database, on_piece=self.pieces.append, on_commit=self.moved.append)
        self.audience.watch(ID)

    def hear(self, *pieces: payloads.Piece, moved: tuple[UUID, ...] = ()) -> None:
        for payload in payloads.encode(pieces, moved):
            assert not self.audience.hint(payload), "others are told, too"

    @property
    def wants(self) -> bool:
        """Whether it will ask for the text so far."""
        return ID in self.audience._requests

    def has_asked(self) -> None:
        """Let it have asked for the text so far."""
        self.audience._requests.clear()


@pytest.fixture
async def watching() -> Watching:
    watcher = Watching()
    watcher.has_asked()
    return watcher


def at(offset: int, text: str, state: str = "grows") -> payloads.Piece:
    return replace(PIECE, at=offset, text=text, state=state)  # type: ignore[arg-type]


async def test_watcher_hears_only_of_what_it_watches(watching: Watching) -> None:
    watching.hear(at(0, "It is"), replace(PIECE, investigation=OTHER, text="no"), moved=(OTHER, ID))
    assert watching.pieces == [at(0, "It is")]
    assert watching.moved == [ID]


async def test_only_the_new_part_of_a_repeated_piece_is_passed_on(watching: Watching) -> None:
    long = "It is its memory limit. " * 1000
    watching.hear(at(0, long))
    watching.hear(at(0, long))
    assert applied(watching.pieces) == long
    count = len(watching.pieces)
    watching.hear(at(0, long + "So."))
    assert watching.pieces[count:] == [at(len(long), "So.")]
    watching.hear(at(0, "It was"))
    assert watching.pieces[-1] == at(3, "was")


async def test_pieces_after_a_possible_gap_do_not_count_before_the_text_so_far_is_there(watching: Watching) -> None:
    watching.hear(at(0, "It is memory"))
    assert not watching.audience.hint("")
    assert watching.wants
    assert watching.moved == [None]
    watching.hear(at(6, "CPU"))  # of an answer that was asked for again, maybe
    assert len(watching.pieces) == 1
    watching.hear(at(0, "It is CPU"))
    assert applied(watching.pieces) == "It is CPU"
    watching.hear(at(9, "."))
    assert applied(watching.pieces) == "It is CPU."


async def test_end_of_a_live_event_is_reported_once_where_the_event_was_known(watching: Watching) -> None:
    watching.hear(at(0, "It is"), at(5, "", "over"), at(5, "", "over"))
    assert watching.pieces == [at(0, "It is"), at(5, "", "over")]


async def test_investigation_that_is_no_longer_watched_passes_nothing_on(watching: Watching) -> None:
    watching.hear(at(0, "It "), at(3, "is"))
    watching.audience.forget(ID)
    watching.hear(at(5, "no"), moved=(ID,))
    assert applied(watching.pieces) == "It is"
    assert watching.moved == []


@hypothesis.given(seed=strategies.integers(0, 2**32))
@hypothesis.settings(deadline=None, max_examples=100)
def test_pieces_that_are_lost_cost_no_more_than_the_time_until_the_text_so_far_comes(seed: int) -> None:
    """Whatever is lost and whenever all is sent again: what is shown was right once, and is right at the end."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    watching = Watching()
    texts = [""]
    for _ in range(30):
        now = texts[-1][: dice.randrange(len(texts[-1]) + 1)] if dice.random() < 0.2 else texts[-1]
        now += "".join(dice.choices("ab", k=dice.randrange(4)))
        piece = at(len(now) if now == texts[-1] else streams.common_length(now, texts[-1]), "")
        piece = replace(piece, text=now[piece.at :])
        texts.append(now)
        if dice.random() < 0.1:  # the connection is lost, and with it what is said, until it is there again
            watching.audience.hint("")
            continue
        watching.hear(piece)
        if watching.wants and dice.random() < 0.5:
            watching.has_asked()
            watching.hear(at(0, now))
        assert applied(watching.pieces) in texts
    watching.hear(at(0, texts[-1]))
    assert applied(watching.pieces) == texts[-1]
