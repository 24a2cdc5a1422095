"""The texts that are being written in one investigation, as its subscribers have received them.

They precede the log: an event of the log replaces the text with its id, and a text that never reaches the log is
discarded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tarsy.live import events_from_log, live_events
from tarsy.store.live import payloads
from tarsy.transcript import entries


@dataclass(kw_only=True)
class _Text:
    """A text that is being written."""

    piece: payloads.Piece
    """The first piece of the text."""
    content: str
    since: str


class StreamedTexts:
    """The texts of one investigation."""

    def __init__(self, investigation: UUID) -> None:
        self.finished: set[str] = set()
        """The ids of finished texts: the log has them by now, or will never have them."""
        self._investigation = investigation
        self._texts: dict[str, _Text] = {}
        self._last_calls: dict[str, float] = {}
        """The number of the last model call in the log, by execution."""
        self._results: dict[str, frozenset[str]] = {}
        """The ids of tool results of the last model call in the log, by execution: later progress is dropped."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids of texts that subscribers have received and that the log does not have yet."""
        return frozenset(self._texts)

    def add(self, piece: payloads.Piece) -> Iterator[live_events.LiveEvent]:
        """Yield the event of a piece of text; none if its model call is in the log already."""
        is_settled = _call_number(piece) <= self._last_calls.get(piece.execution, -1)
        if is_settled or piece.event in self._results.get(piece.execution, ()):
            return
        text = self._texts.get(piece.event)
        if piece.state == "over":
            if text is not None:
                self.finished.add(piece.event)
        elif text is None or piece.type != text.piece.type:
            self._texts[piece.event] = text = _Text(
                piece=piece,
                content=piece.after(text.content) if text else piece.text,
                since=text.since if text else live_events.timestamp(datetime.now(UTC)),
            )
            yield self._created(text)
        else:
            text.content = piece.after(text.content)
            chunk = {"run": piece.run, "event_id": piece.event, "offset": piece.at, "delta": piece.text}
            yield live_events.LiveEvent("stream.chunk", chunk, investigation=self._investigation)

    def begun(self) -> list[live_events.LiveEvent]:
        """Return the events of all texts so far, for a new subscriber."""
        return [self._created(text) for text in self._texts.values()]

    def settle(self, logged: events_from_log.EntryEvents) -> Iterator[live_events.LiveEvent]:
        """Forget the texts that an entry of the log replaces; yield the events of those that it discards."""
        for event in logged.timeline_ids:
            self.finished.discard(event)
            self._texts.pop(event, None)
        entry, execution = logged.entry, logged.execution
        match entry:
            case entries.ToolsAnswered():
                self._results[execution] = self._results.get(execution, frozenset()) | frozenset(logged.timeline_ids)
                return
            case entries.Answered() | entries.Unanswered():
                call: float = entry.turn
            case entries.ExecutionEnded() | entries.RunEnded():
                call = math.inf
            case _:
                return
        self._results.pop(execution, None)
        self._last_calls[execution] = max(call, self._last_calls.get(execution, -1))
        run = entry.run if isinstance(entry, entries.RunEnded) else None
        yield from self.discard(
            event
            for event, text in self._texts.items()
            if text.piece.run == run or (text.piece.execution == execution and _call_number(text.piece) <= call)
        )

    def discard(self, ids: Iterable[str]) -> Iterator[live_events.LiveEvent]:
        """Forget these texts, which will never be in the log, and yield an event for each."""
        for event in list(ids):
            self.finished.discard(event)
            if text := self._texts.pop(event, None):
                yield self._event(text, "timeline_event.completed", "failed", {"discarded": True})

    def _created(self, text: _Text) -> live_events.LiveEvent:
        return self._event(text, "timeline_event.created", "streaming", {})

    def _event(self, text: _Text, kind: str, status: str, metadata: dict[str, Any]) -> live_events.LiveEvent:
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
            "updated_at": live_events.timestamp(datetime.now(UTC)),
        }
        return live_events.LiveEvent(kind, {"run": piece.run, "event": event}, investigation=self._investigation)


def _call_number(piece: payloads.Piece) -> float:
    """Return the number of the model call that a piece belongs to, by its event's id.

    Progress of a tool comes between its model call and the next one: half a number later.
    """
    number = piece.event.removeprefix(f"{piece.execution}.").partition(".")[0]
    if not number.isdecimal():
        return math.inf
    return int(number) + (0.5 if piece.type == "tool_result" else 0.0)
