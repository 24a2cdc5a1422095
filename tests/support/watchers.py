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

    async def watch(self, told: Mapping[str, Any], turns: asyncio.Semaphore) -> None:
        address = told["url"].replace("http", "ws", 1) + "/api/v1/ws"
        headers = {"Authorization": f"Bearer {told['token']}"}
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
    told = json.loads(sys.stdin.readline())
    turns = asyncio.Semaphore(AT_ONCE)
    watchers = [Watcher(channel) for channel in told["channels"]]
    watching = [asyncio.create_task(one.watch(told, turns)) for one in watchers]
    await asyncio.gather(*(one.confirmed.wait() for one in watchers))
    print("watching", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(one.completed.wait() for one in watchers)), LAST_SECONDS)
    lost = sum(task.done() for task in watching)
    completed, chunks = sum(one.completed.is_set() for one in watchers), sum(one.chunks for one in watchers)
    print(json.dumps({"lost": lost, "completed": completed, "chunks": chunks}), flush=True)
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main())
