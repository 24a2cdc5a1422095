"""The pool of MCP servers, over a real one."""

from __future__ import annotations

import asyncio
import socket

import pytest
from support import leases, waiting
from support.masking import NO_SECRETS
from support.pools import close, owned, renew, running
from tarsy import slots
from tarsy.config.model import platforms, server_transports
from tarsy.tools.servers import connection, pool
from tarsy.transcript import messages, ports
from tarsy_dev import mcp_server, patience


def server_of(transport: server_transports.Transport) -> connection.Server:
    settings = platforms.MCPServer(transport=transport)
    return connection.Server("tools", settings, limit=slots.Slots(1), secrets=NO_SECRETS)


async def test_broken_client_is_not_handed_out_and_is_replaced_by_new_client() -> None:
    async with mcp_server.serve() as there:
        transport = server_transports.HTTPTransport(type="http", url=there.url)
        server = server_of(transport)
        async with owned(server), patience.limit():
            broken = await server.client()
            server.report_broken(broken)
            assert server.problem == "lost its connection"
            assert await server.client() is not broken
            assert server.problem == ""


async def test_unreachable_server_problem_is_one_line_without_control_characters() -> None:
    """It goes into logs, statuses and events; the command is a stand-in for what a server may say."""
    transport = server_transports.StdioTransport(type="stdio", command="no\x1b[31m such\r\nprogram")
    server = server_of(transport)
    async with owned(server):
        assert server.problem.startswith("cannot be reached: ")
        assert server.problem.isprintable()


@pytest.mark.parametrize(
    ("program", "ending"),
    [("exit 3", "ended with status 3"), ("exit 0", "ended with status 0"), ("kill -9 $$", "was ended by signal 9")],
)
async def test_ending_of_a_program_that_ends_at_once_is_reported(program: str, ending: str) -> None:
    transport = server_transports.StdioTransport(type="stdio", command="/bin/sh", args=["-c", program])
    server = server_of(transport)
    async with owned(server):
        assert server.problem == f"cannot be reached: its program {ending}"


async def test_reason_why_a_server_cannot_be_reached_has_no_secrets_of_its_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no HTTP\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp?key=c4nary-Qw7x"
        server = server_of(server_transports.HTTPTransport(type="http", url=url))
        async with owned(server):
            assert server.problem == "cannot be reached: Bad status line"
            assert "c4nary" not in f"{server.problem} {caplog.text}"


def platform_of(**urls: str) -> platforms.Platform:
    """A platform with these servers, over HTTP."""
    servers = {name: {"transport": {"type": "http", "url": url}} for name, url in urls.items()}
    return platforms.Platform.model_validate({"mcp_servers": servers})


async def test_wait_for_a_server_ends_when_it_is_replaced_before_it_answered() -> None:
    async with mcp_server.serve() as mended:
        silent = socket.create_server(("127.0.0.1", 0))
        silent.setblocking(False)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/mcp"
        servers = pool.Pool(platform_of(one=url), secrets=NO_SECRETS)
        tasks = asyncio.create_task(servers.run())
        waiting = asyncio.create_task(servers.tools.wait_tried())
        async with patience.limit():
            connection, _ = await asyncio.get_running_loop().sock_accept(silent)  # and no answer
        assert not waiting.done()
        await close(await renew(servers, platform_of(one=mended.url)))
        async with patience.limit():
            await waiting
        tasks.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks
        connection.close()
        silent.close()


async def test_reload_keeps_unchanged_servers_and_ends_other_servers_after_last_use() -> None:
    async with mcp_server.serve() as first, mcp_server.serve() as other:
        servers = pool.Pool(platform_of(same=first.url, moved=first.url, lost=first.url), secrets=NO_SECRETS)
        async with running(servers):
            before = dict(servers.tools.servers)
            former_client = await before["same"].client()
            async with servers.tools.toolbox(["moved", "same"], lambda _: True) as box:
                former = await renew(servers, platform_of(same=first.url, moved=other.url, new=other.url))
                now = servers.tools.servers
                assert now.keys() == {"same", "moved", "new"}
                assert now["same"] is before["same"]
                assert await now["same"].client() is former_client, "it was not connected anew"
                assert [fact.state for fact in servers.facts() if fact.kind == "server"] == ["connected"] * 3
                assert set(former) == {before["moved"], before["lost"]}
                assert now["moved"].slots is before["moved"].slots, "calls to both are counted together"
                scope = ports.Scope(execution="e", ensure_lease=leases.clear)
                call = messages.ToolCall(id="0", name="moved.lookup", arguments='{"key": "k"}')
                await box.call(call, scope)
                assert (len(first.calls_of(tool="lookup")), len(other.calls_of(tool="lookup"))) == (1, 0)
                async with servers.tools.toolbox(["moved"], lambda _: True) as later:
                    await later.call(call, scope)
                assert (len(first.calls_of(tool="lookup")), len(other.calls_of(tool="lookup"))) == (1, 1)
            await close(former)
            await waiting.until(lambda: not {before["lost"], before["moved"]} & set(servers._servers))
            assert set(servers._servers) == set(now.values())
