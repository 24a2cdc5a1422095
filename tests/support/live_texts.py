"""Texts of model calls while they are written: workers, watchers and those who are connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from support.masking import NO_SECRETS
from tarsy.store.base import databases, hints, notify
from tarsy.store.live import payloads, text_streams
from tarsy.transcript import ports
from tarsy_dev import patience

ID, OTHER = UUID(int=14), UUID(int=15)


def turn(
    investigation: UUID = ID, *, stage: str = "look", execution: str = "e0", number: int = 0
) -> ports.StreamedCall:
    return ports.StreamedCall(
        investigation=str(investigation),
        run=0,
        stage=stage,
        execution=execution,
        number=number,
        kind="agent",
        strategy="native-thinking",
    )


@dataclass
class Watching:
    """A process with a subscriber, and the texts that the subscriber has received."""

    database: databases.Database
    texts: dict[str, str] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    pieces: list[payloads.Piece] = field(default_factory=list)
    moved: list[UUID | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    audience: text_streams.TextReceiver = field(init=False)

    def __post_init__(self) -> None:
        self.audience = text_streams.TextReceiver(self.database, on_piece=self.heard, on_commit=self.has_moved)

    def heard(self, piece: payloads.Piece) -> None:
        before = self.texts.get(piece.event, "")
        assert piece.at <= len(before), "no piece has a gap before it"
        self.pieces.append(piece)
        self.texts[piece.event] = piece.after(before)
        if piece.state == "over":
            self.over.append(piece.event)
        self.changed.set()

    def has_moved(self, investigation: UUID | None) -> None:
        self.moved.append(investigation)
        self.changed.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        async with patience.limit():
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def sees(self, **texts: str) -> None:
        """Wait until the events of turn 0 are these."""
        expected = {f"e0.0.{kind}": text for kind, text in texts.items()}
        try:
            await self.until(lambda: self.texts == expected)
        except TimeoutError:
            pytest.fail(f"sees {self.texts} instead of {expected}")


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[databases.Database]:
    """The connections of one process."""
    database = databases.Database(url)
    try:
        yield database
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(part()) for part in parts]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert all(task.cancelled() for task in tasks), [task for task in tasks if not task.cancelled()]


@contextlib.asynccontextmanager
async def worker(url: str) -> AsyncIterator[text_streams.TextSender]:
    """A process that runs investigations; it listens when it is there."""
    listens = asyncio.Event()

    def hint(payload: str) -> bool:
        listens.set()
        return speaker.hint(payload)

    async with connected(url) as database:
        speaker = text_streams.TextSender(database, secrets=NO_SECRETS)
        async with running(notify.Listener(url, hints.Channels({text_streams.WATCHED: hint})).run, speaker.run):
            await listens.wait()
            yield speaker


@contextlib.asynccontextmanager
async def watcher(url: str) -> AsyncIterator[Watching]:
    """Yield a process in which a subscriber may watch."""
    async with connected(url) as database:
        watching = Watching(database)
        listener = notify.Listener(url, hints.Channels({text_streams.TEXTS: watching.audience.hint}))
        async with running(listener.run, watching.audience.run):
            await watching.until(lambda: watching.moved == [None])
            watching.moved.clear()
            yield watching
