"""Clients that watch: what they were told, over WebSocket and as Server-Sent Events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from tarsy.live import backlogs
from tarsy_dev import patience
from websockets import exceptions
from websockets.asyncio import client


def box(memory: backlogs.Memory | None = None) -> backlogs.Backlog:
    """Return a backlog without a client."""
    return backlogs.Backlog("event stream", memory or backlogs.Memory())


def event(encoded: bytes | None) -> dict[str, Any]:
    """Return the fields of a Server-Sent Event."""
    assert encoded is not None
    fields: dict[str, Any] = json.loads(encoded.partition(b"data: ")[2])
    return fields


@dataclass
class Watcher:
    """One connection, and what it was told."""

    socket: client.ClientConnection
    messages: list[dict[str, Any]] = field(default_factory=list)

    async def ask(self, **fields: Any) -> None:
        await self.socket.send(json.dumps(fields))

    def cut(self) -> None:
        """End the connection as a network that fails."""
        self.socket.transport.abort()

    async def closed(self) -> tuple[int | None, str | None]:
        """Wait until it is closed by the API; why."""
        async with patience.limit():
            await self.socket.wait_closed()
        return self.socket.close_code, self.socket.close_reason

    async def next(self) -> dict[str, Any]:
        """Return the next message."""
        async with patience.limit():
            message: dict[str, Any] = json.loads(await self.socket.recv())
        self.messages.append(message)
        return message

    async def until(self, is_it: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
        """Return the messages up to the first one that `is_it`, that one included."""
        messages = []
        while True:
            messages.append(await self.next())
            if is_it(messages[-1]):
                return messages

    async def until_type(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the messages up to one of that type."""
        return await self.until(lambda message: message["type"] in kinds)

    async def answer(self, **fields: Any) -> dict[str, Any]:
        """Send this, and return the next message."""
        await self.ask(**fields)
        return await self.next()


@contextlib.asynccontextmanager
async def watching(
    url: str, *, path: str = "/api/v1/ws", headers: Mapping[str, str] | None = None, **named: Any
) -> AsyncIterator[Watcher]:
    """A WebSocket to the API at `url`, that has been greeted."""
    address = url.replace("http", "ws", 1) + path
    async with client.connect(address, additional_headers=headers, proxy=None, max_queue=None, **named) as socket:
        watcher = Watcher(socket)
        assert (await watcher.next())["type"] == "connection.established"
        yield watcher


async def refused(
    url: str, *, path: str = "/api/v1/ws", headers: Mapping[str, str] | None = None, **named: Any
) -> tuple[int, Any]:
    """How a WebSocket is refused: the status and the problem."""
    with pytest.raises(exceptions.InvalidStatus) as error:
        async with watching(url, path=path, headers=headers, **named):
            pass
    response = error.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)


@dataclass
class Reader:
    """A stream of Server-Sent Events, as an EventSource reads it."""

    response: aiohttp.ClientResponse
    last_event_id: str = ""

    async def next(self) -> dict[str, Any]:
        """Return the next message."""
        name, data_lines = "", []
        async with patience.limit():
            while line := (await self.response.content.readline()).decode():
                field_, _, value = line.rstrip("\n").partition(": ")
                match field_:
                    case "event":
                        name = value
                    case "id":
                        self.last_event_id = value
                    case "data":
                        data_lines.append(value)
                    case "" if data_lines:
                        message: dict[str, Any] = json.loads("\n".join(data_lines))
                        assert message["type"] == name
                        return message
        raise EOFError

    async def until_type(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the messages up to one of that type."""
        messages = []
        while True:
            messages.append(await self.next())
            if messages[-1]["type"] in kinds:
                return messages


class Seen:
    """The events that a client has in front of it, made of the messages that it was sent."""

    def __init__(self) -> None:
        self.events: dict[str, dict[str, Any]] = {}
        self.last = 0

    def take(self, message: Mapping[str, Any]) -> None:
        """Take one message."""
        match message["type"]:
            case "timeline_event.created" | "timeline_event.completed":
                self.events[message["event"]["id"]] = message["event"]
                if message["event"]["metadata"].get("discarded"):
                    del self.events[message["event"]["id"]]
            case "stream.chunk":
                event = self.events[message["event_id"]]
                assert message["offset"] <= len(event["content"]), "no chunk has a gap before it"
                event["content"] = event["content"][: message["offset"]] + message["delta"]
        self.last = message.get("id", self.last)
