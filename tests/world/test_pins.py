"""Servers that say of their tools something else than before: that is not offered, and nothing is called."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from support import leases
from support.masking import NO_SECRETS
from tarsy import errors, slots
from tarsy.config.model import platforms, server_transports
from tarsy.telemetry import component_states
from tarsy.tools import pins
from tarsy.tools.servers import connection, listing, pool, toolbox
from tarsy.transcript import messages, ports
from tarsy_dev import hostile_mcp, patience

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
CHANGED = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


class Keep(pins.MemoryPins):
    """Pins that cannot be had while `away`."""

    away = False
    asked = 0

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        self.asked += 1
        if self.away:
            raise errors.TemporaryError("the database cannot be reached")
        return await super().pinned(server, seen=seen, confirmed=confirmed)


@pytest.fixture(autouse=True)
def _in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RELIST_LEAST", "PINS_SECONDS"):
        monkeypatch.setattr(connection, name, 0.0)


@contextlib.asynccontextmanager
async def owned(
    transport: server_transports.Transport, *, keep: pins.PinStore, hashes: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[connection.Server, toolbox.PoolToolbox]]:
    settings = platforms.MCPServer(transport=transport, tool_hashes=dict(hashes or {}), write_tools=["*"])
    server = connection.Server("odd", settings, limit=slots.Slots(4), secrets=NO_SECRETS, pin_store=keep)
    owner = asyncio.create_task(server.keep_connected())
    async with patience.limit():
        await server.tried.wait()
    try:
        yield (
            server,
            toolbox.PoolToolbox(
                [server], limits=platforms.Limits(), selection=listing.ToolSelection({"odd": settings}, lambda _: True)
            ),
        )
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


async def until(ready: Callable[[], Any]) -> None:
    async with patience.limit():
        while not ready():  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.01)


async def say(box: toolbox.PoolToolbox, tool: str = "say") -> ports.ToolOutput:
    """Return the tool's output without the structure that each answer has beside its text."""
    call = messages.ToolCall(id="0.0", name=f"odd.{tool}", arguments=json.dumps({"how": "fine"}))
    output = await box.call(call, SCOPE)
    return ports.ToolOutput(text=output.text.partition('\n{"slow": "')[0], failed=output.failed)


@pytest.mark.parametrize("offer", ["another description", "another schema", "other hints", "two of one name"])
async def test_a_tool_that_is_changed_under_an_execution_is_not_called_any_more(offer: str) -> None:
    """A rug pull: the execution has the tool pinned, and a model that does whatever it is told."""
    keep = Keep()
    async with hostile_mcp.serve() as remote:
        transport = server_transports.HTTPTransport(type="http", url=remote.url)
        async with owned(transport, keep=keep) as (server, box):
            assert [spec.name for spec in box.specs] == ["odd.say"]
            assert (await say(box)).text == "fine"
            pinned = dict(keep.pins)

            remote.offer = offer
            server.relist()
            await until(lambda: server.stopped)
            now = server.stopped["say"].offered
            for _ in range(3):
                output = await say(box)
                assert output.failed
                assert output.text == (
                    "'odd.say' was not called: it has changed since it was pinned, and is stopped until an admin "
                    f"accepts it (pinned {pinned['odd', 'say']}, now {now})"
                )
            assert remote.calls == 1
            assert (list(box.specs), keep.pins) == ([], pinned)
            (problem,) = box.problems
            assert problem.endswith(f": say (pinned {pinned['odd', 'say'][:19]}, now {now[:19]})")
            fact = next(server.facts())
            stopped_tool = component_states.StoppedTool(tool="say", pinned=pinned["odd", "say"], offered=now)
            assert isinstance(fact.detail, component_states.Server)
            assert fact.detail.stopped == (stopped_tool,)
            assert (fact.state, fact.detail.missing) == ("connected", server.tools_problem)

            keep.pins["odd", "say"] = now  # an admin confirms it
            server.relist()
            await until(lambda: not server.stopped)
            assert [spec.name for spec in box.specs] == ["odd.say"]
            assert (await say(box)).text == "fine"
            assert (server.stopped, remote.calls) == ({}, 2)


async def test_tool_that_changed_during_a_disconnection_is_stopped_from_the_start() -> None:
    keep = Keep()
    async with hostile_mcp.serve() as remote:
        transport = server_transports.HTTPTransport(type="http", url=remote.url)
        async with owned(transport, keep=keep):
            pass
        remote.offer = "another description"
        async with owned(transport, keep=keep) as (server, box):
            assert server.problem == ""
            assert list(box.specs) == []
            assert "was not called" in (await say(box)).text
            remote.offer = "plain"
            server.relist()
            await until(lambda: box.specs)
            assert (await say(box)).text == "fine"
        assert remote.calls == 1
        hashes = {"say": next(iter(keep.pins.values()))}
        remote.offer = "another description"
        async with owned(transport, keep=keep, hashes=hashes) as (server, _):
            hashes["say"] = server.stopped["say"].offered
        async with owned(transport, keep=keep, hashes=hashes) as (server, box):
            assert [spec.name for spec in box.specs] == ["odd.say"], "the platform file has confirmed it"


async def test_a_call_that_waits_for_its_server_to_come_back_is_not_sent_to_what_comes() -> None:
    keep = Keep()
    async with hostile_mcp.serve() as remote:
        transport = server_transports.HTTPTransport(type="http", url=remote.url)
        async with owned(transport, keep=keep) as (server, box):
            client = await server.client()
            remote.offer = "another description"
            server.report_broken(client)
            output = await say(box)
            assert output.text.startswith("'odd.say' was not called: it has changed")
            assert remote.calls == 0


async def test_changed_tool_list_is_read_again_and_tools_changing_each_time_are_stopped() -> None:
    """It tells with each of its answers, and says something else each time."""
    keep = Keep()
    child = server_transports.StdioTransport(
        type="stdio",
        command=sys.executable,
        args=["-m", "tarsy_dev.hostile_mcp", "--offer", "fickle", "--noise", CHANGED],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    async with owned(child, keep=keep) as (server, box):
        await until(lambda: server.stopped)
        first = server.stopped["say"].offered
        await until(lambda: server.stopped["say"].offered != first)
        assert "was not called" in (await say(box)).text
        assert len(keep.pins) == 1


async def test_a_new_tool_is_pinned_when_it_is_first_seen_and_offered_from_then_on() -> None:
    keep = Keep()
    async with hostile_mcp.serve() as remote:
        transport = server_transports.HTTPTransport(type="http", url=remote.url)
        async with owned(transport, keep=keep) as (server, box):
            remote.offer = "one more"
            server.relist()
            await until(lambda: len(box.specs) == 2)
            assert set(keep.pins) == {("odd", "say"), ("odd", "shout")}
            remote.offer = "plain"
            server.relist()
            await until(lambda: len(box.specs) == 1)
            assert (await say(box, "shout")).text == "There is no tool 'odd.shout'. Available tools: odd.say"
            assert remote.calls == 0


async def test_tools_are_offered_only_after_their_pins_are_known() -> None:
    keep = Keep()
    keep.away = True
    async with hostile_mcp.serve() as remote:
        transport = server_transports.HTTPTransport(type="http", url=remote.url)
        async with owned(transport, keep=keep) as (server, box):
            assert list(box.specs) == []
            (problem,) = box.problems
            waits = "MCP server 'odd' is connected, but its tools cannot be compared with their pins yet"
            assert problem == f"{waits}: the database cannot be reached"
            calling = asyncio.create_task(say(box))
            asked = keep.asked
            await until(lambda: keep.asked > asked + 2)
            assert remote.calls == 0
            assert (await calling).failed
            keep.away = False
            await until(lambda: box.specs)
            assert (await say(box)).text == "fine"

            keep.away = True  # what was found out holds
            asked = keep.asked
            server.relist()
            await until(lambda: keep.asked > asked)
            assert (await say(box)).text == "fine"
            assert box.problems == ()


async def test_own_connection_of_an_execution_is_checked_against_the_same_pins() -> None:
    keep = Keep()
    async with hostile_mcp.serve() as remote:
        transport = {"type": "http", "url": remote.url}
        settings = {"mcp_servers": {"odd": {"transport": transport, "stateful": True, "write_tools": ["*"]}}}
        servers = pool.Pool(platforms.Platform.model_validate(settings), secrets=NO_SECRETS, pin_store=keep)
        running = asyncio.create_task(servers.run())
        async with patience.limit():
            await servers.tools.wait_tried()
        async with servers.tools.toolbox(["odd"], lambda _: True) as box:
            await until(lambda: box.specs)
            assert (await say(box)).text == "fine"
        remote.offer = "another description"
        async with servers.tools.toolbox(["odd"], lambda _: True) as box:
            output = await say(box)
            assert output.failed
        assert remote.calls == 1
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
