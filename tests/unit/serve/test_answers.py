"""Answers in pieces: whole, in order, each as small as it has to be, and one that waits delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel
from tarsy.serve import answers, problems


class Text(BaseModel):
    """Answer of a route."""

    text: str = ""


async def nothing() -> Text:
    return Text()


async def sent(messages: list[dict[str, Any]]) -> list[MutableMapping[str, Any]]:
    """Return the messages that go out if an application sends these."""
    out: list[MutableMapping[str, Any]] = []

    async def application(_scope: Any, _receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        for message in messages:
            await send(message)

    async def send(message: MutableMapping[str, Any]) -> None:
        out.append(message)

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("nobody asks")

    await answers.in_pieces(application)({}, receive, send)
    return out


SIZES = st.one_of(
    st.integers(0, 3), st.integers(0, 5 * answers.PIECE), st.sampled_from([1, 2, 3]).map(answers.PIECE.__mul__)
)


@hypothesis.given(st.lists(st.tuples(SIZES, st.binary(min_size=1, max_size=7), st.sampled_from([bytes, memoryview]))))
async def test_answer_in_any_pieces_arrives_complete_and_ends_once(pieces: Any) -> None:
    bodies = [kind((seed * size)[:size]) for size, seed, kind in pieces] or [b""]
    start = {"type": "http.response.start", "status": 200, "headers": []}
    body_messages = [{"type": "http.response.body", "body": body, "more_body": True} for body in bodies]
    body_messages[-1]["more_body"] = False
    first, *rest = await sent([start, *body_messages])
    assert first == start
    assert b"".join(bytes(piece["body"]) for piece in rest) == b"".join(bytes(body) for body in bodies)
    assert max(len(piece["body"]) for piece in rest) <= answers.PIECE
    assert [piece.get("more_body", False) for piece in rest] == [True] * (len(rest) - 1) + [False]


@pytest.mark.leaps
async def test_eight_answers_are_made_at_once_and_the_ninth_is_refused_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "WAIT_SECONDS", 0.05)
    responder, go, making = answers.Responder(), asyncio.Event(), []

    async def slow() -> Text:
        making.append(1)
        await go.wait()
        return Text()

    asked = [asyncio.create_task(responder.respond(slow)) for _ in range(answers.MADE_MAX + 1)]
    (refused,), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(problems.Problem, match="too many answers are being made") as refusal:
        await refused
    assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "1"})
    assert len(making) == answers.MADE_MAX
    go.set()
    await asyncio.gather(*set(asked) - {refused})
    assert (await asyncio.create_task(responder.respond(nothing))).body == b'{"text":""}'


async def test_bytes_held_for_answers_are_bounded_and_released_with_their_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "HELD_MAX", 1000)
    responder, read, looked = answers.Responder(), asyncio.Event(), []

    async def find(size: int) -> Text:
        looked.append(size)
        return Text(text="x" * (size - len('{"text":""}')))

    async def request(size: int) -> int:
        response = await responder.respond(lambda: find(size))
        await read.wait()
        return len(response.body)

    async def refused(size: int) -> None:
        with pytest.raises(problems.Problem, match="clients have 1000 bytes of answers to read already") as refusal:
            await asyncio.create_task(request(size))
        assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "1"})

    async def until(held: int) -> None:
        while responder.held != held:  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0)

    small = asyncio.create_task(request(700))
    await until(700)
    await refused(400)
    assert responder.held == 700
    other = asyncio.create_task(request(300))
    await until(1000)
    looked.clear()
    await refused(50)
    assert looked == [], "nothing was read for it"
    read.set()
    assert [await small, await other] == [700, 300]
    await until(0)
    assert await asyncio.create_task(request(1200)) == 1200, "alone it may be larger"
    await until(0)
