"""Transcripts as runs write them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from support import queue, stories
from tarsy.store.base import databases
from tarsy.transcript import entries, messages

CALLS = ("k8s.pods_log", "k8s.pods_log")

STATE = messages.ProviderState(provider="google-default", data=[{"thoughtSignature": "c2VjcmV0"}])


def turns(execution: str, *, count: int, text: str = "found") -> list[entries.Entry]:
    """Answers with two calls each, whose results come apart; a call in between brings nothing."""
    told: list[entries.Entry] = []
    for turn in range(count):
        asked = stories.asks(*CALLS, execution=execution, turn=turn, state=STATE)
        told += [asked, stories.ran(asked, 0, text=text), stories.ran(asked, 1, text=text)]
    told.append(stories.unanswered(stories.CONCLUDE, execution=execution, turn=count))
    told.append(stories.answers("root cause", execution=execution, turn=count + 1))
    return told


async def written(database: databases.Database, log: Sequence[entries.Entry], *, at_once: int = 100) -> UUID:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    for start in range(0, len(log), at_once):
        await journal.commit(*log[start : start + at_once])
    return identity
