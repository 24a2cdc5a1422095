"""MCP servers that are our children, spoken to over their standard streams.

The SDK's own client reads lines without a limit and passes the child's standard error through to ours. Here a message
has a limit, past which the connection ends before anything is parsed, and standard error goes to our log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import cast

import anyio
import mcp
from anyio.streams import memory
from mcp import types
from mcp.client import stdio
from mcp.shared import message

from tarsy import rawjson
from tarsy.tools.transports import bounds, progress, stderr, wire

_GRACE = 2.0  # seconds for a server to end, once its input is closed, and again once it was told to
LOOK_LASTS_SECONDS = 10.0
_PIECE = 64 * 1024  # bytes of a line that are looked at in one go
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Stdio(wire.Wire):
    """Starts the program, and ends it and all that it started when it is left."""

    def __init__(
        self,
        command: str,
        args: Sequence[str],
        *,
        environment: Mapping[str, str],
        spoken: stderr.Chatter,
        reports: progress.Reports,
        ended: Callable[[], None],
    ) -> None:
        """`environment` is added to the SDK's short list of inherited variables."""
        super().__init__(ended=ended)
        self._command = (command, *args)
        self._environment = {**stdio.get_default_environment(), **environment}
        self._spoken = spoken
        self._reports = reports
        self._requests = wire.Requests()

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[wire.Streams]:
        transport, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Child(self._spoken), *self._command, env=self._environment, start_new_session=True
        )
        received, reads = anyio.create_memory_object_stream[wire.Received](0)
        writes, sent = anyio.create_memory_object_stream[message.SessionMessage](0)
        bridges = [
            asyncio.create_task(self._receive(child, received)),
            asyncio.create_task(self._send(child, sent, received)),
        ]
        try:
            yield reads, writes
        finally:
            is_over = (
                child.output.at_eof() or child.exited.is_set()
            )  # before its input is closed, which ends it as well
            try:
                for stream in (reads, writes, received, sent):
                    stream.close()
                for bridge in bridges:
                    bridge.cancel()
                child.end_input()
                if await _ends_by_itself(transport, child) and is_over:
                    self.problem = self.problem or _exit_text(transport.get_returncode())
            finally:
                _kill(transport.get_pid(), signal.SIGKILL)  # the rest of its group
                transport.close()
                self._spoken.close()
                await asyncio.gather(*bridges, return_exceptions=True)

    async def _send(
        self,
        child: _Child,
        sent: memory.MemoryObjectReceiveStream[message.SessionMessage],
        received: memory.MemoryObjectSendStream[wire.Received],
    ) -> None:
        with sent, received:  # a server that cannot be written to would leave its callers waiting
            async for outgoing in sent:
                self._requests.sent(outgoing.message)
                serialized = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                if not await child.write(serialized.encode() + b"\n"):
                    return

    async def _receive(self, child: _Child, received: memory.MemoryObjectSendStream[wire.Received]) -> None:
        with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self._receive_all(child, received)
        self.ended()

    async def _receive_all(self, child: _Child, received: memory.MemoryObjectSendStream[wire.Received]) -> None:
        while True:
            try:
                line = await child.output.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                self.problem = bounds.TOO_LARGE
                child.stop()
                return
            except asyncio.IncompleteReadError:  # the end; what is left of a line is no message
                return
            if not await _few_values(line):
                self.problem = bounds.TOO_MANY
                child.stop()
                return
            checked = bounds.checked(self._requests.read(line))
            if isinstance(checked, Exception):
                self._spoken.write(b"[a line on its standard output is no message]\n")
            if self._reports.takes(checked):
                await asyncio.sleep(0)  # there may be many more of these
            else:
                await received.send(checked)


@contextlib.asynccontextmanager
async def looking(client: mcp.Client) -> AsyncIterator[Callable[[], Awaitable[bool | None]]]:
    """Yield a function that looks whether the program of `client` answers; None is silence. Its end shows by itself."""

    async def is_there() -> bool | None:
        try:
            async with asyncio.timeout(LOOK_LASTS_SECONDS):
                # What every server knows: a ping is unknown to newer ones. The answer is not read any closer.
                await client.session.send_request(types.ListToolsRequest(), types.Result)
        except TimeoutError:
            return None
        except (mcp.MCPError, RuntimeError, ValueError):
            return True
        return True

    yield is_there


class _Child(asyncio.SubprocessProtocol):
    """The child's ends of its pipes."""

    def __init__(self, spoken: stderr.Chatter) -> None:
        self.output = asyncio.StreamReader(limit=bounds.MESSAGE_MAX)
        self.exited = asyncio.Event()
        self._spoken = spoken
        self._writable = asyncio.Event()
        self._writable.set()
        self._ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        started = cast("asyncio.SubprocessTransport", transport)
        self._pid = started.get_pid()
        self._input = cast("asyncio.WriteTransport", started.get_pipe_transport(_STDIN))
        self._output = cast("asyncio.ReadTransport", started.get_pipe_transport(_STDOUT))
        self.output.set_transport(self._output)

    def pipe_data_received(self, fd: int, chunk: bytes) -> None:
        if fd == _STDERR:
            self._spoken.write(chunk)
        elif not self._ending:
            self.output.feed_data(chunk)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if fd == _STDOUT:
            self.output.feed_eof()
        elif fd == _STDIN:
            self._writable.set()

    def process_exited(self) -> None:
        self.exited.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def write(self, chunk: bytes) -> bool:
        """Write when there is room; return False if the reader is gone."""
        await self._writable.wait()
        if self._input.is_closing():
            return False
        self._input.write(chunk)
        return True

    def end_input(self) -> None:
        """Close its input, and read on only to let it end: a program that cannot write does not notice."""
        self._ending = True
        self._input.close()
        self._output.resume_reading()

    def stop(self) -> None:
        """End it at once, and forget what it wrote."""
        self._ending = True
        self.output = asyncio.StreamReader()
        _kill(self._pid, signal.SIGKILL)
        self._output.resume_reading()


async def _few_values(line: bytes) -> bool:
    """Whether a line may be parsed; others have their turn while it is looked at."""
    values = rawjson.Values(bounds.VALUES_MAX)
    for start in range(0, len(line), _PIECE):
        if not values.feed(line[start : start + _PIECE]):
            return False
        if start:
            await asyncio.sleep(0)
    return True


def _exit_text(status: int | None) -> str:
    if status is not None and status < 0:
        return f"its program was ended by signal {-status}"
    return f"its program ended with status {status}"


async def _ends_by_itself(transport: asyncio.SubprocessTransport, child: _Child) -> bool:
    """Let the child end by itself, then tell it to, then kill it; whether it needed neither."""
    if await _exits(child):
        return True
    _kill(transport.get_pid(), signal.SIGTERM)
    if not await _exits(child):
        _kill(transport.get_pid(), signal.SIGKILL)
        await _exits(child)
    return False


async def _exits(child: _Child) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(child.exited.wait(), _GRACE)
    return child.exited.is_set()


def _kill(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
