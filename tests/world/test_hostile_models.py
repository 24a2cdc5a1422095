"""Servers that lie and flood, in the stead of each provider's: one table for all, through the real SDKs.

Each row is a bounded error of ours that names what was refused, whatever the server sends.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.genai import _api_client
from hypothesis import given, settings
from hypothesis import strategies as st
from support import kinds
from support.hostile_answers import KINDS, Row, head, opened, packed, problem, rejected, serving, streamed
from tarsy import transport
from tarsy.llm import http, provider
from tarsy_dev.model import tokens

MEGABYTE = b"x" * 2**20
BOMB = b" " * (50 * 2**20)
GZIP = gzip.compress(BOMB, 1)
endless = itertools.repeat

QUOTED = b"sk-canary-0123456789"
NO_HTTP = {
    "a status": lambda: [b"HTTP/1.1 2000 " + QUOTED + b"\r\n\r\n"],
    "no status": lambda: [QUOTED + b"\r\n\r\n"],
    "a header": lambda: [b"HTTP/1.1 200 OK\r\n" + QUOTED + b"\r\n\r\n"],
    "a chunk's size": lambda: [head("200 OK", "Transfer-Encoding: chunked"), b"Z" + QUOTED + b"\r\n"],
    "a chunk's end": lambda: [head("200 OK", "Transfer-Encoding: chunked"), b"5\r\ndata:" + QUOTED + b"\r\n"],
}


@pytest.mark.parametrize("name", KINDS)
async def test_answer_that_is_not_http_is_not_quoted(name: str, tmp_path: Path) -> None:
    async with serving() as server, opened(name, server.url, tmp_path / "key.json") as source:
        for case, answer in NO_HTTP.items():
            server.answer = answer
            error = await kinds.refusal(source)
            assert isinstance(error, provider.RetryableError), case
            assert QUOTED.decode()[:6] not in str(error), case


async def test_lines_that_are_no_data_are_bounded_in_all(tmp_path: Path) -> None:
    """Before their braces match, google-genai keeps all of them."""
    async with serving() as server, opened("google", server.url, tmp_path / "key.json") as source:
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
def test_event_stream_is_read_with_any_filler_between_data_and_any_split(
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
        async with kinds.opened(KINDS["vertexai"], server.url, credentials_file=str(key_file)) as source:
            row = Row(answer, provider.RetryableError, words, "token")
            assert await problem(row, source) == ""
