"""Model servers with hostile answers, the errors that are right, and the memory that they may cost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from support import kinds
from tarsy.llm import http, provider
from tarsy_dev import loopback, model, patience
from tarsy_dev.model import tokens

GROWTH_MAX = 200
"""MiB of memory that an answer may cost: the largest event, as bytes and text, a few times over."""

KINDS = {
    **kinds.KINDS,
    "google": kinds.Kind("google", {"model": "gemini-2.5-flash"}),
    "vertexai": kinds.Kind("vertexai", {"model": "gemini-2.5-flash"}),
}


def head(status: str = "200 OK", *more: str, kind: str = "text/event-stream") -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *more)
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def packed(encoding: str, body: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: [head("200 OK", f"Content-Encoding: {encoding}"), body]


def streamed(*pieces: bytes, more: Iterable[bytes] = ()) -> Callable[[], Iterable[bytes]]:
    return lambda: itertools.chain([head(), *pieces], more)


@dataclass(frozen=True)
class Row:
    """An answer, and what becomes of it."""

    answer: Callable[[], Iterable[bytes]]
    raised: type[provider.ProviderError]
    words: str = ""
    code: str | None = None
    body_max: int = http.BODY_MAX
    """Bytes of an answer."""


def rejected(answer: Callable[[], Iterable[bytes]], words: str, *, body_max: int = http.BODY_MAX) -> Row:
    return Row(answer, provider.RejectedError, words, "too_much", body_max)


class Server:
    """Gives each client the next answer of `answer`, in pieces; an empty piece is silence until the client leaves."""

    def __init__(self) -> None:
        self.answer: Callable[[], Iterable[bytes]] = list
        self.url = ""
        self.pause: Callable[[], Awaitable[None]] | None = None
        """Awaited after each piece."""
        self.serving: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self.serving.add(task)
        task.add_done_callback(self.serving.discard)
        await task

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError, asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: *(\d+)", asked.lower())
            await reader.readexactly(int(length[1]) if length else 0)
            for piece in self.answer():
                writer.write(piece)
                await writer.drain()
                if not piece:
                    await reader.read()
                    break
                if self.pause:
                    await self.pause()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    listening = loopback.listen(0)
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    async with await asyncio.start_server(server.serve, sock=listening):
        yield server
        await asyncio.gather(*server.serving)  # each notices that its client has left


@contextlib.asynccontextmanager
async def opened(name: str, url: str, key_file: Path) -> AsyncIterator[provider.Provider]:
    """The provider of that name, asking the server at `url`."""
    async with contextlib.AsyncExitStack() as stack:
        fields = {}
        if name == "vertexai":
            server = await stack.enter_async_context(model.serve())
            fields = {"credentials_file": str(tokens.account(key_file, token_uri=f"{server.url}/token"))}
        yield await stack.enter_async_context(kinds.opened(KINDS[name], url, **fields))


def memory(what: str) -> int:
    """MiB of this process: what it has now (VmRSS), or the most since `forget_peak` (VmHWM)."""
    match = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert match
    return int(match[1]) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def problem(row: Row, source: provider.Provider) -> str:
    """Return the fault in the outcome of an answer; "" if there is none."""
    forget_peak()
    before = memory("VmRSS")
    try:
        async with patience.limit():
            error = await kinds.refusal(source)
    except Exception as escaped:  # noqa: BLE001 - whatever it is, it is told with its row
        return f"{type(escaped).__name__} escapes: {str(escaped)[:200]}"
    grown = memory("VmHWM") - before
    description = f"{type(error).__name__} {error.code!r}: {str(error)[:200]}"
    if not isinstance(error, row.raised) or row.words not in str(error) or row.code not in (None, error.code):
        return description
    if len(str(error)) > 10_000:
        return f"{len(str(error))} characters of {description}"
    return f"{grown} MiB for {description}" if grown > GROWTH_MAX else ""
