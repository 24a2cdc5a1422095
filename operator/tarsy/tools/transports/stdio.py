"""MCP servers that are child processes, over their standard streams.

The SDK's own client reads lines without a limit, and passes the child's standard error through to ours. Here a message
above the limit ends the connection before it is parsed, and standard error goes to our log.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import anyio
import mcp
from mcp import types
from mcp.client import stdio

from tarsy import rawjson
from tarsy.tools.transports import stderr, wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tarsy.tools.transports import progress

CHECK_SECONDS = 10.0
"""The time limit of a check whether a server answers."""
_GRACE = 2.0
"""The seconds that a server has to end after its input is closed, and again after SIGTERM."""
_PIECE = 64 * 1024
"""Bytes of a line whose values are counted at once."""
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Stdio(wire.Wire):
    """A connection to a child process, which starts and ends with the connection, together with its own children."""

    def __init__(
        self,
        command: str,
        args: Sequence[str],
        *,
        environment: Mapping[str, str],
        standard_error: stderr.StandardError,
        reports: progress.Reports,
        ended: Callable[[], None],
    ) -> None:
        """`environment` is added to the SDK's short list of inherited variables."""
        super().__init__(reports=reports, ended=ended)
        self._command = (command, *args)
        self._environment = {**stdio.get_default_environment(), **environment}
        self._standard_error = standard_error

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[wire.Streams]:
        transport, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Child(self._standard_error), *self._command, env=self._environment, start_new_session=True
        )
        has_ended = False
        try:
            try:
                receive, send = functools.partial(self._receive, child), functools.partial(self._send, child)
                async with self._streams(receive, send) as streams:
                    try:
                        yield streams
                    finally:  # before its input is closed, which would end it too
                        has_ended = child.output.at_eof() or child.exited.is_set()
            finally:
                child.end_input()
                if await _ends_by_itself(transport, child) and has_ended:
                    status = transport.get_returncode() or 0
                    end = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
                    self.problem = self.problem or f"its program {end}"
        finally:
            _kill(transport.get_pid(), signal.SIGKILL)  # the rest of its process group
            transport.close()
            self._standard_error.close()

    async def _send(self, child: _Child, sending: wire.Sending, received: wire.Receiving) -> None:
        with sending, received:  # closing `received` ends the waits of callers, even if the server reads nothing
            async for outgoing in sending:
                self.requests.sent(outgoing.message)
                serialized = outgoing.message.model_dump_json(by_alias=True, exclude_unset=True)
                if not await child.write(serialized.encode() + b"\n"):
                    return

    async def _receive(self, child: _Child, received: wire.Receiving) -> None:
        with received, contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while (line := await self._line(child)) is not None:
                if isinstance(await self._deliver(line, received), Exception):
                    self._standard_error.write(b"[a line on its standard output is no message]\n")
        self.ended()

    async def _line(self, child: _Child) -> bytes | None:
        """The next line of the child's output; None at its end, or after a line beyond the bounds."""
        try:
            line = await child.output.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            self.problem = wire.TOO_LARGE
        except asyncio.IncompleteReadError:  # an unfinished line is no message
            return None
        else:
            if await _is_within_values(line):
                return line
            self.problem = wire.TOO_MANY
        child.stop()
        return None


async def is_answering(client: mcp.Client) -> bool | None:
    """Whether the server of `client` answers; None means that it is silent. The end of a child is noticed anyway."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            # Every server knows this request; newer ones do not know a ping. The answer is not validated.
            await client.session.send_request(types.ListToolsRequest(), types.Result)
    except TimeoutError:
        return None
    except (mcp.MCPError, RuntimeError, ValueError):
        return True
    return True


class _Child(asyncio.SubprocessProtocol):
    """Our ends of the child's pipes."""

    def __init__(self, standard_error: stderr.StandardError) -> None:
        self.output = asyncio.StreamReader(limit=wire.MESSAGE_MAX)
        self.exited = asyncio.Event()
        self._standard_error = standard_error
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
            self._standard_error.write(chunk)
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
        """Write once the pipe accepts more; return False if the child has closed it."""
        await self._writable.wait()
        if self._input.is_closing():
            return False
        self._input.write(chunk)
        return True

    def end_input(self) -> None:
        """Close the child's input, and discard its further output: a child that waits to write would not end."""
        self._ending = True
        self._input.close()
        self._output.resume_reading()

    def stop(self) -> None:
        """Kill the child, and discard its output."""
        self._ending = True
        self.output = asyncio.StreamReader()
        _kill(self._pid, signal.SIGKILL)
        self._output.resume_reading()


async def _is_within_values(line: bytes) -> bool:
    """Whether a line has few enough values to be parsed. They are counted in pieces, so as not to block the loop."""
    values = rawjson.Values(wire.VALUES_MAX)
    for start in range(0, len(line), _PIECE):
        if not values.feed(line[start : start + _PIECE]):
            return False
        if start:
            await asyncio.sleep(0)
    return True


async def _ends_by_itself(transport: asyncio.SubprocessTransport, child: _Child) -> bool:
    """Whether the child ends without a signal; if not, end it by SIGTERM or SIGKILL."""
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
