"""Servers that lie and flood, in the stead of each provider's: one table for all, through the real SDKs.

Each row is a bounded error of ours that names what was refused, whatever the server sends.
"""

from __future__ import annotations

import asyncio
import bz2
import gzip
import itertools
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from support import kinds, leases
from support.hostile_answers import (
    KINDS,
    Row,
    head,
    opened,
    packed,
    problem,
    rejected,
    serving,
    streamed,
)
from tarsy.config.model import platforms
from tarsy.llm import http, limited_model, provider
from tarsy.transcript import ports
from tarsy_dev import patience

MEGABYTE = b"x" * 2**20


def refused(status: str, *pieces: bytes, more: Iterable[bytes] = ()) -> Callable[[], Iterable[bytes]]:
    return lambda: itertools.chain([head(status, "Retry-After: 3", kind="application/json"), *pieces], more)


BOMB = b" " * (50 * 2**20)

GZIP = gzip.compress(BOMB, 1)

LONG = 6 * 2**20
"""Bytes within the bound of an event."""

BZIP = bz2.compress(BOMB)

LISTS = b"[" * 90_000

MANY = b"{}," * 2_000_000

COMPRESSED = "the server sent a compressed answer, which was not requested"


def again(answer: Callable[[], Iterable[bytes]], words: str = "", code: str | None = None) -> Row:
    return Row(answer, provider.RetryableError, words, code)


def never(answer: Callable[[], Iterable[bytes]], words: str = "", code: str | None = None) -> Row:
    return Row(answer, provider.FatalError, words, code)


endless = itertools.repeat

ROWS = {
    "gzip": never(packed("gzip", GZIP), COMPRESSED, "compressed"),
    "zstd": never(packed("zstd", b"\x28\xb5\x2f\xfd"), COMPRESSED, "compressed"),
    "compressed 503": again(lambda: [head("503 Away", "Content-Encoding: gzip"), GZIP], COMPRESSED, "503"),
    "endless line": rejected(streamed(b"data: ", more=endless(MEGABYTE)), "more than 8 MiB in one event"),
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
    "endless 400": never(refused("400 Bad", more=endless(MEGABYTE)), "the server sent more than 1 MiB with it", "400"),
    "endless redirect": never(
        lambda: itertools.chain([head("307 Elsewhere", "Location: /elsewhere")], endless(MEGABYTE)),
        "the server sent more than 1 MiB with it",
        "307",
    ),
    "many values of a 400": never(refused("400 Bad", b"[" + b"1," * 200_000 + b"1]"), "more than 100000 values", "400"),
    "deep 400": never(refused("400 Bad", LISTS), code="400"),
    "endless redirects": Row(
        lambda: [head("307 Elsewhere", "Location: /elsewhere", "Content-Length: 0")], provider.ProviderError
    ),
    "endless headers": again(lambda: itertools.chain([b"HTTP/1.1 200 OK\r\n"], endless(b"X-More: 1\r\n" * 1000))),
    "no HTTP": again(lambda: [b"SSH-2.0-OpenSSH\r\n"]),
    "a long error": again(streamed(b'data: {"error":{"code":503,"message":"' + b"x" * LONG + b'"}}\n\n')),
}


@pytest.mark.parametrize("name", KINDS)
async def test_every_hostile_model_answer_becomes_a_bounded_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = {}
    async with serving() as server, opened(name, server.url, tmp_path / "key.json") as source:
        for row_name, row in ROWS.items():
            monkeypatch.setattr(http, "BODY_MAX", row.body_max)
            server.answer = row.answer
            if row_problem := await problem(row, source):
                problems[row_name] = row_problem
    assert problems == {}


TRICKLES = {
    "an event": lambda: itertools.chain([head(), b"data: "], itertools.repeat(b"x")),
    "headers": lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX-More: "], itertools.repeat(b"x")),
    "a refusal": lambda: itertools.chain([head("500 Broken")], itertools.repeat(b"x")),
    "a chunk's size": lambda: itertools.chain(
        [head("200 OK", "Transfer-Encoding: chunked"), b"5;"], itertools.repeat(b"x")
    ),
}


@pytest.mark.parametrize("name", KINDS)
async def test_an_answer_that_trickles_has_the_time_of_any_other(name: str, tmp_path: Path) -> None:
    limits = platforms.Limits.model_validate({"first_byte": "100ms", "idle": "100ms", "iteration": "200ms"})
    async with serving() as server, opened(name, server.url, tmp_path / "key.json") as source, patience.limit():
        server.pause = lambda: asyncio.sleep(0.01)
        for answer in TRICKLES.values():
            server.answer = answer
            with pytest.raises(ports.ModelError) as error:
                await limited_model.LimitedModel(name, source, limits=limits).ask(kinds.REQUEST, leases.SCOPE)
            assert error.value.failure.kind == "timeout"
