"""What the API server may answer to reviews, and how often it is asked: here one answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from starlette import requests
from support import answers
from tarsy.api import access, problems
from tarsy.config import platform
from tarsy.store import database as databases

JANE = {"username": "jane", "uid": "u1", "groups": ["sre"], "extra": {"scopes": ["a", "b"]}}
JANES = "jane's"
NOBODYS = "postgresql://postgres@127.0.0.1:1/postgres"


class Reviewer:
    """An API server that knows Jane, by any token, and lets her do everything."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.accesses: list[dict[str, Any]] = []
        self.token: tuple[int, Any] = (201, {"status": {"authenticated": True, "user": JANE}})
        self.access: tuple[int, Any] = (201, {"status": {"allowed": True}})
        self.now = 0.0

    async def __call__(self, request: web.Request) -> tuple[int, Any]:
        spec = (await request.json())["spec"]
        if request.path == "/apis/authentication.k8s.io/v1/tokenreviews":
            self.tokens.append(spec["token"])
            return self.token
        assert request.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self.accesses.append(spec)
        return self.access

    def clock(self) -> float:
        return self.now


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
async def may(reviewer: Reviewer, tmp_path: Path) -> AsyncIterator[access.Access]:
    database = databases.Database(NOBODYS)
    async with answers.answering(reviewer, folder=tmp_path) as cluster:
        yield access.Access(
            cluster=cluster, database=database, token="hook", settings=platform.API(), clock=reviewer.clock
        )
    await database.close()


def asked(token: str = JANES) -> requests.Request:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return requests.Request({"type": "http", "client": ("203.0.113.7", 1), "headers": headers})


async def refusal(asking: Awaitable[object]) -> int:
    with pytest.raises(problems.Problem) as refused:
        await asking
    return int(refused.value.status)


async def test_all_that_is_known_of_a_user_goes_along_with_what_they_ask_for(
    may: access.Access, reviewer: Reviewer
) -> None:
    caller = await may.oversees(asked())
    assert (caller.author, caller.address) == ("jane", "203.0.113.7")
    attributes = {"group": "tarsy.dev", "resource": "agentchains", "verb": "list", "namespace": "tarsy", "name": ""}
    user = {"user": "jane", "uid": "u1", "groups": ["sre"], "extra": {"scopes": ["a", "b"]}}
    assert reviewer.accesses == [{"resourceAttributes": attributes, **user}]
    await may.submits(asked("hook"))
    assert reviewer.tokens == ["jane's"], "the webhook's own goes nowhere"


async def test_those_who_ask_at_once_are_reviewed_once_and_again_when_it_no_longer_holds(
    may: access.Access, reviewer: Reviewer
) -> None:
    for now, tokens, accesses in ((0, 1, 1), (19, 1, 1), (30, 1, 2), (39, 1, 2), (60, 2, 3)):
        reviewer.now = now
        await asyncio.gather(*(may.oversees(asked()) for _ in range(20)))
        assert (len(reviewer.tokens), len(reviewer.accesses)) == (tokens, accesses), now


async def test_a_no_holds_for_ten_seconds(may: access.Access, reviewer: Reviewer) -> None:
    reviewer.access = (201, {"status": {"allowed": False, "reason": "no"}})
    for now, accesses in ((0, 1), (9, 1), (10, 2)):
        reviewer.now = now
        assert await refusal(may.oversees(asked())) == 403
        assert len(reviewer.accesses) == accesses
    reviewer.token = (201, {"status": {"authenticated": False, "error": "who?"}})
    for now, tokens in ((100, 2), (109, 2), (110, 3)):
        reviewer.now = now
        assert await refusal(may.oversees(asked())) == 401
        assert len(reviewer.tokens) == tokens


async def test_a_token_is_believed_until_its_own_end_at_most(may: access.Access, reviewer: Reviewer) -> None:
    def ending(seconds: float) -> str:
        claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode()).decode().rstrip("=")
        return f"x.{claims}.x"

    for seconds, later, count in ((40, 20, 1), (40, 40, 2), (3600, 39, 1), (3600, 60, 2), (-1, 0, 2)):
        reviewer.tokens.clear()
        token = ending(seconds)
        await may.oversees(asked(token))
        reviewer.now += later
        await may.oversees(asked(token))
        assert len(reviewer.tokens) == count, (seconds, later)


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ({"status": {"authenticated": True}}, 401),
        ({"status": {"authenticated": True, "user": {"username": ""}}}, 401),
        ({"status": {"authenticated": "true", "user": JANE}}, 401),
        ({"status": {}}, 401),
        ({}, 503),
        ([], 503),
        ("<html>Sign in to the network.</html>", 503),
    ],
)
async def test_an_answer_about_a_token_that_is_no_yes_lets_nobody_in(
    may: access.Access, reviewer: Reviewer, token: Any, status: int
) -> None:
    reviewer.token = (201, token)
    assert await refusal(may.oversees(asked())) == status
    assert reviewer.accesses == []


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ((201, {"status": {"allowed": False, "evaluationError": "no role"}}), 403),
        ((201, {"status": {"allowed": True, "denied": True}}), 403),
        ((201, {"status": {"allowed": "true"}}), 403),
        ((201, {"status": {}}), 403),
        ((201, {"status": None}), 503),
        *(((code, {"kind": "Status", "message": "no", "code": code}), 503) for code in (400, 401, 403, 404, 429, 500)),
    ],
)
async def test_an_answer_about_a_right_that_is_no_yes_lets_nobody_do_it(
    may: access.Access, reviewer: Reviewer, answer: tuple[int, Any], status: int
) -> None:
    reviewer.access = answer
    assert await refusal(may.oversees(asked())) == status
    if status == 503:
        reviewer.access = (201, {"status": {"allowed": True}})
        await may.oversees(asked())


async def test_without_a_token_nobody_is_reviewed_and_a_trusted_proxy_still_names_the_author(
    may: access.Access, reviewer: Reviewer
) -> None:
    database = databases.Database(NOBODYS)
    trusting = platform.API(trusted_proxies=["203.0.113.7"])
    local = access.Access(cluster=may._cluster, database=database, token=None, settings=trusting, clock=reviewer.clock)
    jane = [(b"x-forwarded-user", b"jane"), (b"authorization", b"Basic x")]
    for headers, author in (([], "api-client"), (jane, "jane")):
        request = requests.Request({"type": "http", "client": ("203.0.113.7", 1), "headers": headers})
        assert (await local.submits(request)).author == (await local.oversees(request)).author == author
    assert (reviewer.tokens, reviewer.accesses) == ([], [])
    await database.close()
