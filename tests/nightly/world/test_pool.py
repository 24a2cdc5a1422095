"""The pool of MCP servers, over a real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from support import leases, spoken, waiting
from support.masking import NO_SECRETS
from support.pools import owned, stdio
from tarsy import slots
from tarsy.config.model import platforms, server_transports
from tarsy.telemetry import component_states
from tarsy.tools.servers import connection, health, listing, toolbox
from tarsy.tools.transports import remote
from tarsy.tools.transports import stdio as child
from tarsy.transcript import messages, ports
from tarsy_dev import mcp_server, proxy


def boxed(server: connection.Server, settings: platforms.MCPServer) -> toolbox.PoolToolbox:
    """Its tools."""
    selection = listing.ToolSelection({server.name: settings}, lambda _: True)
    return toolbox.PoolToolbox([server], limits=platforms.Limits(), selection=selection)


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_messages_of_a_server_about_a_call_under_way_are_passed_on(kind: str, tmp_path: Path) -> None:
    """By the SDK's own server, in whichever version of the protocol the two agree on."""
    async with contextlib.AsyncExitStack() as stack:
        transport: server_transports.Transport = stdio(tmp_path)
        if kind == "http":
            there = await stack.enter_async_context(mcp_server.serve())
            transport = server_transports.HTTPTransport(type="http", url=there.url)
        settings = platforms.MCPServer(transport=transport)
        server = connection.Server("tools", settings, limit=slots.Slots(1), secrets=NO_SECRETS)
        await stack.enter_async_context(owned(server))
        watched = spoken.Spoken()
        box = boxed(server, settings)
        call = messages.ToolCall(id="3.1", name="tools.slow", arguments="seconds=0")
        output = await box.call(call, ports.Scope(execution="e", ensure_lease=leases.clear, stream=watched))
    assert output == ports.ToolOutput(text="waited 0 s")
    assert watched.said == ["3.1: 1/2 it waits\n", "3.1: [info] for 0 s\n"]


class Killing(spoken.Spoken):
    """Ends a server's process with the first word that it says of a call."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def tool(self, call: str, piece: str) -> None:
        if not self.said:
            os.kill(int((self._folder / "pid").read_text()), signal.SIGKILL)
        super().tool(call, piece)


async def test_a_call_under_which_its_server_died_is_made_again_once_that_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 60.0)  # a busy machine starts a server slowly
    settings = platforms.MCPServer(transport=stdio(tmp_path))
    server = connection.Server("tools", settings, limit=slots.Slots(1), secrets=NO_SECRETS)
    async with owned(server):
        watched = Killing(tmp_path)
        box = boxed(server, settings)
        call = messages.ToolCall(id="3.1", name="tools.slow", arguments="seconds=0.2")
        output = await box.call(call, ports.Scope(execution="e", ensure_lease=leases.clear, stream=watched))
    assert output == ports.ToolOutput(text="waited 0.2 s")
    assert [word for word in watched.said if "it waits" in word] == ["3.1: 1/2 it waits\n"] * 2


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_gone_server_is_noticed_though_no_agent_calls_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.05)
    async with contextlib.AsyncExitStack() as stack:
        transport: server_transports.Transport = stdio(tmp_path)
        if kind == "http":
            there = await stack.enter_async_context(mcp_server.serve())
            transport = server_transports.HTTPTransport(type="http", url=there.url)
        server = connection.Server(
            "tools",
            platforms.MCPServer(transport=transport),
            limit=slots.Slots(1),
            secrets=NO_SECRETS,
        )
        async with owned(server):
            (connected, offered) = server.facts()
            assert isinstance(connected.detail, component_states.Server)
            assert isinstance(offered.detail, component_states.Tools)
            assert (connected.state, connected.detail.problem) == ("connected", "")
            reads = {tool.name: tool.read_only for tool in offered.detail.tools}
            assert (reads["lookup"], reads["restart"], reads["unannotated"]) == (True, False, False)
            await asyncio.sleep(0.3)  # six looks
            assert list(server.facts()) == [connected, offered]
            if kind == "http":
                await stack.aclose()
                await waiting.until(lambda: server.state.state == "unreachable")
            else:
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
                await waiting.until(lambda: server.state.state == "connecting")
                await waiting.until(lambda: server.state.state == "connected")
            (now, still) = server.facts()
            assert now.since > connected.since
            assert still is offered, "what it offered is told again only where that has changed"


async def test_a_server_that_works_on_a_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends takes no new call, and finishes those that it has begun."""
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.02)
    async with mcp_server.serve() as there, proxy.serve("127.0.0.1", int(there.url.split(":")[2][:-4])) as between:
        url = f"http://127.0.0.1:{between.port}/mcp"
        server = connection.Server(
            "tools",
            platforms.MCPServer(transport=server_transports.HTTPTransport(type="http", url=url)),
            limit=slots.Slots(2),
            secrets=NO_SECRETS,
        )
        async with owned(server):
            with server.calls.track():
                between.refuse()
                before = between.connections
                await asyncio.sleep(0.2)  # ten looks
                assert (server.state.state, between.connections) == ("connected", before)
            await waiting.until(lambda: server.state.state == "unreachable")


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_a_server_that_falls_silent_is_had_by_nobody_until_it_answers_again(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(remote, "CHECK_SECONDS", 0.3)
    monkeypatch.setattr(child, "CHECK_SECONDS", 0.3)
    monkeypatch.setattr(health, "HUNG_SILENCES", 1000)
    monkeypatch.setattr(remote, "NOTIFIED_SECONDS", 0.2)
    async with contextlib.AsyncExitStack() as stack:
        transport: server_transports.Transport = stdio(tmp_path)
        if kind == "http":
            there = await stack.enter_async_context(mcp_server.serve())
            between = await stack.enter_async_context(proxy.serve("127.0.0.1", int(there.url.split(":")[2][:-4])))
            transport = server_transports.HTTPTransport(type="http", url=f"http://127.0.0.1:{between.port}/mcp")
        server = connection.Server(
            "tools",
            platforms.MCPServer(transport=transport),
            limit=slots.Slots(1),
            secrets=NO_SECRETS,
        )
        await stack.enter_async_context(owned(server))
        first = await server.client()
        if kind == "http":
            looked = between.connections
            await waiting.until(lambda: between.connections > looked + 2)  # it has answered
            between.blackhole()
        else:
            pid = int((tmp_path / "pid").read_text())
            os.kill(pid, signal.SIGSTOP)
        await waiting.until(lambda: server.state.state == "unreachable")
        assert server.problem == "cannot be reached: it no longer answers"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.client(), 0.2)
        if kind == "http":
            between.heal()
        else:
            os.kill(pid, signal.SIGCONT)
        again = await asyncio.wait_for(server.client(), 60)
        assert (again is first) == (kind == "stdio"), "a child is the same that it was"
        assert server.problem == ""
