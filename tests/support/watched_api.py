"""An API with one investigation that clients watch."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support import apis, kubeconfigs, queue, stories
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.live import payloads
from tarsy.store.queue import journal
from tarsy.transcript import entries
from tarsy_dev import patience
from websockets import client as client_protocol
from websockets import uri


@dataclass
class World:
    """An API that serves this machine, and an investigation that runs."""

    url: str
    parts: app.Parts
    database: databases.Database
    identity: UUID
    journal: journal.PgJournal
    writers: list[int]
    """The backends of those who write."""

    @property
    def path(self) -> str:
        return f"/api/v1/investigations/{self.identity}"

    @property
    def channel(self) -> str:
        return f"investigation:{self.identity}"

    async def commit(self, *commits: tuple[entries.Entry, ...], hinted: bool = True) -> None:
        for commit in commits:
            await self.journal.commit(*commit)
            if hinted:
                self.parts.hub.hint(*payloads.encode([], [self.identity]))

    async def timeline(self, session: Any) -> dict[str, Any]:
        """The events as they are read by REST, by their ids."""
        events: dict[str, Any] = {}
        after = 0
        while True:
            path = f"{self.path}/timeline?after={after}&limit=7"
            async with session.get(self.url + path) as response:
                page = await response.json()
            events |= {event["id"]: event for event in page["events"]}
            after = page["last"]
            if not page["more"]:
                return events


@pytest.fixture
async def watched(database: databases.Database, tmp_path: Path) -> AsyncIterator[World]:
    cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
    own = databases.Database(database.url)
    parts = apis.parts(cluster=cluster, database=own)
    identity = await queue.admit(database)
    opened = await queue.opened(database, await queue.claimed(database))
    writers = await queue.rows(database, "SELECT pid FROM pg_stat_activity WHERE datname = current_database()")
    async with apis.listening(parts, hears=True) as url:
        yield World(
            url=url,
            parts=parts,
            database=database,
            identity=identity,
            journal=opened,
            writers=[pid for (pid,) in writers],
        )
    await own.close()
    await cluster.close()


ASKED = stories.asks("k8s.pods_log", text="look")

STORY: list[tuple[entries.Entry, ...]] = [
    (stories.stage_started(), stories.started()),
    (ASKED,),
    (stories.ran(ASKED),),
    (stories.answers("it is memory", call_number=1),),
    (stories.ended(), stories.stage_ended()),
    (stories.run_ended(final_analysis="it is memory"),),
]


async def slow_reader(watched: World) -> socket.socket:
    """A client that subscribes, and then reads nothing."""
    host, port = watched.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(connection, (host, int(port)))
    own = client_protocol.ClientProtocol(uri.parse_uri(f"ws://{host}:{port}/ws"))
    own.send_request(own.connect())
    for chunk in own.data_to_send():
        await loop.sock_sendall(connection, chunk)
    while not own.events_received():
        own.receive_data(await loop.sock_recv(connection, 4096))
    own.send_text(json.dumps({"action": "subscribe", "channel": watched.channel}).encode())
    for chunk in own.data_to_send():
        await loop.sock_sendall(connection, chunk)
    return connection


def listening(watched: World) -> int:
    """How many listen to the investigation."""
    watch = watched.parts.hub._feeds.get(watched.identity)
    return len(watch.subscribers) if watch else 0


async def eventually(look: Callable[[], bool]) -> None:
    async with patience.limit():
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
