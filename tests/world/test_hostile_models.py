"""Servers that lie and flood, in the stead of each provider's: one table for all, through the real SDKs.

Each row is a bounded error of ours that names what was refused, whatever the server sends.
"""

from __future__ import annotations

import asyncio
import bz2
import contextlib
import gzip
import itertools
import json
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.genai import _api_client
from hypothesis import given, settings
from hypothesis import strategies as st
from support import kinds, leases
from tarsy import transport
from tarsy.config.model import platforms
from tarsy.llm import http, limited_model, provider
from tarsy.transcript import ports
from tarsy_dev import loopback, model, patience
from tarsy_dev.model import tokens

MEGABYTE = b"x" * 2**20
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


def refused(status: str, *pieces: bytes, more: Iterable[bytes] = ()) -> Callable[[], Iterable[bytes]]:
    return lambda: itertools.chain([head(status, "Retry-After: 3", kind="application/json"), *pieces], more)


def streamed(*pieces: bytes, more: Iterable[bytes] = ()) -> Callable[[], Iterable[bytes]]:
    return lambda: itertools.chain([head(), *pieces], more)


BOMB = b" " * (50 * 2**20)
GZIP = gzip.compress(BOMB, 1)
LONG = 6 * 2**20
"""Bytes within the bound of an event."""
BZIP = bz2.compress(BOMB)
LISTS = b"[" * 90_000
MANY = b"{}," * 2_000_000
COMPRESSED = "the server sent a compressed answer, which was not requested"


@dataclass(frozen=True)
class Row:
    """An answer, and what becomes of it."""

    answer: Callable[[], Iterable[bytes]]
    raised: type[provider.ProviderError]
    words: str = ""
    code: str | None = None
    body_max: int = http.BODY_MAX
    """Bytes of an answer."""


def again(answer: Callable[[], Iterable[bytes]], words: str = "", code: str | None = None) -> Row:
    return Row(answer, provider.RetryableError, words, code)


def never(answer: Callable[[], Iterable[bytes]], words: str = "", code: str | None = None) -> Row:
    return Row(answer, provider.FatalError, words, code)


def rejected(answer: Callable[[], Iterable[bytes]], words: str, *, body_max: int = http.BODY_MAX) -> Row:
    return Row(answer, provider.RejectedError, words, "too_much", body_max)


endless = itertools.repeat
ROWS = {
    "gzip": never(packed("gzip", GZIP), COMPRESSED, "compressed"),
    "deflate": never(packed("deflate", zlib.compress(BOMB, 1)), COMPRESSED, "compressed"),
    "br": never(packed("br", b"\xff" * 1000), COMPRESSED, "compressed"),
    "zstd": never(packed("zstd", b"\x28\xb5\x2f\xfd"), COMPRESSED, "compressed"),
    "twice": never(packed("gzip, gzip", gzip.compress(GZIP)), COMPRESSED, "compressed"),
    "compressed 503": again(lambda: [head("503 Away", "Content-Encoding: gzip"), GZIP], COMPRESSED, "503"),
    "endless line": rejected(streamed(b"data: ", more=endless(MEGABYTE)), "more than 8 MiB in one event"),
    "endless line without a field": rejected(streamed(b'{"', more=endless(MEGABYTE)), "more than 8 MiB in one event"),
    "endless lines": rejected(streamed(more=endless(b"data: {\n" * 10_000)), "more than 8 MiB in one event"),
    "a long comment": Row(streamed(b": " + b"x" * LONG + b"\n\n"), provider.RetryableError),
    "a long name of an event": Row(
        streamed(b"event: " + b"x" * LONG + b'\ndata: {"choices": [\n\n'), provider.RetryableError
    ),
    "many lines": rejected(streamed(b": \n" * 300 + b"\n", more=endless(b"")), "more than 256 lines in one event"),
    "endless events": rejected(
        streamed(more=endless(b"data: {}\n\n" * 10_000)), "more than 0.03125 MiB", body_max=2**15
    ),
    "endless comments": Row(  # which google-genai takes for an answer
        streamed(more=endless(b": no\n\n" * 10_000)), provider.ProviderError, body_max=2**15
    ),
    "many values": rejected(
        streamed(b'data: {"choices":[', MANY, b"{}]}\n\n", more=endless(b"")), "more than 100000 values in one event"
    ),
    "many parts": rejected(
        streamed(b'data: {"candidates":[{"content":{"parts":[', MANY, b"{}]}}]}\n\n", more=endless(b"")),
        "more than 100000 values in one event",
    ),
    "deep": again(streamed(b"data: " + LISTS + b"\n\n")),
    "huge number": again(streamed(b'data: {"choices": ' + b"9" * 100_000 + b"}\n\n")),
    "cut": again(lambda: [head("200 OK", "Content-Length: 1000"), b'data: {"choices": [']),
    "no JSON": again(streamed(b'data: {"choices": [\n\n')),
    "another type": again(lambda: [head(kind="text/html"), b"<html>\n\nWelcome</html>\n\n"]),
    "an encoding that unpacks": again(
        lambda: [head("500 Broken", kind="application/json; charset=bz2"), BZIP], code="500"
    ),
    "endless 500": again(
        refused("500 Broken", more=endless(MEGABYTE)), "the server sent more than 1 MiB with it", "500"
    ),
    "endless 429": again(
        refused("429 Slow", more=endless(b"a\n\n" * 1000)), "the server sent more than 1 MiB with it", "429"
    ),
    "endless 400": never(refused("400 Bad", more=endless(MEGABYTE)), "the server sent more than 1 MiB with it", "400"),
    "endless redirect": never(
        lambda: itertools.chain([head("307 Elsewhere", "Location: /elsewhere")], endless(MEGABYTE)),
        "the server sent more than 1 MiB with it",
        "307",
    ),
    "many values of a 400": never(refused("400 Bad", b"[" + b"1," * 200_000 + b"1]"), "more than 100000 values", "400"),
    "deep 429": again(refused("429 Slow", LISTS), code="429"),
    "deep 400": never(refused("400 Bad", LISTS), code="400"),
    "huge number of a 503": again(refused("503 Away", b"9" * 100_000), code="503"),
    "no text 503": again(refused("503 Away", b'{"error": "\xff\xfe"}'), code="503"),
    "endless redirects": Row(
        lambda: [head("307 Elsewhere", "Location: /elsewhere", "Content-Length: 0")], provider.ProviderError
    ),
    "endless headers": again(lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n"], endless(b"X-More: 1\r\n" * 1000))),
    "endless header": again(lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX-More: "], endless(MEGABYTE))),
    "endless status": again(lambda: itertools.chain([b"HTTP/1.1 200 "], endless(MEGABYTE))),
    "no HTTP": again(lambda: [b"SSH-2.0-OpenSSH\r\n"]),
    "a long error": again(streamed(b'data: {"error":{"code":503,"message":"' + b"x" * LONG + b'"}}\n\n')),
}


class Server:
    """Gives each client the next answer of `answer`, in pieces; an empty piece is silence until the client leaves."""

    def __init__(self) -> None:
        self.answer: Callable[[], Iterable[bytes]] = list
        self.url = ""
        self.pause = 0.0
        """Seconds between two pieces."""
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
                    await asyncio.sleep(self.pause)
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
async def asked(name: str, url: str, key_file: Path) -> AsyncIterator[provider.Provider]:
    """The provider of that name, asking the server at `url`."""
    async with contextlib.AsyncExitStack() as stack:
        fields = {}
        if name == "vertexai":
            server = await stack.enter_async_context(model.serve())
            fields = {"credentials_file": str(tokens.account(key_file, token_uri=f"{server.url}/token"))}
        yield await stack.enter_async_context(kinds.asked(KINDS[name], url, **fields))


def memory(what: str) -> int:
    """MiB of this process: what it has now (VmRSS), or the most since `forget_peak` (VmHWM)."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def problem(row: Row, source: provider.Provider) -> str:
    """What is wrong with what becomes of an answer; "" if nothing is."""
    forget_peak()
    before = memory("VmRSS")
    try:
        async with patience.limit():
            error = await kinds.refusal(source)
    except Exception as escaped:  # noqa: BLE001 - whatever it is, it is told with its row
        return f"{type(escaped).__name__} escapes: {str(escaped)[:200]}"
    grown = memory("VmHWM") - before
    told = f"{type(error).__name__} {error.code!r}: {str(error)[:200]}"
    if not isinstance(error, row.raised) or row.words not in str(error) or row.code not in (None, error.code):
        return told
    if len(str(error)) > 10_000:
        return f"{len(str(error))} characters of {told}"
    return f"{grown} MiB for {told}" if grown > GROWTH_MAX else ""


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
async def test_every_hostile_answer_is_a_bounded_error_of_ours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = {}
    async with serving() as server, asked(name, server.url, tmp_path / "key.json") as source:
        for known, row in ROWS.items():
            monkeypatch.setattr(http, "BODY_MAX", row.body_max)
            server.answer = row.answer
            if found := await problem(row, source):
                problems[known] = found
    assert problems == {}


QUOTED = b"sk-canary-0123456789"
NO_HTTP = {
    "a status": lambda: [b"HTTP/1.1 2000 " + QUOTED + b"\r\n\r\n"],
    "no status": lambda: [QUOTED + b"\r\n\r\n"],
    "a header": lambda: [b"HTTP/1.1 200 OK\r\n" + QUOTED + b"\r\n\r\n"],
    "a chunk's size": lambda: [head("200 OK", "Transfer-Encoding: chunked"), b"Z" + QUOTED + b"\r\n"],
    "a chunk's end": lambda: [head("200 OK", "Transfer-Encoding: chunked"), b"5\r\ndata:" + QUOTED + b"\r\n"],
}


@pytest.mark.parametrize("name", KINDS)
async def test_what_is_not_http_is_not_quoted(name: str, tmp_path: Path) -> None:
    async with serving() as server, asked(name, server.url, tmp_path / "key.json") as source:
        for known, answer in NO_HTTP.items():
            server.answer = answer
            error = await kinds.refusal(source)
            assert isinstance(error, provider.RetryableError), known
            assert QUOTED.decode()[:6] not in str(error), known


async def test_lines_that_are_no_data_are_bounded_in_all(tmp_path: Path) -> None:
    """Before their braces match, google-genai keeps all of them."""
    async with serving() as server, asked("google", server.url, tmp_path / "key.json") as source:
        server.answer = streamed(b"{\n\n", more=endless(b'"' + b"x" * 2**16 + b'"\n\n'))
        row = rejected(server.answer, "more than 1 MiB that are no data of events")
        assert await problem(row, source) == ""


class Pieces(httpx2.AsyncByteStream):
    """A body as it comes."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


FIELDS = st.sampled_from(
    [b": keep-alive\n\n", b": a\r\n\r\n", b":\r\r", b"event: message\n", b"id: 1\r\n", b"retry: 9\n", b""]
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(FIELDS, min_size=4, max_size=4),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.sampled_from([b"", http._BYTE_ORDER_MARK]),
    st.booleans(),
    st.lists(st.integers(0, 300), max_size=8).map(sorted),
)
def test_an_answer_is_read_whatever_stands_between_its_data_and_wherever_it_is_split(
    fields: list[bytes], newline: bytes, mark: bytes, has_space: bool, cuts: list[int]
) -> None:
    """Gateways put comments between, and leave out spaces (WHATWG HTML, section 9.2.6)."""
    texts = ["so", "\u2028 \u0085 data: \U0001f600", '{"a": [', "."]
    chunks: list[Any] = [{"candidates": [{"content": {"parts": [{"text": text}]}}]} for text in texts]
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    sent = mark + b"".join(
        field.replace(b"\n", newline).replace(b"\r\r\n", newline)
        + (b"data: " if has_space else b"data:")
        + json.dumps(chunk, ensure_ascii=False).encode()
        + 2 * newline
        for field, chunk in zip(fields, chunks, strict=True)
    )
    pieces = [sent[start:end] for start, end in itertools.pairwise([0, *cuts, len(sent)]) if start < end]

    async def read() -> str:
        events = transport.FilteredBody(Pieces(pieces), http.bounded_events)
        response = httpx2.Response(200, stream=transport.FilteredBody(events, http.only_data))
        lines = [line async for line in _api_client.HttpResponse({}, response)._aiter_response_stream()]
        return "".join(json.loads(line)["candidates"][0]["content"]["parts"][0]["text"] for line in lines)

    assert asyncio.run(read()) == "".join(texts)


TRICKLES = {
    "an event": lambda: itertools.chain([head(), b"data: "], itertools.repeat(b"x")),
    "headers": lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX-More: "], itertools.repeat(b"x")),
    "a refusal": lambda: itertools.chain([head("500 Broken")], itertools.repeat(b"x")),
    "a chunk's size": lambda: itertools.chain(
        [head("200 OK", "Transfer-Encoding: chunked"), b"5;"], itertools.repeat(b"x")
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
async def test_an_answer_that_trickles_has_the_time_of_any_other(name: str, tmp_path: Path) -> None:
    limits = platforms.Limits.model_validate({"first_byte": "100ms", "idle": "100ms", "iteration": "200ms"})
    async with serving() as server, asked(name, server.url, tmp_path / "key.json") as source, patience.limit():
        server.pause = 0.01
        for answer in TRICKLES.values():
            server.answer = answer
            with pytest.raises(ports.ModelError) as error:
                await limited_model.LimitedModel(name, source, limits=limits).ask(kinds.REQUEST, leases.SCOPE)
            assert error.value.failure.kind == "timeout"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (packed("gzip", GZIP), "it sent a compressed answer, which was not requested"),
        (lambda: itertools.chain([head(kind="application/json")], endless(MEGABYTE)), "its answer is longer than"),
    ],
    ids=["compressed", "endless"],
)
async def test_a_hostile_token_server_is_a_bounded_error(
    answer: Callable[[], Iterable[bytes]], words: str, tmp_path: Path
) -> None:
    async with serving() as server:
        server.answer = answer
        key_file = tokens.account(tmp_path / "key.json", token_uri=f"{server.url}/token")
        async with kinds.asked(KINDS["vertexai"], server.url, credentials_file=str(key_file)) as source:
            row = Row(answer, provider.RetryableError, words, "token")
            assert await problem(row, source) == ""
