"""A programmable MCP server, with the log of what was called.

Its tools are the cases that tarsy has to tell apart: what only reads, what may be repeated, what must not be, what says
nothing about itself, and what fails or does not end. Over streamable HTTP within a test's own event loop, so that a
test can hold calls back and read the log; as a process, also over stdio, as the servers of a cluster are.

    async with mcp_server.serve() as server:
        ...  # call tools at server.url
        assert [call.tool for call in server.of(tool="restart")] == ["restart"]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import signal
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import uvicorn
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import INTERNAL_ERROR, ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from tarsy_dev import loopback, oracle, patience

T = TypeVar("T")

READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
WRITES_AGAIN = ToolAnnotations(
    read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)

_KEEP = 1000  # calls in memory of a process, for GET /log; the file has them all
_GRACE = 1  # seconds for connections when the server ends


@dataclass(kw_only=True)
class Call(oracle.Entry):
    """One tool call, and what became of it; `client closed` is a call that was cancelled."""

    late: ClassVar[tuple[str, ...]] = (*oracle.Entry.late, "answered")

    tool: str
    key: str
    """The call's `key` argument; see `keys.CallKey`."""

    args: dict[str, Any] = field(default_factory=dict)
    answered: Literal["", "result", "tool error", "protocol error"] = ""


class Server:
    """The tools and their log; `serve` puts them on a port."""

    def __init__(self, *, log: oracle.Log[Call]) -> None:
        self.url = ""
        """The URL of streamable HTTP, once it is served."""

        self.hold: Callable[[Call], Awaitable[None]] | None = None
        """Awaited on every arrival, before the tool does anything; may be set while the server runs."""

        self.restarts: Counter[str] = Counter()
        """The effect of `restart`: how often each name was restarted."""

        self._log = log
        self.mcp: MCPServer[Any] = MCPServer(name="tarsy-dev", version="1", log_level="ERROR")
        self.mcp.custom_route("/log", methods=["GET"])(self._show_log)
        for tool, hints in (
            (self.lookup, READ_ONLY),
            (self.slow, READ_ONLY),
            (self.flaky, READ_ONLY),
            (self.flood, READ_ONLY),
            (self.restart, WRITES),
            (self.label, WRITES_AGAIN),
            (self.unannotated, None),
        ):
            self.mcp.add_tool(tool, annotations=hints, structured_output=False)

    @property
    def calls(self) -> list[Call]:
        """All calls, in order of arrival."""
        return self._log.entries

    def calls_of(self, *, tool: str | None = None, key: str | None = None) -> list[Call]:
        """The calls of a tool, of a key, or of both."""
        return [call for call in self.calls if tool in (None, call.tool) and key in (None, call.key)]

    async def wait_for(
        self, condition: Callable[[Sequence[Call]], T | None], *, timeout: float = patience.PATIENCE
    ) -> T:
        """Wait until a condition on the calls is true; return what it returned, or raise TooLong."""
        return await self._log.wait_for(condition, timeout=timeout)

    async def lookup(self, name: str = "web-0", key: str = "") -> str:
        """Look up a thing by its name. Reads only."""
        async with self._recorded("lookup", key, name=name):
            return f"{name} exists"

    async def slow(self, seconds: float, context: Context, key: str = "") -> str:
        """Answer after some seconds, and tell that it waits. Reads only."""
        async with self._recorded("slow", key, seconds=seconds):
            await context.report_progress(1, 2, "it waits")
            await context.info(f"for {seconds:g} s")
            await asyncio.sleep(seconds)
            return f"waited {seconds:g} s"

    async def flaky(
        self, how: Literal["tool error", "protocol error"] = "tool error", times: int = 0, key: str = ""
    ) -> str:
        """Fail the first `times` calls of a key, or (0) all of them. Reads only."""
        async with self._recorded("flaky", key, how=how, times=times) as call:
            if times and len(self.calls_of(tool="flaky", key=key)) > times:
                return "not this time"
            call.answered = how
            if how == "tool error":
                raise ToolError("the backend is away")
            raise MCPError(INTERNAL_ERROR, "the server is confused")

    async def flood(self, size: int, key: str = "") -> str:
        """Return `size` bytes of text. Reads only."""
        async with self._recorded("flood", key, size=size):
            return ("all work and no play\n" * (size // 21 + 1))[:size]

    async def restart(self, name: str, seconds: float = 0.0, key: str = "") -> str:
        """Restart a thing, which takes some seconds. Writes, and not to be repeated."""
        async with self._recorded("restart", key, name=name, seconds=seconds):
            self.restarts[name] += 1
            await asyncio.sleep(seconds)
            return f"restarted {name}, {self.restarts[name]} times now"

    async def label(self, name: str, value: str, seconds: float = 0.0, key: str = "") -> str:
        """Set the label of a thing, which takes some seconds. Writes, and may be repeated."""
        async with self._recorded("label", key, name=name, value=value, seconds=seconds):
            await asyncio.sleep(seconds)
            return f"{name} is labelled {value}"

    async def unannotated(self, text: str = "", key: str = "") -> str:
        """Do something or other: this tool does not say whether it writes."""
        async with self._recorded("unannotated", key, text=text):
            return f"done: {text}"

    @contextlib.asynccontextmanager
    async def _recorded(self, tool: str, key: str, **args: Any) -> AsyncIterator[Call]:
        call = self._log.add(Call(tool=tool, key=key, args=args))
        end: oracle.End = "client closed"
        try:
            if self.hold is not None:
                await self.hold(call)
            yield call
            call.answered = "result"
            end = "completed"
        except (ToolError, MCPError):
            end = "completed"
            raise
        finally:
            self._log.finish(call, end)

    async def _show_log(self, _: Request) -> JSONResponse:
        return JSONResponse([dataclasses.asdict(call) for call in self.calls])


class _Http(uvicorn.Server):
    """Uvicorn, but signals are its caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


@dataclass(frozen=True, kw_only=True)
class TLS:
    """Files in PEM, with which HTTPS is served."""

    certificate: Path
    key: Path
    clients: Path | None = None
    """The authorities of clients' certificates; with them no client without a certificate is served."""


@contextlib.asynccontextmanager
async def serve(
    *,
    port: int = 0,
    log: Path | None = None,
    keep: int | None = None,
    wire: Literal["mcp", "sse"] = "mcp",
    around: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    tls: TLS | None = None,
) -> AsyncIterator[Server]:
    """Serve streamable HTTP on a port of 127.0.0.1 (0: a free one), at `/mcp`; with `wire` sse server-sent events.

    `log` is a file that every call is appended to (`oracle.read`); `keep` limits how many stay in memory. What `around`
    makes of the server's application is served.
    """
    calls: oracle.Log[Call] = oracle.Log(path=log, keep=keep)
    server = Server(log=calls)
    listening = loopback.listen(port)
    host, bound = listening.getsockname()
    server.url = f"http{'s' if tls else ''}://{host}:{bound}/{wire}"
    config = uvicorn.Config(
        around(server.mcp.sse_app() if wire == "sse" else server.mcp.streamable_http_app()),
        log_config=None,
        ws="none",
        timeout_graceful_shutdown=_GRACE,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=str(tls.clients) if tls and tls.clients else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.clients else ssl.CERT_NONE,
    )
    http = _Http(config)
    task = asyncio.create_task(http.serve(sockets=[listening]))
    try:
        yield server
    finally:
        http.should_exit = True
        await task
        calls.close()


async def _stdio(log: Path | None) -> None:
    calls: oracle.Log[Call] = oracle.Log(path=log, keep=_KEEP)
    await Server(log=calls).mcp.run_stdio_async()
    calls.close()


async def _http(port: int, log: Path | None) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve(port=port, log=log, keep=_KEEP) as server:
        print(server.url, flush=True)
        await stop.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev.mcp_server", description="A programmable MCP server.")
    parser.add_argument("--stdio", action="store_true", help="speak on stdin and stdout instead of a port")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; a free one if not given")
    parser.add_argument("--log", type=Path, help="append every call to this file, as JSON lines")
    arguments = parser.parse_args()
    asyncio.run(_stdio(arguments.log) if arguments.stdio else _http(arguments.port, arguments.log))
