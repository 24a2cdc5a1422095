"""The programmable MCP server through the real client, over HTTP and stdio."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import CallToolResult, TextContent
from tarsy_dev import keys, mcp_server, oracle

KEY = str(keys.CallKey("tarsy/web-crash", "analysis", "KubernetesAgent", 1, 0))


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[mcp_server.Server, Client]]:
    async with mcp_server.serve() as server, Client(server.url) as client:
        yield server, client


def text(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_tools_are_annotated_as_what_they_are() -> None:
    async with connected() as (_, client):
        tools = (await client.list_tools()).tools
    hints = {
        tool.name: tool.annotations
        and (tool.annotations.read_only_hint, tool.annotations.destructive_hint, tool.annotations.idempotent_hint)
        for tool in tools
    }
    assert hints == {
        "lookup": (True, False, True),
        "slow": (True, False, True),
        "flaky": (True, False, True),
        "flood": (True, False, True),
        "restart": (False, True, False),
        "label": (False, False, True),
        "unannotated": None,
    }


async def test_a_call_is_told_by_its_key() -> None:
    async with connected() as (server, client):
        assert text(await client.call_tool("lookup", {"name": "web-0", "key": KEY})) == "web-0 exists"
        assert not (await client.call_tool("unannotated", {})).is_error
        [call] = server.of(key=KEY)
    assert (call.tool, call.args, call.answered, call.end) == ("lookup", {"name": "web-0"}, "result", "completed")
    assert call.ended is not None
    assert call.arrived <= call.ended


async def test_an_effect_that_happens_twice_is_seen() -> None:
    async with connected() as (server, client):
        for _ in range(2):
            result = await client.call_tool("restart", {"name": "web"})
        await client.call_tool("label", {"name": "web", "value": "v"})
    assert text(result) == "restarted web, 2 times now"
    assert server.restarts == {"web": 2}


async def test_a_tool_fails_in_both_ways_and_gives_way() -> None:
    async with connected() as (server, client):
        failed = await client.call_tool("flaky", {"times": 1, "key": KEY})
        assert (failed.is_error, text(failed)) == (True, "Error executing tool flaky: the backend is away")
        assert text(await client.call_tool("flaky", {"times": 1, "key": KEY})) == "not this time"
        with pytest.raises(MCPError, match="the server is confused"):
            await client.call_tool("flaky", {"how": "protocol error"})
    assert [call.answered for call in server.calls] == ["tool error", "result", "protocol error"]


async def test_a_flood_has_the_size_that_was_asked_for() -> None:
    async with connected() as (_, client):
        assert len(text(await client.call_tool("flood", {"size": 200_000}))) == 200_000


async def test_a_cancelled_call_is_recorded_as_such() -> None:
    async with connected() as (server, client):
        task = asyncio.create_task(client.call_tool("slow", {"seconds": 60}))
        await server.wait_for(lambda calls: len(calls) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        call = await server.wait_for(lambda calls: next((call for call in calls if call.ended), None))
        assert text(await client.call_tool("slow", {"seconds": 0})) == "waited 0 s"
    assert call.end == "client closed"


async def test_calls_can_be_held_back_before_they_do_anything() -> None:
    go = asyncio.Event()

    async def hold(_: mcp_server.Call) -> None:
        await go.wait()

    async with connected() as (server, client):
        server.hold = hold
        task = asyncio.create_task(client.call_tool("restart", {"name": "web"}))
        await server.wait_for(lambda calls: len(calls) == 1)
        assert not server.restarts
        go.set()
        await task
        assert server.restarts == {"web": 1}


async def test_over_stdio_the_log_is_in_the_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["-m", "tarsy_dev.mcp_server", "--stdio", "--log", str(log)]
    async with Client(StdioServerParameters(command=sys.executable, args=command)) as client:
        assert text(await client.call_tool("lookup", {"key": KEY})) == "web-0 exists"
    entries: list[dict[str, Any]] = oracle.read(log)
    assert [(entry["tool"], entry["key"], entry["end"]) for entry in entries] == [("lookup", KEY, "completed")]
