"""The pool's own transports against servers that lie and flood, with the SDK's client between them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from mcp import types
from mcp.shared import message
from support import leases, spoken, waiting
from support.masking import NO_SECRETS
from tarsy import slots
from tarsy.config.model import platforms, server_transports
from tarsy.tools.servers import connection, health, listing, toolbox
from tarsy.tools.transports import progress, stderr, wire
from tarsy.transcript import messages, ports
from tarsy_dev import hostile_mcp, patience

SCOPE = ports.Scope(execution="e", ensure_lease=leases.clear)
WIRES: list[hostile_mcp.Wire] = ["json", "events"]


@contextlib.asynccontextmanager
async def owned(
    transport: server_transports.Transport, *, limits: platforms.Limits | None = None
) -> AsyncIterator[tuple[connection.Server, toolbox.PoolToolbox]]:
    settings = platforms.MCPServer(transport=transport, write_tools=["*"])
    server = connection.Server("odd", settings, limit=slots.Slots(4), secrets=NO_SECRETS)
    owner = asyncio.create_task(server.keep_connected())
    async with patience.limit():
        await server.tried.wait()
    try:
        box = toolbox.PoolToolbox(
            [server],
            limits=limits or platforms.Limits(),
            selection=listing.ToolSelection({"odd": settings}, lambda _: True),
        )
        yield server, box
    finally:
        owner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await owner


def child(*args: str) -> server_transports.StdioTransport:
    return server_transports.StdioTransport(
        type="stdio",
        command=sys.executable,
        args=["-m", "tarsy_dev.hostile_mcp", *args],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@contextlib.asynccontextmanager
async def remote(
    protocol: hostile_mcp.Wire, offer: str = "plain"
) -> AsyncIterator[tuple[hostile_mcp.Server, server_transports.RemoteTransport]]:
    async with hostile_mcp.serve(wire=protocol, offer=offer) as server:
        if protocol == "sse":
            yield server, server_transports.SSETransport(type="sse", url=server.url)
        else:
            yield server, server_transports.HTTPTransport(type="http", url=server.url)


@contextlib.asynccontextmanager
async def reached(
    protocol: str, *, limits: platforms.Limits | None = None, offer: str = "plain"
) -> AsyncIterator[tuple[connection.Server, toolbox.PoolToolbox]]:
    """A server over any of the protocols."""
    async with contextlib.AsyncExitStack() as stack:
        transport: server_transports.Transport = child("--offer", offer)
        if protocol != "stdio":
            assert protocol in ("json", "events", "sse")
            _, transport = await stack.enter_async_context(remote(cast("hostile_mcp.Wire", protocol), offer))
        yield await stack.enter_async_context(owned(transport, limits=limits or platforms.Limits()))


async def say(box: toolbox.PoolToolbox, how: str, scope: ports.Scope = SCOPE) -> ports.ToolOutput:
    """Return the server's answer, without the structure that each answer has besides its text."""
    output = await box.call(messages.ToolCall(id="0.0", name="odd.say", arguments=json.dumps({"how": how})), scope)
    return ports.ToolOutput(text=output.text.partition('\n{"slow": "')[0], failed=output.failed)


TOO_LARGE = "it sent more than 8 MiB in one message"
TOO_MANY = "it sent more than 250000 values in one message"
TOO_MUCH = pytest.mark.parametrize(
    ("how", "why"),
    [
        ("endless", TOO_LARGE),
        ("many values", TOO_MANY),
    ],
)


ALL_WIRES = ["stdio", *WIRES, "sse"]


@pytest.mark.parametrize("how", ["unreadable", "no result"])
@pytest.mark.parametrize("protocol", ALL_WIRES)
async def test_unreadable_answer_fails_only_its_call_and_is_quoted_nowhere(
    protocol: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The call beside it is older: an answer that is taken for another call's would end that one."""
    caplog.set_level(logging.DEBUG)
    async with reached(protocol) as (server, box), patience.limit():
        first = await server.client()
        hanging = asyncio.create_task(say(box, "hang"))
        await waiting.until(lambda: bool(server.calls.in_flight))
        outputs = await asyncio.gather(*(say(box, how) for _ in range(3)))
        assert {output.text for output in outputs} == {
            "'odd' gave an answer that cannot be used: its answer is not valid JSON-RPC"
        }
        assert all(output.failed for output in outputs)
        assert (await say(box, "fine")).text == "fine"
        assert not hanging.done()
        assert await server.client() is first
        hanging.cancel()
    assert "cnry" not in caplog.text + server.problem


@pytest.mark.parametrize(
    ("line", "request_id"),
    [
        ('{"jsonrpc":"2.0","id":7,"result":oops}', 7),
        ('{"result":oops,"jsonrpc":"2.0","id":7}', 7),
        ('{"result":{"id": 8 oops},"id":7,"jsonrpc":"2.0"}', 7),
        ('{"jsonrpc":"2.0","id":"seven","result":oops}', "seven"),
        ('{"jsonrpc":"2.0","id":9,"result":oops}', None),
        ('{"jsonrpc":"2.0","id":7,"method":"ping",oops}', None),
        ('level=info {"jsonrpc":"2.0","id":7,oops', None),
    ],
)
def test_unreadable_answer_fails_the_request_that_it_names(line: str, request_id: object) -> None:
    requests = wire.Requests()
    for sent_id in (7, 8, "seven"):
        requests.sent(types.JSONRPCRequest(jsonrpc="2.0", id=sent_id, method="tools/call"))
    answered = requests.read(line)
    if request_id is None:
        assert isinstance(answered, wire.UnreadableError)
    else:
        assert isinstance(answered, message.SessionMessage)
        assert isinstance(answered.message, types.JSONRPCError)
        assert answered.message.id == request_id


@pytest.mark.parametrize("protocol", ALL_WIRES)
async def test_a_list_of_tools_is_bounded_in_all_and_not_only_by_page(protocol: str) -> None:
    """Each page is within the bound of a message."""
    async with reached(protocol, offer="pages") as (server, _):
        assert server.problem == "cannot be reached: its list of tools has more than 16 MiB"


@pytest.mark.parametrize("protocol", ALL_WIRES)
async def test_an_answer_that_does_not_come_or_breaks_off_is_an_error_in_time(protocol: str) -> None:
    limits = platforms.Limits.model_validate({"tool_call": "400ms"})
    async with reached(protocol, limits=limits) as (server, box):
        for how in hostile_mcp.FAULTS:
            started = time.monotonic()
            outputs = await asyncio.gather(*(say(box, how) for _ in range(3)))
            assert time.monotonic() - started < 20
            assert all(output.failed and len(output.text) < 1000 for output in outputs)
            async with patience.limit():  # behind half an answer even a good one is none over one wire
                while (output := await say(box, "fine")).failed:
                    assert len(output.text) < 1000
            assert output.text == "fine"
            assert server.problem == ""


@TOO_MUCH
@pytest.mark.parametrize("protocol", ["stdio", "sse"])
async def test_connection_with_an_oversized_message_is_closed_and_opened_again(
    protocol: str, how: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "AWAY_SECONDS", 60.0)  # a busy machine starts a server slowly
    async with reached(protocol) as (server, box):
        first = await server.client()
        output = await say(box, how)
        assert output.text == f"The connection to 'odd' closed during the call, because {why}; its outcome is unknown"
        assert output.failed
        assert (await say(box, "fine")).text == "fine"
        assert await server.client() is not first


@TOO_MUCH
@pytest.mark.parametrize("protocol", WIRES)
async def test_oversized_answer_of_a_remote_server_fails_only_its_call(
    protocol: hostile_mcp.Wire, how: str, why: str
) -> None:
    async with remote(protocol) as (there, transport), owned(transport) as (server, box):
        first = await server.client()
        output = await say(box, how)
        assert output.text == (f"'odd' gave an answer that cannot be used: {why}; ask for less")
        assert output.failed
        assert there.sent < 3 * wire.MESSAGE_MAX, "it was not read to its end"
        assert (await say(box, "fine")).text == "fine"
        assert await server.client() is first


async def test_reason_why_a_server_cannot_be_reached_is_masked() -> None:
    async with owned(child("--offer", "nothing")) as (server, box):
        assert server.problem == (
            "cannot be reached: cannot reach postgres://web:[MASKED:password]@db/x password=[MASKED:password]"
        )
        assert "cnryS3cret" not in str(box.problems)


async def test_an_answer_that_is_packed_is_not_unpacked() -> None:
    """60 MB are 60 KB on the wire."""
    async with remote("gzip") as (_, transport), owned(transport) as (server, _):
        assert "it sent a compressed answer, which was not requested" in server.problem


async def test_result_schema_with_a_catastrophic_pattern_is_not_evaluated() -> None:
    """`re` keeps the interpreter: no time limit of ours would end it, and the process would lose its leases."""
    async with owned(child("--offer", "slow schema")) as (_, box):
        assert (await say(box, "fine")).text == "fine"


@pytest.mark.parametrize("protocol", ["stdio", "events"])
async def test_progress_text_of_a_call_is_masked_before_it_is_shortened(protocol: str) -> None:
    watched = spoken.Spoken()
    limits = platforms.Limits.model_validate({"tool_call": "10m"})  # a flood takes a busy machine long
    async with reached(protocol, limits=limits) as (_, box):
        assert (await say(box, "secret", dataclasses.replace(SCOPE, stream=watched))).text == "fine"
    progress_text = "".join(watched.said)
    assert "cnry" not in progress_text
    assert watched.said[:2] == [
        "0.0: 1 password=[MASKED:password]\n",
        "0.0: [info] l: password=[MASKED:password]\n",
    ]
    assert progress_text.endswith("0.0: [a message that is too long is not shown]\n" * 2)
    assert max(map(len, watched.said)) <= len("0.0: ") + progress.LINE_MAX + 1


async def test_stderr_of_a_child_server_is_logged_line_by_line_and_delays_no_call(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Four times 2 MB: more than any pipe holds."""
    caplog.set_level(logging.INFO)
    async with owned(child("--stderr-lines", "50000")) as (_, box), patience.limit():
        assert (await say(box, "fine")).text == "fine"
    records = [record for record in caplog.records if vars(record).get("action") == "mcp_stderr"]
    assert {vars(record)["server"] for record in records} == {"odd"}
    assert all(record.getMessage().isprintable() for record in records)
    assert "line 0  [31m of " in records[0].getMessage()
    assert len(records) < 2 * stderr.BURST
    assert any("lines are not shown" in record.getMessage() for record in records)
    assert capfd.readouterr().err == ""


async def test_invalid_line_of_a_child_server_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with owned(child("--noise", "[debug] s3cret")) as (_, box):
        assert (await say(box, "fine")).text == "fine"
    assert "[a line on its standard output is no message]" in caplog.messages
    assert "s3cret" not in caplog.text


async def test_a_child_and_what_it_started_end_with_their_owner(tmp_path: Path) -> None:
    """A program that it started holds its output open, and does not care for the end of its input."""
    fifo = tmp_path / "held"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    script = 'exec 3>"$1"; sleep 1000 & exec "$0" -m tarsy_dev.hostile_mcp 3>&-'
    transport = child().model_copy(update={"command": "sh", "args": ["-c", script, sys.executable, str(fifo)]})
    try:
        async with owned(transport) as (_, box):
            assert (await say(box, "fine")).text == "fine"
            with pytest.raises(BlockingIOError):  # a process has it open
                os.read(held, 1)
        os.set_blocking(held, True)
        async with patience.limit():
            assert await asyncio.to_thread(os.read, held, 1) == b""
    finally:
        os.close(held)
