"""Servers that are down, or come and go: what an execution waits for, and what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support import leases, waiting
from support.masking import NO_SECRETS
from tarsy.config.model import platforms
from tarsy.tools.servers import connection, health, pool, toolbox
from tarsy.transcript import messages, ports
from tarsy_dev import mcp_server, patience, proxy

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)


def platform_with(**servers: Any) -> platforms.Platform:
    return platforms.Platform.model_validate({"mcp_servers": servers})


def http(url: str, **more: Any) -> dict[str, Any]:
    return {"transport": {"type": "http", "url": url}, **more}


@contextlib.asynccontextmanager
async def running(settings: platforms.Platform) -> AsyncIterator[pool.Pool]:
    servers = pool.Pool(settings, secrets=NO_SECRETS)
    tasks = asyncio.create_task(servers.run())
    try:
        yield servers
    finally:
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks


@contextlib.contextmanager
def silent() -> Any:
    """Yield an address where the kernel takes connections that no program answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


async def call(box: toolbox.PoolToolbox, tool: str, **arguments: object) -> ports.ToolOutput:
    return await box.call(messages.ToolCall(id="0.0", name=tool, arguments=json.dumps(arguments)), SCOPE)


@contextlib.asynccontextmanager
async def proxied(**more: Any) -> AsyncIterator[tuple[pool.Pool, proxy.Proxy]]:
    """A pool with one server, behind a proxy."""
    async with mcp_server.serve() as there, proxy.serve("127.0.0.1", int(there.url.split(":")[2][:-4])) as between:
        url = f"http://127.0.0.1:{between.port}/mcp"
        async with running(platform_with(one=http(url, **more))) as servers:
            yield servers, between


def owners(name: str) -> int:
    return [task.get_name() for task in asyncio.all_tasks()].count(f"mcp {name}")


@contextlib.contextmanager
def within(seconds: float) -> Any:
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


async def test_servers_that_are_down_cost_an_execution_so_long_once_and_its_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 10.0)
    refused = "http://127.0.0.1:1/mcp"
    with silent() as url:
        async with mcp_server.serve() as there:
            settings = platform_with(down=http(refused), other=http(refused), silent=http(url), fine=http(there.url))
            async with running(settings) as servers:
                with within(29):  # one after the other it would be 30
                    box = await servers.tools.toolbox(["down", "other", "silent", "fine"], lambda _: True).__aenter__()
                assert {problem.split("'")[1] for problem in box.problems} == {"down", "other", "silent"}
                assert set(box.away) == {"down", "other", "silent"}
                assert {spec.name.split(".")[0] for spec in box.specs} == {"fine"}
                with within(90):  # each time it would be 500
                    outputs = await asyncio.gather(*(call(box, "silent.lookup") for _ in range(50)))
                    outputs += [await call(box, "down.lookup") for _ in range(50)]
                texts = {output.text.split(": MCP server")[0] for output in outputs}
                assert texts == {"'silent.lookup' was not called", "'down.lookup' was not called"}
                assert all(output.away for output in outputs)
                assert (await call(box, "fine.lookup")).text == "web-0 exists"
                await box.__aexit__()


async def test_a_server_that_goes_while_an_execution_works_costs_it_no_more_and_is_used_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.5)
    monkeypatch.setattr(connection, "CHECK_INTERVAL", 0.02)
    async with contextlib.AsyncExitStack() as stack:
        servers, between = await stack.enter_async_context(proxied())
        server = servers.tools.servers["one"]
        await asyncio.wait_for(server.client(), 60)
        box = await stack.enter_async_context(servers.tools.toolbox(["one"], lambda _: True))
        assert (await call(box, "one.lookup")).text == "web-0 exists"
        between.refuse()
        between.cut()
        await waiting.until(lambda: server.state.state == "unreachable")
        with within(9):  # each time it would be 10
            for _ in range(20):
                assert "was not called: MCP server 'one' cannot be reached" in (await call(box, "one.slow")).text
        between.accept()
        await asyncio.wait_for(server.client(), 60)
        output = await call(box, "one.lookup")
        assert (output.text, output.away, box.away) == ("web-0 exists", False, ())


async def test_execution_has_its_own_connection_to_a_stateful_server_until_it_ends() -> None:
    async with mcp_server.serve() as there, proxy.serve("127.0.0.1", int(there.url.split(":")[2][:-4])) as between:
        url = f"http://127.0.0.1:{between.port}/mcp"
        async with running(platform_with(own=http(url, stateful=True), shared=http(url))) as servers:
            shared = servers.tools.servers["shared"]
            first = await asyncio.wait_for(shared.client(), 60)
            boxes = [servers.tools.toolbox(["own", "shared"], lambda _: True) for _ in range(3)]
            async with contextlib.AsyncExitStack() as stack:
                for box in boxes:
                    await stack.enter_async_context(box)
                clients = [await box._servers["own"].client() for box in boxes]
                assert len(set(map(id, clients))) == 3
                assert all([await box._servers["shared"].client() is first for box in boxes])
                assert {box._servers["own"].slots for box in boxes} == {servers.tools.servers["own"].slots}
                assert (await call(boxes[0], "own.lookup")).text == "web-0 exists"
                assert [fact.name for fact in servers.facts() if fact.kind == "server"] == ["own", "shared"]
                assert (owners("own"), owners("shared")) == (4, 1)
            await waiting.until(lambda: owners("own") == 1)
            assert await shared.client() is first


async def test_a_cancelled_execution_ends_the_program_that_was_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 0.5)
    (tmp_path / "pids").touch()
    script = f'echo $$ >> {tmp_path}/pids; exec python3 -c "import sys; sys.stdin.read()"'
    transport = {"type": "stdio", "command": "/bin/sh", "args": ["-c", script]}
    async with running(platform_with(own={"transport": transport, "stateful": True})) as servers:
        inside = asyncio.Event()

        async def execution() -> None:
            async with servers.tools.toolbox(["own"], lambda _: True):
                inside.set()
                await asyncio.Event().wait()

        working = asyncio.create_task(execution())
        async with patience.limit():
            await inside.wait()
        await waiting.until(lambda: len((tmp_path / "pids").read_text().split()) == 2)
        pids = (tmp_path / "pids").read_text().split()
        working.cancel()
        await waiting.until(lambda: sum(Path(f"/proc/{pid}").exists() for pid in pids) == 1)
