"""What is told to whoever watches, by the API over a real database; rights are the cluster's tests'."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support import apis, kubeconfigs, queue, stories, watching
from tarsy.api import app
from tarsy.kube import client
from tarsy.store import database as databases
from tarsy.store import journal
from tarsy.transcript import entries


@dataclass
class World:
    """An API that serves this machine, and an investigation that runs."""

    url: str
    parts: app.Parts
    database: databases.Database
    identity: UUID
    journal: journal.PgJournal

    @property
    def channel(self) -> str:
        return f"investigation:{self.identity}"

    async def commit(self, *commits: tuple[entries.Entry, ...]) -> None:
        for commit in commits:
            await self.journal.commit(*commit)

    async def timeline(self, session: Any) -> dict[str, Any]:
        """The events as they are read by REST, by their ids."""
        found: dict[str, Any] = {}
        after = 0
        while True:
            path = f"/api/v1/investigations/{self.identity}/timeline?after={after}&limit=7"
            async with session.get(self.url + path) as response:
                page = await response.json()
            found |= {event["id"]: event for event in page["events"]}
            after = page["last"]
            if not page["more"]:
                return found


@pytest.fixture
async def world(database: databases.Database, tmp_path: Path) -> AsyncIterator[World]:
    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    parts = apis.parts(cluster=cluster, database=database)
    identity = await queue.admit(database)
    opened = await queue.opened(database, await queue.claimed(database))
    async with apis.listening(parts, hears=True) as url:
        yield World(url=url, parts=parts, database=database, identity=identity, journal=opened)
    await cluster.close()


ASKED = stories.asks("k8s.pods_log", text="look")
STORY: list[tuple[entries.Entry, ...]] = [
    (stories.stage_started(), stories.started()),
    (ASKED,),
    (stories.ran(ASKED),),
    (stories.answers("it is memory", turn=1),),
    (stories.ended(), stories.stage_ended()),
    (stories.run_ended(final_analysis="it is memory"),),
]


def told(messages: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    return [(message["type"], message.get("id")) for message in messages]


async def test_what_happens_is_told_in_sequence_and_the_last_message_of_an_entry_has_its_number(world: World) -> None:
    async with watching.watching(world.url) as watcher:
        await watcher.ask(action="subscribe", channel=world.channel)
        first = await watcher.until_type("investigation.status")
        assert [one["type"] for one in first] == ["subscription.confirmed", "investigation.status"]
        assert (first[1]["phase"], first[1]["investigation"]) == ("Running", str(world.identity))
        await asyncio.sleep(0.1)
        for commit in STORY:
            await world.commit(commit)
            await asyncio.sleep(0.2)
        rest = await watcher.until_type("investigation.completed")
        print(told(rest))
