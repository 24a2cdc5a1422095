"""Text that a model is writing just now, from the process that runs it to those where somebody watches.

A process where somebody watches says so by NOTIFY every WATCHED_EVERY seconds. The one that runs the investigation
answers with the text so far, and then sends what is added, in batches, until nothing was heard for WATCHED_SECONDS. All
of it is a hint: what counts is the log, and whoever missed something reads it there. Nobody who runs waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from tarsy.store import database as databases
from tarsy.transcript import ports, timeline

WATCHING = "tarsy_watching"
"""Some investigations are watched somewhere; the payload says which, and whether the text so far is wanted."""
SAID = "tarsy_said"
"""What is being written in some investigations, and which of them have something new in their logs."""

BATCH_SECONDS = 0.05
WATCHED_EVERY = 10.0  # seconds
WATCHED_SECONDS = 30.0
PAYLOAD_MAX = 7900
"""Bytes of a NOTIFY's payload; Postgres takes less than 8000."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What is being written has changed: from character `at` on, the text of an event is `text`.

    The first piece of an event begins it. A piece at 0 that is not the first replaces all that came: the model is asked
    again. The text is what the log will hold at the end, or near it (what a strategy makes of an answer is only known
    at its end).
    """

    investigation: UUID
    run: int
    stage: str
    execution: str
    event: str
    """The event's id, under which it will stand in the timeline."""
    type: timeline.Type
    at: int
    text: str
    state: Literal["grows", "over"] = "grows"
    """"over": nothing more comes. The log has the event by now, or never will (then it was given up)."""


class Speaker:
    """Tells of the turns that models of this process are asked for. It is the `watched` of a Runtime."""

    def __init__(self, database: databases.Database) -> None: ...

    def turn(self, turn: ports.Turn) -> AbstractContextManager[ports.Stream]:
        """A turn that begins; where nobody watches, telling costs an append."""
        raise NotImplementedError

    def moved(self, investigation: UUID) -> None:
        """Something was committed to its log: told with the next batch, where somebody watches."""
        raise NotImplementedError

    def hint(self, payload: str) -> bool:
        """Take what was said on WATCHING; never only for this process."""
        raise NotImplementedError

    async def run(self) -> None:
        """Send batches, until cancelled. A database that is down costs what was to be sent, never a commit."""
        raise NotImplementedError


class Audience:
    """What this process watches, and what it hears of it."""

    def __init__(
        self,
        database: databases.Database,
        *,
        heard: Callable[[Piece], None],
        moved: Callable[[UUID | None], None],
    ) -> None:
        """`heard` is given each piece, whose place follows what came before it; `moved` the investigations whose logs

        have something new, or None where hints may have been lost: then all are to be looked at.
        """
        raise NotImplementedError

    def watch(self, investigation: UUID) -> None:
        """Somebody watches it from now on, or one more: the text so far is asked for."""
        raise NotImplementedError

    def forget(self, investigation: UUID) -> None:
        """Nobody here watches it any more."""
        raise NotImplementedError

    def hint(self, payload: str) -> bool:
        """Take what was said on SAID ("" where it may have been missed); never only for this process."""
        raise NotImplementedError

    async def run(self) -> None:
        """Say what is watched, until cancelled."""
        raise NotImplementedError


def encode(pieces: Iterable[Piece], moved: Iterable[UUID]) -> list[str]:
    """As payloads of at most PAYLOAD_MAX bytes, long pieces in several."""
    raise NotImplementedError


def decode(payload: str) -> tuple[list[Piece], list[UUID]]:
    """What a payload says; one of another version of TARSy says nothing."""
    raise NotImplementedError
