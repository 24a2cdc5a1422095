"""Servers that are there and answer nothing any more, while they are called and while they are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import leases, waiting
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.tools.servers import connection, pool, toolbox
from tarsy.tools.transports import remote, stdio
from tarsy.transcript import messages, ports
from tarsy_dev import patience

AWAY = "cannot be reached: it no longer answers"
SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(connection, "FIRST_BACKOFF", 0.05)
    monkeypatch.setattr(stdio, "CHECK_SECONDS", 1.0)
    monkeypatch.setattr(stdio, "_GRACE", 0.2)
    monkeypatch.setattr(remote, "CHECK_SECONDS", 0.4)


@contextlib.asynccontextmanager
async def running(transport: Any, limits: Any = None, **more: Any) -> AsyncIterator[pool.Pool]:
    """A pool with one server."""
    settings = {"limits": limits or {}, "mcp_servers": {"one": {"transport": transport, **more}}}
    servers = pool.Pool(platforms.Platform.model_validate(settings), secrets=NO_SECRETS)
    owners = asyncio.create_task(servers.run())
    async with patience.limit():
        await servers.tools.wait_tried()
    try:
        yield servers
    finally:
        owners.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owners


def program(folder: Path) -> dict[str, Any]:
    """A server that has written its processes' numbers into `folder`."""
    start = f"touch {folder}/$$ && exec {sys.executable} -m tarsy_dev.hostile_mcp"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return {"type": "stdio", "command": "/bin/sh", "args": ["-c", start], "env": path}


def pids(folder: Path) -> set[int]:
    return {int(file.name) for file in folder.iterdir()}


async def call(box: toolbox.PoolToolbox, how: str = "fine") -> str:
    """Return the text that the model gets, without the structure that an answer has besides its text."""
    asked = messages.ToolCall(id="0.0", name="one.say", arguments=json.dumps({"how": how}))
    return (await box.call(asked, SCOPE)).text.partition('\n{"slow": "')[0]


async def until_it_is_away(box: toolbox.PoolToolbox) -> str:
    """Call, and call again; what the last was told."""
    while not (output := await call(box)).endswith(AWAY):
        pass
    return output


async def test_hanging_server_is_detected_although_calls_continue(tmp_path: Path) -> None:
    async with running(program(tmp_path), {"tool_call": "5s", "server_calls": 2}) as servers:
        server = servers.tools.servers["one"]
        async with servers.tools.toolbox(["one"], lambda _: True) as box:
            assert await call(box) == "fine"
            (pid,) = pids(tmp_path)
            os.kill(pid, signal.SIGSTOP)
            async with patience.limit():
                outputs = await asyncio.gather(*(until_it_is_away(box) for _ in range(5)))
            assert sorted(outputs)[2:] == [f"'one.say' was not called: MCP server 'one' {AWAY}"] * 3, "who waited"
            assert (server.slots.locked(), server.calls.in_flight) == (False, 0)
            await waiting.until(lambda: len(pids(tmp_path)) >= 2)  # another has been started in its place
            await waiting.until(lambda: not Path(f"/proc/{pid}").exists())
            await asyncio.wait_for(server.client(), 60)
            assert await call(box) == "fine"


async def test_calls_that_take_too_long_cost_a_server_that_answers_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "CHECK_SECONDS", 60.0)  # a busy server is no silent one
    async with running(program(tmp_path), {"tool_call": "1500ms"}) as servers:
        server = servers.tools.servers["one"]
        first = await server.client()
        async with servers.tools.toolbox(["one"], lambda _: True) as box:
            for _ in range(4):
                assert await call(box, "hang") == "'one.say' did not answer within 1.5 s"
                assert server.problem == ""
            assert await call(box) == "fine"
        assert await server.client() is first
        assert len(pids(tmp_path)) == 1


async def test_call_that_waits_for_its_slot_is_refused_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "CHECK_SECONDS", 60.0)  # a busy server is no silent one
    async with running(program(tmp_path), {"tool_call": "1500ms", "server_calls": 1}) as servers:
        server = servers.tools.servers["one"]
        async with servers.tools.toolbox(["one"], lambda _: True) as box:
            async with server.slots:
                assert await call(box) == "'one.say' was not called: 'one' was busy with other calls for 1.5 s"
            assert await call(box) == "fine", "he who gave up has taken no place"
