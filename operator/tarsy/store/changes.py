"""What has changed since one looked: one investigation, or all of some namespaces.

Each change that a status shows raises `work.revision` and notes its transaction's number in `work.changed` (a trigger).
A reader asks for what changed from a number on, and may go on from `horizon`, below which nothing is under way any
more: so no change is missed, and one may be seen twice, which its revision tells.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from tarsy.store import database as databases
from tarsy.store import history


@dataclass(frozen=True, kw_only=True)
class Head:
    """How far one investigation is."""

    log_seq: int
    revision: int
    run: int
    """Its latest."""
    state: str
    """queued, running or ended: of its latest run."""


async def heads(database: databases.Database, investigations: Collection[UUID]) -> Mapping[UUID, Head]:
    """How far these are, by one statement; without those that are not there."""
    raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Investigations that have changed, in their newest form."""

    summaries: Sequence[history.Summary]
    """By when they changed."""
    more: bool
    """Whether there are more than were asked for."""
    horizon: int
    """What to ask for the next time."""


async def since(
    database: databases.Database, *, changed: int, namespaces: Mapping[str, str], limit: int
) -> Changes | None:
    """What changed from transaction `changed` on in the namespaces (each with its uid); None if that is in the future.

    None says that it is of another database, or of one that was restored from a backup.
    """
    raise NotImplementedError


async def now(database: databases.Database) -> int:
    """From where on to ask for what changes from now on."""
    raise NotImplementedError
