"""Answers in pieces: whole, in order, each as small as it has to be, and whatever waits holds nobody else up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from pydantic import BaseModel
from tarsy.api import access, answers, problems

ANN, BOB = (access.Caller(author=name, address="192.0.2.1") for name in ("ann", "bob"))


class Text(BaseModel):
    """What is found."""

    text: str = ""


async def nothing() -> Text:
    return Text()


async def sent(messages: list[dict[str, Any]]) -> list[MutableMapping[str, Any]]:
    """What goes out where an application sends these."""
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
async def test_whatever_pieces_an_answer_has_it_arrives_whole_and_ends_once(given: Any) -> None:
    bodies = [kind((seed * size)[:size]) for size, seed, kind in given] or [b""]
    start = {"type": "http.response.start", "status": 200, "headers": []}
    told = [{"type": "http.response.body", "body": body, "more_body": True} for body in bodies]
    told[-1]["more_body"] = False
    first, *rest = await sent([start, *told])
    assert first == start
    assert b"".join(bytes(piece["body"]) for piece in rest) == b"".join(bytes(body) for body in bodies)
    assert max(len(piece["body"]) for piece in rest) <= answers.PIECE
    assert [piece.get("more_body", False) for piece in rest] == [True] * (len(rest) - 1) + [False]


async def test_what_has_no_body_goes_out_as_it_is() -> None:
    told: list[dict[str, Any]] = [{"type": "http.response.start", "status": 204}, {"type": "http.response.body"}]
    assert await sent(told) == told


@pytest.mark.leaps
async def test_one_caller_s_answers_are_made_a_few_at_a_time_and_another_s_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "TURN_SECONDS", 0.05)
    room, go, making = answers.Room(), asyncio.Event(), []

    async def slow() -> Text:
        making.append(1)
        await go.wait()
        return Text()

    asked = [asyncio.create_task(room.answer(ANN, slow)) for _ in range(answers.OWN_MADE_MAX + 1)]
    (refused,), _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    with pytest.raises(problems.Problem, match="too many answers are being made") as told:
        await refused
    assert (told.value.status, told.value.headers) == (503, {"Retry-After": "1"})
    assert len(making) == answers.OWN_MADE_MAX
    assert (await asyncio.create_task(room.answer(BOB, nothing))).body == b'{"text":""}'
    go.set()
    await asyncio.gather(*set(asked) - {refused})
    await asyncio.create_task(room.answer(ANN, nothing))


async def test_what_is_held_has_a_bound_for_each_and_for_all_and_is_given_back_with_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "HELD_MAX", 1500)
    monkeypatch.setattr(answers, "OWN_HELD_MAX", 1000)
    room, read, looked = answers.Room(), asyncio.Event(), []

    async def find(size: int) -> Text:
        looked.append(size)
        return Text(text="x" * (size - len('{"text":""}')))

    async def request(caller: access.Caller, size: int) -> int:
        response = await room.answer(caller, lambda: find(size))
        await read.wait()
        return len(response.body)

    async def refused(caller: access.Caller, size: int) -> str:
        with pytest.raises(problems.Problem) as told:
            await asyncio.create_task(request(caller, size))
        assert (told.value.status, told.value.headers) == (503, {"Retry-After": "1"})
        return told.value.detail

    async def until(held: int) -> None:
        while room.held != held:  # noqa: ASYNC110 - what is waited for is a plain attribute
            await asyncio.sleep(0)

    large = asyncio.create_task(request(ANN, 1200))  # alone it may be larger
    await until(1200)
    looked.clear()
    assert "1000 bytes of your answers wait to be read already" in await refused(ANN, 50)
    assert looked == [], "nothing was read for it"
    assert "1500 bytes of answers wait to be read already" in await refused(BOB, 400)
    small = asyncio.create_task(request(BOB, 300))
    await until(1500)
    looked.clear()
    assert "1500 bytes of answers" in await refused(BOB, 50)
    assert looked == []
    assert room.held == 1500
    read.set()
    assert [await large, await small] == [1200, 300]
    await until(0)
    assert await asyncio.create_task(request(ANN, 900)) == 900
    await until(0)
