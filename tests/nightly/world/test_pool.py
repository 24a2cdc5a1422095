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
from tarsy.transcript import messages, ports
from tarsy_dev import mcp_server


def boxed(server: connection.Server, settings: platforms.MCPServer) -> toolbox.PoolToolbox:
    """Its tools."""
    selection = listing.ToolSelection({server.name: settings}, lambda _: True)
    return toolbox.PoolToolbox([server], limits=platforms.Limits(), selection=selection)


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
