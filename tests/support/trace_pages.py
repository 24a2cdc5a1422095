"""Small investigations for the pages of a trace."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from support import queue, stories
from tarsy.store.base import databases
from tarsy.transcript import entries

HOSTILE = '<img src=x onerror="alert(1)">\x1b[31mred\u202egnp.exe **bold** <script>alert(2)</script>'


async def written(database: databases.Database, log: Iterable[entries.Entry], *, at_once: int = 500) -> UUID:
    identity = await queue.admit(database)
    journal = await queue.opened(database, await queue.claimed(database))
    listed = list(log)
    for start in range(0, len(listed), at_once):
        await journal.commit(*listed[start : start + at_once])
    return identity


def small() -> list[entries.Entry]:
    """Two agents, one of which fails, and a run that goes on."""
    asked = stories.asks("k8s.pods_log", text="I **look**.", thinking=HOSTILE)
    return [
        stories.stage_started(),
        stories.started(),
        stories.started("two", index=1),
        asked,
        stories.ran(asked, text=HOSTILE),
        stories.unanswered(execution="two"),
        stories.answers(f"# Result\n\n{HOSTILE}\n\n| a | b |\n|---|---|\n| 1 | 2 |", call_number=1),
        stories.ended("two", "Failed", "no answer"),
        stories.ended(),
        stories.stage_ended(outcome="CompletedWithErrors"),
        stories.run_ended(final_analysis="done"),
    ]
