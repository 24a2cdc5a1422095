"""One investigation that is watched: what is told of it, and what is being written in it just now.

All that is kept is for those who watch; the log is what counts, and how far it was told is all that one has to know.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tarsy.live import outbox, telling, wire
from tarsy.store.live import deltas
from tarsy.store.reads import stage_rows
from tarsy.transcript import entries


@dataclass(kw_only=True)
class _Text:
    """An event that is being written."""

    piece: deltas.Piece
    """The piece that began it."""
    content: str
    since: str


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some entries that follow each other, as they are told."""

    told: Sequence[telling.Told]
    last: int
    """The last of them."""


class Watch:
    """The state of one investigation that its subscribers know."""

    def __init__(self, investigation: UUID) -> None:
        self.investigation = investigation
        self.users = 0
        self.listeners: set[outbox.Listener] = set()
        self.last = 0
        """The last entry of the log that was told."""
        self.revision = -1
        """The revision of the numbers that were sent."""
        self.status: wire.Message | None = None
        """Where it stands, as it was told."""
        self.is_behind = False
        """There is a newer revision, or may be."""
        self.course: stage_rows.Course | None = None
        """Its stages, for the updates of a translation."""
        self.moved = asyncio.Event()
        """There is something to read, or may be."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """When `last` and `status` are known."""
        self.task: asyncio.Task[None] | None = None
        self.pages: dict[tuple[int, int], asyncio.Task[Page]] = {}
        """Pages that are being read for those who catch up: behind an entry, and up to one."""
        self.over: set[str] = set()
        """Events of which nothing more comes; the log has them by now, or never will."""
        self._held: list[deltas.Piece] | None = None
        """The pieces that arrive while a page of the log is computed."""
        self._texts: dict[str, _Text] = {}
        self._settled: dict[str, float] = {}
        """The last model call in the log, by execution."""
        self._results: dict[str, frozenset[str]] = {}
        """The results of the last model call in the log, by execution: later reports of their tools are dropped."""
        self._ended: str | None = None

    def tell(self, messages: Iterable[wire.Message]) -> None:
        """Tell all who listen."""
        events = list(messages)
        for listener in self.listeners:
            listener.put(events)

    def join(self, listener: outbox.Listener) -> None:
        """One more listens; it is told at once where nothing more comes."""
        self.listeners.add(listener)
        if self._ended is not None:
            listener.end(self._ended)

    def end(self, reason: str) -> None:
        """Tell all who listen that nothing more comes, and why."""
        self._ended = reason
        for listener in self.listeners:
            listener.end(reason)

    @property
    def heard(self) -> frozenset[str]:
        """The events of which was told while they were written, and that the log has not brought yet."""
        return frozenset(self._texts)

    def hear(self, piece: deltas.Piece) -> None:
        """Tell of a piece of a text, unless its turn is in the log already."""
        if self._held is not None:
            self._held.append(piece)
            return
        if _turn(piece) <= self._settled.get(piece.execution, -1) or piece.event in self._has_result(piece.execution):
            return
        text = self._texts.get(piece.event)
        if text is None:
            if piece.state == "over":
                return
            self._texts[piece.event] = text = _Text(
                piece=piece, content=piece.text, since=wire.moment(datetime.now(UTC))
            )
            self.tell([self._created(text)])
        elif piece.state == "over":
            self.over.add(piece.event)
            self.moved.set()
        elif piece.type != text.piece.type:
            self._texts[piece.event] = text = replace(text, piece=piece, content=piece.after(text.content))
            self.tell([self._created(text)])
        else:
            text.content = piece.after(text.content)
            chunk = {"run": piece.run, "event_id": piece.event, "offset": piece.at, "delta": piece.text}
            self.tell([wire.Message("stream.chunk", chunk, of=self.investigation)])

    @contextmanager
    def listening_later(self) -> Iterator[None]:
        """Have what is heard in the block told behind it: what the log has by now is to be told first."""
        held: list[deltas.Piece] = []
        self._held = held
        try:
            yield
        finally:
            self._held = None
            for piece in held:
                self.hear(piece)

    def begun(self) -> list[wire.Message]:
        """Return the beginnings of all text that is being written."""
        return [self._created(text) for text in self._texts.values()]

    def settle(self, settled: telling.Told) -> Iterator[wire.Message]:
        """Take what was told from the log; what of it was being written and never came is given up."""
        for event in settled.events:
            self.over.discard(event)
            self._texts.pop(event, None)
        if isinstance(settled.entry, entries.ToolsAnswered):
            self._results[settled.execution] = self._has_result(settled.execution) | frozenset(settled.events)
        call = _ended_turn(settled.entry)
        if call is None:
            return
        self._results.pop(settled.execution, None)
        self._settled[settled.execution] = max(call, self._settled.get(settled.execution, -1))
        run = settled.entry.run if isinstance(settled.entry, entries.RunEnded) else None
        yield from self.give_up(
            event
            for event, text in self._texts.items()
            if text.piece.run == run or (text.piece.execution == settled.execution and _turn(text.piece) <= call)
        )

    def _has_result(self, execution: str) -> frozenset[str]:
        return self._results.get(execution, frozenset())

    def give_up(self, events: Iterable[str]) -> Iterator[wire.Message]:
        """Tell that these will never be in the log, as far as they were being written."""
        for event in list(events):
            self.over.discard(event)
            if text := self._texts.pop(event, None):
                yield self._message(text, "timeline_event.completed", "failed", {"discarded": True})

    def _created(self, text: _Text) -> wire.Message:
        return self._message(text, "timeline_event.created", "streaming", {})

    def _message(self, text: _Text, kind: str, status: str, metadata: dict[str, Any]) -> wire.Message:
        piece = text.piece
        event = {
            "id": piece.event,
            "type": piece.type,
            "status": status,
            "stage": piece.stage,
            "execution": piece.execution,
            "content": text.content,
            "metadata": metadata,
            "created_at": text.since,
            "updated_at": wire.moment(datetime.now(UTC)),
        }
        return wire.Message(kind, {"run": piece.run, "event": event}, of=self.investigation)


def _turn(piece: deltas.Piece) -> float:
    """Which of its execution's model calls a piece is of, as its event's id says; of a tool, half a turn later."""
    number = piece.event.removeprefix(f"{piece.execution}.").partition(".")[0]
    behind = 0.5 if piece.type == "tool_result" else 0.0  # tools are at work between its answer and the next
    return int(number) + behind if number.isdecimal() else math.inf


def _ended_turn(entry: entries.Entry | entries.Unreadable) -> float | None:
    """Up to which turn of its execution nothing more is written, once the log has this entry."""
    match entry:
        case entries.Answered() | entries.Unanswered():
            return entry.turn
        case entries.ExecutionEnded() | entries.RunEnded():
            return math.inf
        case _:
            return None
