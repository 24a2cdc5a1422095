"""A program that watches: a WebSocket for each channel that standard input names, until that is closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio import client

AT_ONCE = 50
"""Connections that are opened at the same time."""
LAST_SECONDS = 60.0
"""For so long what is on its way is waited for."""


@dataclass
class Watcher:
    """One connection, and what it has heard."""

    channel: str
    confirmed: asyncio.Event = field(default_factory=asyncio.Event)
    completed: asyncio.Event = field(default_factory=asyncio.Event)
    chunks: int = 0

    async def watch(self, settings: Mapping[str, Any], turns: asyncio.Semaphore) -> None:
        address = settings["url"].replace("http", "ws", 1) + "/api/v1/ws"
        headers = {"Authorization": f"Bearer {settings['token']}"}
        async with turns:
            socket = await client.connect(address, additional_headers=headers, proxy=None, compression=None)
            await socket.send(json.dumps({"action": "subscribe", "channel": self.channel}))
            while json.loads(await socket.recv())["type"] != "subscription.confirmed":
                pass
        self.confirmed.set()
        async for message in socket:
            self.chunks += '"stream.chunk"' in message[:80]
            if '"investigation.completed"' in message[:80]:
                self.completed.set()


async def main() -> None:
    settings = json.loads(sys.stdin.readline())
    turns = asyncio.Semaphore(AT_ONCE)
    watchers = [Watcher(channel) for channel in settings["channels"]]
    watching = [asyncio.create_task(watcher.watch(settings, turns)) for watcher in watchers]
    await asyncio.gather(*(watcher.confirmed.wait() for watcher in watchers))
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(watcher.completed.wait() for watcher in watchers)), LAST_SECONDS)
    lost = sum(task.done() for task in watching)
    completed, chunks = sum(peer.completed.is_set() for peer in watchers), sum(peer.chunks for peer in watchers)
    print(json.dumps({"lost": lost, "completed": completed, "chunks": chunks}), flush=True)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
