"""What a model is writing, from one process to another: two of them, here two databases' worth of connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from tarsy.store import database as databases
from tarsy.store import live, notify
from tarsy.transcript import ports

ID = UUID(int=14)
PATIENCE = 10.0  # seconds


def turn(investigation: UUID = ID, *, number: int = 0, strategy: str = "native-thinking") -> ports.Turn:
    return ports.Turn(
        investigation=str(investigation),
        run=0,
        stage="look",
        execution="e0",
        number=number,
        kind="agent",
        strategy=strategy,
    )


@dataclass
class Watching:
    """A process where somebody watches, and what he has in front of him."""

    database: databases.Database
    shown: dict[str, str] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    pieces: list[live.Piece] = field(default_factory=list)
    moved: list[UUID | None] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    audience: live.Audience = field(init=False)

    def __post_init__(self) -> None:
        self.audience = live.Audience(self.database, heard=self.heard, moved=self.has_moved)

    def heard(self, piece: live.Piece) -> None:
        before = self.shown.get(piece.event, "")
        assert piece.at <= len(before), "no piece has a gap before it"
        self.pieces.append(piece)
        self.shown[piece.event] = piece.after(before)
        if piece.state == "over":
            self.over.append(piece.event)
        self.changed.set()

    def has_moved(self, investigation: UUID | None) -> None:
        self.moved.append(investigation)
        self.changed.set()

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()

    async def sees(self, **texts: str) -> None:
        """Wait until the events of turn 0 are these."""
        expected = {f"e0.0.{place}": text for place, text in texts.items()}
        try:
            await self.until(lambda: self.shown == expected)
        except TimeoutError:
            pytest.fail(f"sees {self.shown} instead of {expected}")


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
async def worker(url: str) -> AsyncIterator[live.Speaker]:
    """A process that runs investigations; it listens when it is there."""
    database = databases.Database(url)
    speaker = live.Speaker(database)
    listens = asyncio.Event()

    def hint(payload: str) -> bool:
        listens.set()
        return speaker.hint(payload)

    listener = notify.Listener(url, {live.WATCHING: hint})
    async with running(listener.run, speaker.run), asyncio.timeout(PATIENCE):
        await listens.wait()
        yield speaker
    await database.close()


@contextlib.asynccontextmanager
async def watcher(url: str) -> AsyncIterator[Watching]:
    """A process where somebody may watch."""
    database = databases.Database(url)
    watching = Watching(database)
    listener = notify.Listener(url, {live.SAID: watching.audience.hint})
    async with running(listener.run, watching.audience.run):
        await watching.until(lambda: watching.moved == [None])
        watching.moved.clear()
        yield watching
    await database.close()


async def test_a_watcher_in_another_process_is_given_the_text_so_far_and_what_follows(migrated_url: str) -> None:
    async with worker(migrated_url) as speaker, watcher(migrated_url) as watching:
        with speaker.turn(turn()) as stream:
            stream.thinking("hm")
            stream.text("It is ")
            watching.audience.watch(ID)
            await watching.sees(thinking="hm", text="It is ")
            stream.text("memory")
            await watching.sees(thinking="hm", text="It is memory")
            assert watching.over == []
        speaker.moved(ID)
        await watching.until(lambda: watching.moved == [ID])
        assert watching.over == ["e0.0.thinking", "e0.0.text"]
        assert {piece.event: piece.type for piece in watching.pieces} == {
            "e0.0.thinking": "llm_thinking",
            "e0.0.text": "llm_response",
        }
        assert [piece.at for piece in watching.pieces if piece.event == "e0.0.text"] == [0, 6, 12]
