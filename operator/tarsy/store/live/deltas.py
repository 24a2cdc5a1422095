"""Text that a model is writing, on its way from the worker to the processes with viewers.

A process with viewers announces them by NOTIFY every WATCHED_EVERY seconds. The worker answers with the text so far,
and then sends additions, in batches, until it has heard nothing for WATCHED_SECONDS. All of it is a hint: only the log
counts, and a viewer that missed something reads it there. A run never waits for it.
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

WATCHING = "tarsy_watching"
"""Some investigations are watched somewhere; the payload says which, and of which the text so far is wanted."""
SAID = "tarsy_said"
"""The channel of text that is being written, and of investigations with news in their logs."""

BATCH_SECONDS = 0.05
WATCHED_EVERY = 10.0  # seconds
WATCHED_SECONDS = 30.0
AGAIN_SECONDS = 1.0
"""Until the next try where something was lost: a statement, or a piece."""
GATHER_SECONDS = 0.005
"""For so long those who begin to watch are gathered."""
REST = 20.0
"""How long no batch is made behind one, in times of what that took of the processor."""

Piece = payloads.Piece
PAYLOAD_MAX = payloads.PAYLOAD_MAX
encode = payloads.encode
decode = payloads.decode

log = logging.getLogger(__name__)


class _Turn:
    """A turn whose answer is being written."""

    def __init__(
        self, model_call: ports.StreamedCall, *, secrets: known_secrets.KnownSecrets, due: asyncio.Event, watched: bool
    ) -> None:
        self.investigation = UUID(model_call.investigation)
        self.written = streams.AnswerStream(model_call, secrets=secrets, notify=self._notify)
        self.watched = watched
        self.is_over = False
        self._turn = model_call
        self._due = due
        self._changed = False
        self._anew = False
        """Whether all of it is to be sent once more."""

    def _notify(self) -> None:
        self._changed = True
        if self.watched:
            self._due.set()

    def resend(self) -> None:
        """Have all of it sent with the next batch: it is watched."""
        self.watched = self._anew = True
        self._due.set()

    async def news(self) -> tuple[list[Piece], float]:
        """Return the changes since the last call, and the processor's seconds that this took."""
        if not (self._changed or self._anew):
            return [], 0.0
        anew, self._changed, self._anew = self._anew, False, False
        began = time.thread_time()
        read, is_long = self.written.reading()
        if not is_long:
            pieces = [self._piece(part, at=at) for part, at in self.written.changes(read(), anew=anew)]
            return pieces, time.thread_time() - began
        changed, spent = await asyncio.to_thread(_timed, read)
        if self.is_over:
            return [], spent
        return [self._piece(part, at=at) for part, at in self.written.changes(changed, anew=anew)], spent

    def ends(self) -> list[Piece]:
        """The ends of what was sent of it."""
        return [self._piece(part, at=len(part.text), state="over") for part in self.written.sent_events]

    def _piece(self, part: streams.PartialEvent, *, at: int, state: Literal["grows", "over"] = "grows") -> Piece:
        return Piece(
            investigation=self.investigation,
            run=self._turn.run,
            stage=self._turn.stage,
            execution=self._turn.execution,
            event=part.event,
            type=part.type,
            at=at,
            text=part.text[at:],
            state=state,
        )


def _timed(read: Callable[[], list[streams.PartialEvent]]) -> tuple[list[streams.PartialEvent], float]:
    began = time.thread_time()
    return read(), time.thread_time() - began


class Speaker:
    """Tells of the turns that models of this process are asked for. Its `open_stream` is that of a Runtime.

    All of it is called on the main loop.
    """

    def __init__(self, database: databases.Database, *, secrets: known_secrets.KnownSecrets) -> None:
        self._database = database
        self._secrets = secrets
        self._turns: dict[UUID, list[_Turn]] = {}
        self._watched: dict[UUID, float] = {}
        """Until when, by the monotonic clock."""
        self._moved: set[UUID] = set()
        self._ends: list[Piece] = []
        self._due = asyncio.Event()
        self._lost = False
        """Whether the last statement was."""

    @contextmanager
    def open_stream(self, model_call: ports.StreamedCall) -> Iterator[ports.Stream]:
        """Open the stream of a model call; without viewers, a piece of text costs an append."""
        investigation = UUID(model_call.investigation)
        own = _Turn(model_call, secrets=self._secrets, due=self._due, watched=investigation in self._watched)
        beside = self._turns.setdefault(investigation, [])
        beside.append(own)
        try:
            yield own.written
        finally:
            beside.remove(own)
            if not beside:
                del self._turns[investigation]
            own.is_over = True
            if own.watched and (ends := own.ends()):
                self._ends += ends
                self._due.set()

    def moved(self, investigation: UUID) -> None:
        """Announce a commit to its log with the next batch, if it has viewers."""
        if investigation in self._watched:
            self._moved.add(investigation)
            self._due.set()

    def hint(self, payload: str) -> bool:
        """Take what was said on WATCHING; never only for this process.

        "" says that something may have been missed: then all that is watched is sent anew.
        """
        now = time.monotonic()
        self._forget(now)
        if not payload:
            self._resend(self._watched)
            return False
        anew, still = payloads.watchers(payload)
        wanted = {
            *anew,
            *(investigation_asked for investigation_asked in still if investigation_asked not in self._watched),
        }  # the request was not heard then
        self._watched |= dict.fromkeys([*anew, *still], now + WATCHED_SECONDS)
        self._resend(wanted)
        return False

    def _resend(self, investigations: Iterable[UUID]) -> None:
        for investigation in investigations:
            for open_call in self._turns.get(investigation, ()):
                open_call.resend()

    def _forget(self, now: float) -> None:
        """Forget the investigations that have not been announced for long."""
        for investigation in [forgotten for forgotten, until in self._watched.items() if until <= now]:
            del self._watched[investigation]
            for open_call in self._turns.get(investigation, ()):
                open_call.watched = False

    async def run(self) -> None:
        """Send batches, until cancelled. A database that is down costs what was to be sent, never a commit.

        Batches are as far apart as they have to be to take a twentieth of the processor at most.
        """
        while True:
            await self._due.wait()
            self._due.clear()
            payloads_sent, spent = await self._batch()
            if not payloads_sent or await self._send(payloads_sent):
                await asyncio.sleep(max(BATCH_SECONDS, spent * REST))
            else:
                await asyncio.sleep(AGAIN_SECONDS)

    async def _batch(self) -> tuple[list[str], float]:
        """Return the news, and the processor's seconds that it took to compute them."""
        self._forget(time.monotonic())
        pieces: list[Piece] = []
        spent = 0.0
        for open_call in [candidate for beside in self._turns.values() for candidate in beside if candidate.watched]:
            if open_call.is_over:
                continue
            new, took = await open_call.news()
            pieces += new
            spent += took
            await asyncio.sleep(0)  # each is short, all together may not be
        began = time.thread_time()
        ends, self._ends = self._ends, []
        moved, self._moved = self._moved, set()
        encoded = encode([*pieces, *ends], moved)
        return encoded, spent + time.thread_time() - began

    async def _send(self, encoded: Sequence[str]) -> bool:
        """Whether they were sent; what was lost is sent anew."""
        try:
            await notify.post(self._database, *((SAID, payload) for payload in encoded))
        except databases.StoreDownError as error:
            if not self._lost:
                log.warning("nobody hears what is written: %s", error, extra={"action": "live_lost"})
            self._lost = True
            self._resend(self._watched)
            return False
        self._lost = False
        return True


@dataclass(kw_only=True)
class _Heard:
    """An event, as far as it was heard."""

    piece: Piece
    """The last one."""
    text: str
    is_sure: bool = True
    """Nothing of it can have been missed."""


class Audience:
    """The investigations that this process watches, and the text it receives of them.

    It is called on the main loop only.
    """

    def __init__(
        self,
        database: databases.Database,
        *,
        heard: Callable[[Piece], None],
        moved: Callable[[UUID | None], None],
    ) -> None:
        """`heard` is given each piece; its place is in or right behind what came of its event before it.

        `moved` is given the investigations whose logs have something new, or None where hints may have been lost: then
        all are to be looked at.
        """
        self._database = database
        self._heard = heard
        self._moved = moved
        self._watchers: dict[UUID, int] = {}
        self._known: dict[UUID, dict[str, _Heard]] = {}
        self._wanted: dict[UUID, float] = {}
        """The investigations whose text so far is asked for, with the earliest time."""
        self._asked: dict[UUID, float] = {}
        """When it was asked for the last time, as long as that says when it may be asked for again."""
        self._renewed = 0.0
        self._due = asyncio.Event()
        self._lost = False

    def watch(self, investigation: UUID) -> None:
        """Add a viewer of an investigation. For the first one the text so far is asked for.

        For another one it is here already: `so_far`.
        """
        self._watchers[investigation] = self._watchers.get(investigation, 0) + 1
        if self._watchers[investigation] == 1:
            self._want(investigation)

    def forget(self, investigation: UUID) -> None:
        """One of those who watch it does not any more."""
        self._watchers[investigation] -= 1
        if not self._watchers[investigation]:
            del self._watchers[investigation]
            self._known.pop(investigation, None)
            self._wanted.pop(investigation, None)

    def so_far(self, investigation: UUID) -> list[Piece]:
        """Return the text that is being written in it, as received: each event from its beginning."""
        pieces = self._known.get(investigation, {}).values()
        return [replace(received.piece, at=0, text=received.text) for received in pieces]

    def hint(self, payload: str) -> bool:
        """Take what was said on SAID ("" where it may have been missed); never only for this process."""
        if not payload:
            for investigation in self._watchers:
                for received in self._known.get(investigation, {}).values():
                    received.is_sure = False
                self._want(investigation)
            self._moved(None)
            return False
        pieces, moved = decode(payload)
        for piece in pieces:
            if piece.investigation in self._watchers:
                self._take(piece)
        for investigation in moved:
            if investigation in self._watchers:
                self._moved(investigation)
        return False

    def _take(self, piece: Piece) -> None:
        """Tell of a piece, as far as it is news; what has a gap before it is asked for again."""
        pieces = self._known.setdefault(piece.investigation, {})
        before = pieces.get(piece.event)
        if piece.state == "over":
            if before is not None:
                del pieces[piece.event]
                self._heard(replace(piece, at=len(before.text), text=""))
            return
        if piece.at and (before is None or not before.is_sure or piece.at > len(before.text)):
            self._want(piece.investigation)
            return
        text = piece.after(before.text if before else "")
        pieces[piece.event] = _Heard(piece=replace(piece, more=False), text=text)
        at = streams.common_length(before.text, text) if before else 0
        if before is None or text != before.text:
            self._heard(replace(piece, at=at, text=text[at:], more=False))

    def _want(self, investigation: UUID) -> None:
        """Have the text so far asked for: at once, or AGAIN_SECONDS after it was asked for the last time."""
        self._wanted[investigation] = self._asked.get(investigation, -math.inf) + AGAIN_SECONDS
        self._due.set()

    async def run(self) -> None:
        """Say what is watched, until cancelled."""
        while True:
            due = min([self._renewed + WATCHED_EVERY, *self._wanted.values()])
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
        """Say of which the text so far is wanted, and of all that they are watched, if it is time for that."""
        anew = [investigation for investigation, at in self._wanted.items() if at <= now]
        is_time = self._renewed + WATCHED_EVERY <= now
        still = self._watchers.keys() - set(anew) if is_time else ()
        for investigation in anew:
            del self._wanted[investigation]
        self._asked = {asked: at for asked, at in self._asked.items() if at + AGAIN_SECONDS > now} | dict.fromkeys(
            anew, now
        )
        try:
            await notify.post(self._database, *((WATCHING, asked) for asked in payloads.watching(anew, still)))
        except databases.StoreDownError as error:
            if not self._lost:
                log.warning("nobody is told what is watched: %s", error, extra={"action": "live_lost"})
            self._lost = True
            for investigation in anew:
                if investigation in self._watchers:
                    self._want(investigation)
            self._renewed = now - WATCHED_EVERY + AGAIN_SECONDS if is_time else self._renewed
        else:
            self._lost = False
            self._renewed = now if is_time else self._renewed
