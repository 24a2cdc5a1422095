"""The pool of MCP servers, over a real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tarsy import slots
from tarsy.config import platform
from tarsy.tools import pool
from tarsy_dev import mcp_server, proxy, tools


@contextlib.asynccontextmanager
async def owned(server: pool.Server) -> AsyncIterator[None]:
    owner = asyncio.create_task(server.own())
    async with asyncio.timeout(20):
        await server.tried.wait()
    try:
        yield
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


async def test_a_client_that_broke_is_given_to_nobody_and_another_one_takes_its_place() -> None:
    async with mcp_server.serve() as remote:
        transport = platform.HTTPTransport(type="http", url=remote.url)
        server = pool.Server("tools", platform.MCPServer(transport=transport), calls=slots.Slots(1))
        async with owned(server), asyncio.timeout(20):
            broken = await server.client()
            server.broke(broken)
            assert server.problem == "lost its connection"
            assert await server.client() is not broken
            assert server.problem == ""


async def test_why_a_server_cannot_be_reached_is_one_line_without_control_characters() -> None:
    """It goes into logs, statuses and events; the command is a stand-in for what a server may say."""
    transport = platform.StdioTransport(type="stdio", command="no\x1b[31m such\r\nprogram")
    server = pool.Server("tools", platform.MCPServer(transport=transport), calls=slots.Slots(1))
    async with owned(server):
        assert server.problem.startswith("cannot be reached: ")
        assert server.problem.isprintable()


async def until(ready: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not ready():  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0.01)


def stdio(folder: Path) -> platform.StdioTransport:
    """A server that has written its process's number into `folder`."""
    start = f"echo $$ > {folder}/pid && exec {sys.executable} -m tarsy_dev.mcp_server --stdio"
    return platform.StdioTransport(
        type="stdio", command="/bin/sh", args=["-c", start], env={"PYTHONPATH": str(tools.ROOT / "dev")}
    )


@pytest.mark.parametrize("kind", ["http", "stdio"])
async def test_that_a_server_is_gone_is_noticed_though_nobody_calls_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.05)
    async with contextlib.AsyncExitStack() as stack:
        transport: platform.Transport = stdio(tmp_path)
        if kind == "http":
            remote = await stack.enter_async_context(mcp_server.serve())
            transport = platform.HTTPTransport(type="http", url=remote.url)
        server = pool.Server("tools", platform.MCPServer(transport=transport), calls=slots.Slots(1))
        async with owned(server):
            (connected, offered) = server.facts()
            assert (connected.state, connected.detail["problem"]) == ("connected", "")
            reads = {tool["name"]: tool["read_only"] for tool in offered.detail["tools"]}
            assert (reads["lookup"], reads["restart"], reads["unannotated"]) == (True, False, False)
            await asyncio.sleep(0.3)  # six looks
            assert list(server.facts()) == [connected, offered]
            if kind == "http":
                await stack.aclose()
                await until(lambda: server.standing.state == "unreachable")
            else:
                os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
                await until(lambda: server.standing.state == "connecting")
                await until(lambda: server.standing.state == "connected")
            (now, still) = server.facts()
            assert now.since > connected.since
            assert still is offered, "what it offered is told again only where that has changed"


async def test_a_server_that_works_on_a_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends takes nobody new, and finishes what it has begun."""
    monkeypatch.setattr(pool, "LOOK_SECONDS", 0.02)
    async with mcp_server.serve() as remote, proxy.serve("127.0.0.1", int(remote.url.split(":")[2][:-4])) as between:
        url = f"http://127.0.0.1:{between.port}/mcp"
        server = pool.Server(
            "tools", platform.MCPServer(transport=platform.HTTPTransport(type="http", url=url)), calls=slots.Slots(2)
        )
        async with owned(server):
            async with server.slots:
                between.refuse()
                before = between.connections
                await asyncio.sleep(0.2)  # ten looks
                assert (server.standing.state, between.connections) == ("connected", before)
            await until(lambda: server.standing.state == "unreachable")


async def test_why_a_server_cannot_be_reached_is_told_without_the_secrets_of_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no HTTP\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp?key=c4nary-Qw7x"
        server = pool.Server(
            "tools", platform.MCPServer(transport=platform.HTTPTransport(type="http", url=url)), calls=slots.Slots(1)
        )
        async with owned(server):
            assert server.problem.endswith("url='[MASKED]'")
            assert "c4nary" not in f"{server.problem} {caplog.text}"
