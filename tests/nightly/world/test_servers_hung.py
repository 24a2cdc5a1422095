"""Servers that are there and answer nothing any more, while they are called and while they are not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support import leases, waiting
from support.masking import NO_SECRETS
from tarsy.config.model import platforms, server_transports
from tarsy.tools.servers import connection, health, pool, toolbox
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


async def test_a_server_that_hangs_is_noticed_though_somebody_calls_it_all_the_time(tmp_path: Path) -> None:
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


async def test_a_program_that_stays_silent_is_not_ended_while_it_works_for_somebody(tmp_path: Path) -> None:
    async with running(program(tmp_path)) as servers:
        server = servers.tools.servers["one"]
        (pid,) = pids(tmp_path)
        for _ in range(health.UNANSWERED):
            with contextlib.suppress(TimeoutError), server.calls.track():
                raise TimeoutError
        with server.calls.track():
            os.kill(pid, signal.SIGSTOP)
            await waiting.until(lambda: server.state.state == "unreachable")
            await asyncio.sleep(1)  # four looks more
            assert pids(tmp_path) == {pid}
        await waiting.until(lambda: len(pids(tmp_path)) >= 2)


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


async def test_call_that_waits_for_its_slot_stops_waiting_once_the_server_is_silent(tmp_path: Path) -> None:
    async with running(program(tmp_path), {"server_calls": 1}) as servers:
        server = servers.tools.servers["one"]
        async with servers.tools.toolbox(["one"], lambda _: True) as box, server.slots:
            calling = asyncio.create_task(call(box))
            await waiting.until(lambda: bool(server.calls._waiting))
            (pid,) = pids(tmp_path)
            os.kill(pid, signal.SIGSTOP)
            assert await asyncio.wait_for(calling, 60) == f"'one.say' was not called: MCP server 'one' {AWAY}"


async def test_a_turn_that_comes_as_nobody_may_wait_any_longer_is_nobodys() -> None:
    calls, slots = health.Calls(), asyncio.Semaphore(1)
    await slots.acquire()
    waits = [asyncio.create_task(calls.acquire(slots, 60)) for _ in range(3)]
    await asyncio.sleep(0)
    calls.cancel_waits()
    calls.cancel_waits()
    slots.release()
    ends = await asyncio.gather(*waits, return_exceptions=True)
    had = [end for end in ends if end is None]
    assert all(end is None or isinstance(end, TimeoutError) for end in ends)
    assert len(had) <= 1
    assert slots.locked() == bool(had)
    for _ in had:
        slots.release()
    await asyncio.wait_for(calls.acquire(slots, 60), 60)


async def test_a_connection_that_was_taken_away_comes_back_while_others_call_the_same_server(tmp_path: Path) -> None:
    """Each caller of a stateful server has its own connection, and all share one limit of calls at once."""
    async with running(program(tmp_path), stateful=True) as servers:
        shared = pids(tmp_path)
        async with servers.tools.toolbox(["one"], lambda _: True) as mine:
            own = mine._servers["one"]
            await asyncio.wait_for(own.client(), 60)
            (pid,) = pids(tmp_path) - shared
            async with servers.tools.toolbox(["one"], lambda _: True) as others:
                calling = asyncio.create_task(call(others, "hang"))
                await waiting.until(lambda: others._servers["one"].calls.in_flight == 1)
                os.kill(pid, signal.SIGSTOP)
                await waiting.until(lambda: "no longer answers" in own.problem)
                os.kill(pid, signal.SIGCONT)
                await asyncio.wait_for(own.client(), 60)
                assert await call(mine) == "fine"
                assert not calling.done()
                calling.cancel()


class Trickling:
    """An MCP server over HTTP whose answer to a look never ends, and which may forget its clients."""

    def __init__(self) -> None:
        self.looks = 0
        self.sessions = 0
        self.forgets = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                sizes = [line for line in head.split("\r\n") if line.startswith("content-length:")]
                body = await reader.readexactly(int(sizes[0].split(":")[1]) if sizes else 0)
                if head.startswith("options"):
                    self.looks += 1
                    await trickle(writer)
                code, answer = self._to(head, json.loads(body)) if head.startswith("post") else (405, None)
                content = json.dumps(answer).encode() if answer else b""
                kinds = f"Content-Type: application/json\r\nMcp-Session-Id: s{self.sessions}"
                writer.write(
                    f"HTTP/1.1 {code} X\r\n{kinds}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
                )
        writer.close()

    def _to(self, head: str, asked: dict[str, Any]) -> tuple[int, object]:
        if "id" not in asked:
            return 202, None
        of: dict[str, Callable[[], object]] = {
            "initialize": lambda: {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "one", "version": "1"},
            },
            "tools/list": lambda: {
                "tools": [{"name": "say", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}]
            },
            "tools/call": lambda: {"content": [{"type": "text", "text": "found"}]},
        }
        if asked["method"] == "initialize":
            self.sessions += 1
        if self.forgets and asked["method"] == "tools/call" and "mcp-session-id: s1\r\n" in head:
            return 404, None
        if asked["method"] not in of:
            return 200, {"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "unknown"}}
        return 200, {"jsonrpc": "2.0", "id": asked["id"], "result": of[asked["method"]]()}


async def trickle(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def trickling() -> AsyncIterator[tuple[Trickling, str]]:
    there = Trickling()
    async with await asyncio.start_server(there.answer, "127.0.0.1", 0) as listening:
        yield there, f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/mcp"


async def test_a_look_whose_answer_has_no_end_is_silence() -> None:
    async with trickling() as (_, url), remote.checker(server_transports.HTTPTransport(type="http", url=url)) as look:
        assert await look() is None


async def test_a_look_whose_answer_has_no_end_keeps_nobody_from_connecting_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "CHECK_SECONDS", 3600.0)
    async with trickling() as (there, url), running({"type": "http", "url": url}) as servers:
        await waiting.until(lambda: there.looks == 1)
        there.forgets = True
        async with servers.tools.toolbox(["one"], lambda _: True) as box, patience.limit():
            assert await call(box) == "found"
        assert there.sessions == 2
