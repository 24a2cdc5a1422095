"""Texts that models are writing, sent from workers to the processes with subscribers.

A process with subscribers announces their investigations by NOTIFY every WATCHED_EVERY seconds. The worker answers with
the text so far, and then sends additions in batches, until there was no announcement for WATCHED_SECONDS. These texts
may be lost: only the log counts, and a subscriber that missed a text reads it there. A run never waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from tarsy.masking import known_secrets
from tarsy.store.base import databases, notify
from tarsy.store.live import payloads
from tarsy.transcript import ports, streams

WATCHED = "tarsy_watching"
"""The channel of watched investigations; a payload also names those whose text so far is requested."""
TEXTS = "tarsy_said"
"""The channel of texts, and of investigations with new entries in their logs."""

BATCH_SECONDS = 0.05
WATCHED_EVERY = 10.0  # seconds
WATCHED_SECONDS = 30.0
RETRY_SECONDS = 1.0
"""The wait after a lost statement or piece."""
GATHER_SECONDS = 0.005
"""Seconds in which requests for texts are gathered before they are sent."""
REST_FACTOR = 20.0
"""The pause after a batch, as a multiple of the processor's seconds that the batch took."""

log = logging.getLogger(__name__)


class _ModelCall:
    """A model call whose answer is being written."""

    def __init__(
        self, model_call: ports.StreamedCall, *, secrets: known_secrets.KnownSecrets, due: asyncio.Event, watched: bool
    ) -> None:
        self.investigation = UUID(model_call.investigation)
        self.written = streams.AnswerStream(model_call, secrets=secrets, notify=self._notify)
        self.watched = watched
        self.is_over = False
        self._call = model_call
        self._due = due
        self._has_changed = False
        self._is_requested = False
        """Whether the text so far is sent with the next batch."""

    def _notify(self) -> None:
        self._has_changed = True
        if self.watched:
            self._due.set()

    def resend(self) -> None:
        """Send the text so far with the next batch, and changes from then on."""
        self.watched = self._is_requested = True
        self._due.set()

    async def changes(self) -> tuple[list[payloads.Piece], float]:
        """Return the changes since the last call, and the processor's seconds that this took."""
        if not (self._has_changed or self._is_requested):
            return [], 0.0
        anew, self._has_changed, self._is_requested = self._is_requested, False, False
        began = time.thread_time()
        read, is_long = self.written.reading()
        if not is_long:
            pieces = [self._piece(part, at=at) for part, at in self.written.changes(read(), anew=anew)]
            return pieces, time.thread_time() - began

        def timed_read() -> tuple[list[streams.PartialEvent], float]:
            began = time.thread_time()
            return read(), time.thread_time() - began

        parts, spent = await asyncio.to_thread(timed_read)
        if self.is_over:
            return [], spent
        return [self._piece(part, at=at) for part, at in self.written.changes(parts, anew=anew)], spent

    def ends(self) -> list[payloads.Piece]:
        """Return the ends of the texts that were sent."""
        return [self._piece(part, at=len(part.text), state="over") for part in self.written.sent_events]

    def _piece(
        self, part: streams.PartialEvent, *, at: int, state: Literal["grows", "over"] = "grows"
    ) -> payloads.Piece:
        return payloads.Piece(
            investigation=self.investigation,
            run=self._call.run,
            stage=self._call.stage,
            execution=self._call.execution,
            event=part.event,
            type=part.type,
            at=at,
            text=part.text[at:],
            state=state,
        )


class TextSender:
    """Sends the texts of this process's model calls, on the main loop only; a Runtime uses its `open_stream`."""

    def __init__(self, database: databases.Database, *, secrets: known_secrets.KnownSecrets) -> None:
        self._database = database
        self._secrets = secrets
        self._calls: dict[UUID, list[_ModelCall]] = {}
        self._watched: dict[UUID, float] = {}
        """The watched investigations, each with the monotonic time up to which it is watched."""
        self._committed: set[UUID] = set()
        self._ends: list[payloads.Piece] = []
        self._due = asyncio.Event()
        self._was_lost = False
        """Whether the last statement failed."""

    @contextmanager
    def open_stream(self, model_call: ports.StreamedCall) -> Iterator[ports.Stream]:
        """Open the stream of a model call. A piece of text of an unwatched investigation costs only an append."""
        investigation = UUID(model_call.investigation)
        call = _ModelCall(model_call, secrets=self._secrets, due=self._due, watched=investigation in self._watched)
        calls = self._calls.setdefault(investigation, [])
        calls.append(call)
        try:
            yield call.written
        finally:
            calls.remove(call)
            if not calls:
                del self._calls[investigation]
            call.is_over = True
            if call.watched and (ends := call.ends()):
                self._ends += ends
                self._due.set()

    def announce_commit(self, investigation: UUID) -> None:
        """Announce a commit to the investigation's log with the next batch, if it is watched."""
        if investigation in self._watched:
            self._committed.add(investigation)
            self._due.set()

    def hint(self, payload: str) -> bool:
        """Handle a payload on WATCHED; other processes need it as well.

        "" means that payloads may have been lost: then all watched texts are sent again.
        """
        now = time.monotonic()
        self._expire(now)
        if not payload:
            self._resend(self._watched)
            return False
        requested, still = payloads.decode_watched(payload)
        unknown = [investigation for investigation in still if investigation not in self._watched]  # a lost request
        self._watched |= dict.fromkeys([*requested, *still], now + WATCHED_SECONDS)
        self._resend({*requested, *unknown})
        return False

    def _resend(self, investigations: Iterable[UUID]) -> None:
        for investigation in investigations:
            for call in self._calls.get(investigation, ()):
                call.resend()

    def _expire(self, now: float) -> None:
        """Stop watching the investigations whose announcement has expired."""
        for investigation in [expired for expired, until in self._watched.items() if until <= now]:
            del self._watched[investigation]
            for call in self._calls.get(investigation, ()):
                call.watched = False

    async def run(self) -> None:
        """Send batches until cancelled. If the database is unavailable, texts are lost, but never a commit.

        The pauses between batches are so long that batches take at most a twentieth of the processor.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            batch, spent = await self._batch()
            is_sent = not batch or await self._send(batch)
            await asyncio.sleep(max(BATCH_SECONDS, spent * REST_FACTOR) if is_sent else RETRY_SECONDS)

    async def _batch(self) -> tuple[list[str], float]:
        """Return the payloads of all changes, and the processor's seconds that it took to compute them."""
        self._expire(time.monotonic())
        pieces: list[payloads.Piece] = []
        spent = 0.0
        for call in [call for calls in self._calls.values() for call in calls if call.watched]:
            if call.is_over:
                continue
            changes, seconds = await call.changes()
            pieces += changes
            spent += seconds
            await asyncio.sleep(0)  # one call is short, but all together may block the loop
        began = time.thread_time()
        ends, self._ends = self._ends, []
        committed, self._committed = self._committed & self._watched.keys(), set()
        encoded = payloads.encode([*pieces, *ends], committed)
        return encoded, spent + time.thread_time() - began

    async def _send(self, batch: Sequence[str]) -> bool:
        """Send a batch; return whether that succeeded. If not, all watched texts are sent again later."""
        try:
            await notify.post(self._database, *((TEXTS, payload) for payload in batch))
        except databases.StoreDownError as error:
            if not self._was_lost:
                log.warning("texts of model calls cannot be sent: %s", error, extra={"action": "live_lost"})
            self._was_lost = True
            self._resend(self._watched)
            return False
        self._was_lost = False
        return True


@dataclass(kw_only=True)
class _Received:
    """The received part of an event."""

    piece: payloads.Piece
    """The last piece."""
    text: str
    is_complete: bool = True
    """Whether no piece of the event can have been lost."""


class TextReceiver:
    """Receives the texts of the investigations that this process watches, on the main loop only."""

    def __init__(
        self,
        database: databases.Database,
        *,
        on_piece: Callable[[payloads.Piece], None],
        on_commit: Callable[[UUID | None], None],
    ) -> None:
        """`on_piece` is called with each piece, which begins in, or right after, the text of its event so far.

        `on_commit` is called with each investigation that has new entries in its log, and with None if hints may have
        been lost, so that all logs have to be read.
        """
        self._database = database
        self._on_piece = on_piece
        self._on_commit = on_commit
        self._watched: set[UUID] = set()
        self._events: dict[UUID, dict[str, _Received]] = {}
        self._requests: dict[UUID, float] = {}
        """The investigations whose text so far is to be requested, with the earliest time."""
        self._requested_at: dict[UUID, float] = {}
        """The times of the last requests, within RETRY_SECONDS."""
        self._announced_at = 0.0
        self._due = asyncio.Event()
        self._was_lost = False

    def watch(self, investigation: UUID) -> None:
        """Watch an investigation, and request the text so far."""
        if investigation not in self._watched:
            self._watched.add(investigation)
            self._request(investigation)

    def forget(self, investigation: UUID) -> None:
        """Stop watching an investigation."""
        self._watched.discard(investigation)
        self._events.pop(investigation, None)
        self._requests.pop(investigation, None)

    def hint(self, payload: str) -> bool:
        """Handle a payload on TEXTS; other processes need it as well. "" means that payloads may have been lost."""
        if not payload:
            for investigation in self._watched:
                for received in self._events.get(investigation, {}).values():
                    received.is_complete = False
                self._request(investigation)
            self._on_commit(None)
            return False
        pieces, committed = payloads.decode(payload)
        for piece in pieces:
            if piece.investigation in self._watched:
                self._receive(piece)
        for investigation in committed:
            if investigation in self._watched:
                self._on_commit(investigation)
        return False

    def _receive(self, piece: payloads.Piece) -> None:
        """Pass on the new part of a piece; request the text so far if there is a gap before the piece."""
        events = self._events.setdefault(piece.investigation, {})
        before = events.get(piece.event)
        if piece.state == "over":
            if before is not None:
                del events[piece.event]
                self._on_piece(replace(piece, at=len(before.text), text=""))
            return
        if piece.at and (before is None or not before.is_complete or piece.at > len(before.text)):
            self._request(piece.investigation)
            return
        text = piece.after(before.text if before else "")
        events[piece.event] = _Received(piece=replace(piece, more=False), text=text)
        at = streams.common_length(before.text, text) if before else 0
        if before is None or text != before.text:
            self._on_piece(replace(piece, at=at, text=text[at:], more=False))

    def _request(self, investigation: UUID) -> None:
        """Request the text so far: at once, or RETRY_SECONDS after the last request."""
        self._requests[investigation] = self._requested_at.get(investigation, -math.inf) + RETRY_SECONDS
        self._due.set()

    async def run(self) -> None:
        """Announce the watched investigations, until cancelled."""
        while True:
            due = min([self._announced_at + WATCHED_EVERY, *self._requests.values()])
            try:
                async with asyncio.timeout(max(0.0, due - time.monotonic())):
                    await self._due.wait()
            except TimeoutError:
                pass
            else:
                self._due.clear()
                await asyncio.sleep(GATHER_SECONDS)
            await self._announce(time.monotonic())

    async def _announce(self, now: float) -> None:
        """Send the requests that are due and, each WATCHED_EVERY seconds, all watched investigations."""
        requested = [investigation for investigation, at in self._requests.items() if at <= now]
        is_time = self._announced_at + WATCHED_EVERY <= now
        still = self._watched - set(requested) if is_time else ()
        for investigation in requested:
            del self._requests[investigation]
        recent = {investigation: at for investigation, at in self._requested_at.items() if at + RETRY_SECONDS > now}
        self._requested_at = recent | dict.fromkeys(requested, now)
        try:
            await notify.post(
                self._database, *((WATCHED, payload) for payload in payloads.encode_watched(requested, still))
            )
        except databases.StoreDownError as error:
            if not self._was_lost:
                log.warning("watched investigations cannot be announced: %s", error, extra={"action": "live_lost"})
            self._was_lost = True
            for investigation in requested:
                if investigation in self._watched:
                    self._request(investigation)
            self._announced_at = now - WATCHED_EVERY + RETRY_SECONDS if is_time else self._announced_at
        else:
            self._was_lost = False
            self._announced_at = now if is_time else self._announced_at
