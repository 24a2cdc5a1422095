"""Transcripts as runs write them."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from support import queue, stories
from tarsy.store.base import databases
from tarsy.transcript import entries, messages

CALLS = ("k8s.pods_log", "k8s.pods_log")

STATE = messages.ProviderState(provider="google-default", data=[{"thoughtSignature": "c2VjcmV0"}])


def turns(execution: str, *, count: int) -> list[entries.Entry]:
    """Answers with two calls each, whose results come apart; a call in between brings nothing."""
    log: list[entries.Entry] = []
    for step in range(count):
        asked = stories.asks(*CALLS, execution=execution, call_number=step, state=STATE)
        log += [asked, stories.ran(asked, 0, text="found"), stories.ran(asked, 1, text="found")]
    log.append(stories.unanswered(stories.CONCLUDE, execution=execution, call_number=count))
    log.append(stories.answers("root cause", execution=execution, call_number=count + 1))
    return log


async def written(database: databases.Database, log: Sequence[entries.Entry], *, at_once: int = 100) -> UUID:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    for start in range(0, len(log), at_once):
        await journal.commit(*log[start : start + at_once])
    return identity
