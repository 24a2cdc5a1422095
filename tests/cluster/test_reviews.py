"""Answers of the API server to reviews, and how often it is asked. A fake one answers as a test sets it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from starlette import requests
from support import answers, apis, queue, time_limits, watching
from tarsy.auth import cluster_rights, identities, permissions, single_flight
from tarsy.config.model import platforms
from tarsy.kube import reviews
from tarsy.live import hubs, live_events, subscriptions
from tarsy.resources import namespaces
from tarsy.serve import problems
from tarsy.store.base import databases
from tarsy_dev import changes, patience

pytestmark = pytest.mark.once

JANE = {"username": "jane", "uid": "u1", "groups": ["sre"], "extra": {"scopes": ["a", "b"]}}
JANES = "jane's"
NOBODYS_TOKEN = (201, {"status": {"authenticated": False}})
HERE = "203.0.113.7"
NOBODYS = "postgresql://postgres@127.0.0.1:1/postgres"


class Reviewer:
    """An API server that knows Jane, by any token but a guess, and lets her do everything."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.accesses: list[dict[str, Any]] = []
        self.namespaces: list[str] = []
        self.token: tuple[int, Any] = (201, {"status": {"authenticated": True, "user": JANE}})
        self.access: tuple[int, Any] = (201, {"status": {"allowed": True}})
        self.allowed: set[str] | None = None
        """The namespaces in which Jane has rights; None for all, and whatever `access` says."""
        self.failing: set[str] = set()
        """The namespaces whose reviews fail."""
        self.namespace: tuple[int, Any] = (200, {"metadata": {"uid": "n1"}})
        self.guesses_go = asyncio.Event()
        """Reviews of guesses are not answered until this is set."""
        self.guesses_go.set()
        self.hangs = ""
        """A part of the paths that get no answer."""
        self.unanswered = 0
        self.now = 0.0
        self._changes = changes.Changes()

    async def __call__(self, request: web.Request) -> tuple[int, Any]:
        if self.hangs and self.hangs in request.path:
            self.unanswered += 1
            self._changes.happened()
            await asyncio.Event().wait()
        if request.path.startswith("/api/v1/namespaces/"):
            self.namespaces.append(request.path.rpartition("/")[2])
            self._changes.happened()
            return self.namespace
        spec = (await request.json())["spec"]
        if request.path == "/apis/authentication.k8s.io/v1/tokenreviews":
            self.tokens.append(spec["token"])
            self._changes.happened()
            if not spec["token"].startswith("guess"):
                return self.token
            await self.guesses_go.wait()
            return NOBODYS_TOKEN
        assert request.path == "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self.accesses.append(spec)
        namespace = spec["resourceAttributes"]["namespace"]
        if namespace in self.failing:
            return answers.refusal(500, "its webhook is away")
        if self.allowed is not None:
            return (201, {"status": {"allowed": namespace in self.allowed}})
        return self.access

    def clock(self) -> float:
        return self.now

    async def has_heard(self, enough: Callable[[], bool]) -> None:
        """Wait until it has been asked so much."""
        heard = (self.tokens, self.accesses, self.namespaces)
        await self._changes.until(lambda: enough() or None, timeout=patience.PATIENCE, state=lambda: str(heard))


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to ask about a hundred namespaces than a caller may wait."""
    monkeypatch.setattr(reviews, "SECONDS", 60.0)


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
async def may(reviewer: Reviewer, tmp_path: Path) -> AsyncIterator[permissions.Access]:
    database = databases.Database(NOBODYS)
    async with answers.answering(reviewer, folder=tmp_path) as cluster:
        yield permissions.Access(
            cluster=cluster,
            database=database,
            tokens=apis.tokens(cluster, "hook"),
            settings=platforms.API(),
            clock=reviewer.clock,
        )
    await database.close()


def request_from(token: str = JANES, *, address: str = HERE) -> requests.Request:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return requests.Request({"type": "http", "client": (address, 1), "headers": headers})


async def refusal(asking: Awaitable[object]) -> int:
    with pytest.raises(problems.Problem) as refused:
        await asking
    return int(refused.value.status)


async def test_access_review_contains_all_user_attributes_and_the_requested_right(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    caller = await may.see_setup(request_from())
    assert (caller.author, caller.address) == ("jane", "203.0.113.7")
    attributes = {"group": "tarsy.dev", "resource": "agentchains", "subresource": "", "verb": "list"}
    attributes |= {"namespace": "tarsy", "name": ""}
    user = {"user": "jane", "uid": "u1", "groups": ["sre"], "extra": {"scopes": ["a", "b"]}}
    assert reviewer.accesses == [{"resourceAttributes": attributes, **user}]
    await may.submit(request_from("hook"))
    assert reviewer.tokens == ["jane's"], "the webhook's own goes nowhere"


async def test_concurrent_requests_share_one_review_until_it_expires(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    for now, tokens, accesses in ((0, 1, 1), (19, 1, 1), (30, 1, 2), (39, 1, 2), (60, 2, 3)):
        reviewer.now = now
        await asyncio.gather(*(may.see_setup(request_from()) for _ in range(20)))
        assert (len(reviewer.tokens), len(reviewer.accesses)) == (tokens, accesses), now


async def test_a_no_holds_for_ten_seconds(may: permissions.Access, reviewer: Reviewer) -> None:
    reviewer.access = (201, {"status": {"allowed": False, "reason": "no"}})
    for now, accesses in ((0, 1), (9, 1), (10, 2)):
        reviewer.now = now
        assert await refusal(may.see_setup(request_from())) == 403
        assert len(reviewer.accesses) == accesses
    reviewer.token = (201, {"status": {"authenticated": False, "error": "who?"}})
    for now, tokens in ((100, 2), (109, 2), (110, 3)):
        reviewer.now = now
        assert await refusal(may.see_setup(request_from())) == 401
        assert len(reviewer.tokens) == tokens


async def test_token_review_is_cached_no_longer_than_the_token_is_valid(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    def ending(seconds: float) -> str:
        claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + seconds}).encode()).decode().rstrip("=")
        return f"x.{claims}.x"

    for seconds, later, count in ((40, 20, 1), (40, 40, 2), (3600, 39, 1), (3600, 60, 2), (-1, 0, 2)):
        reviewer.tokens.clear()
        token = ending(seconds)
        await may.see_setup(request_from(token))
        reviewer.now += later
        await may.see_setup(request_from(token))
        assert len(reviewer.tokens) == count, (seconds, later)


async def answered(asking: Awaitable[object]) -> int:
    """The status, where nothing stands against it 200."""
    try:
        await asking
    except problems.Problem as problem:
        return int(problem.status)
    return 200


async def test_two_thousand_token_guesses_from_one_address_delay_no_honest_caller(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    await may.see_setup(request_from())
    reviewer.now = 50  # what is known of Jane's token has not long to hold, and nothing of her rights
    reviewer.guesses_go.clear()
    guessing = asyncio.gather(*(answered(may.see_setup(request_from(f"guess{number}"))) for number in range(2000)))
    await reviewer.has_heard(lambda: len(reviewer.tokens) > single_flight.LOOKUPS_PER_CALLER)
    honest = [
        request_from(),
        request_from("new", address="198.51.100.9"),
        request_from("newer", address="2001:db8:1:2::3"),
    ]
    assert await asyncio.gather(*(answered(may.see_setup(honest_token)) for honest_token in honest)) == [200] * 3
    assert not guessing.done(), "no guess was answered before they were"
    reviewer.guesses_go.set()
    statuses = Counter(await guessing)
    guesses = [token for token in reviewer.tokens if token.startswith("guess")]
    assert statuses == {401: len(guesses), 429: 2000 - len(guesses)}
    assert len(guesses) == identities.GUESSES
    assert reviewer.tokens.count(JANES) == 2, "it was asked for again meanwhile"
    assert reviewer.now == 50
    reviewer.now = 60 + 49
    assert await answered(may.see_setup(request_from())) == 200, "who is known calls on, from there too"


async def test_address_that_sent_many_unknown_tokens_is_rate_limited(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    for number in range(identities.GUESSES):
        assert await answered(may.see_setup(request_from(f"guess{number}", address="2001:db8:1:2::3"))) == 401
    there = "2001:db8:1:2:3::4"  # of the same network
    for _ in range(2):
        with pytest.raises(problems.Problem) as refused:
            await may.see_setup(request_from(address=there))
        assert (refused.value.status, refused.value.headers) == (429, {"Retry-After": "1"})
        with pytest.raises(problems.Problem) as refused:
            await may.notify(request_from(address=there))
        assert refused.value.status == 503, "which is sent again"
    assert await answered(may.see_setup(request_from("guess0", address=there))) == 401, "that is known"
    assert await answered(may.submit(request_from("hook", address=there))) == 200
    assert len(reviewer.tokens) == identities.GUESSES
    assert await answered(may.see_setup(request_from(address="2001:db8:1:3::3"))) == 200
    assert await answered(may.see_setup(request_from(address=there))) == 200, "whose it is is known now"
    assert await answered(may.see_setup(request_from("another", address=there))) == 429
    reviewer.now += 1
    for _ in range(50):
        assert await answered(may.see_setup(request_from("another", address=there))) == 200, "a good one costs nothing"
    assert await answered(may.see_setup(request_from("guess-more", address=there))) == 401
    assert await answered(may.see_setup(request_from("yet-another", address=there))) == 429


async def test_namespace_of_a_name_is_cached_for_two_seconds(may: permissions.Access, reviewer: Reviewer) -> None:
    async def uids() -> set[str]:
        permitted = await asyncio.gather(*(may.list_in(request_from(), ["shop"]) for _ in range(9)))
        return {scope.namespaces["shop"] for scope in permitted}

    assert await uids() == {"n1"}
    reviewer.namespace = (200, {"metadata": {"uid": "n2"}})
    for reviewer.now, uid, count in ((1, "n1", 1), (2, "n2", 2), (3, "n2", 2), (3.9, "n2", 3), (4, "n2", 3)):
        assert await uids() == {uid}
        await reviewer.has_heard(lambda count=count: len(reviewer.namespaces) >= count)  # type: ignore[misc]
        assert len(reviewer.namespaces) == count
    reviewer.namespace = answers.refusal(404, 'namespaces "shop" not found')
    reviewer.now = 20
    assert await refusal(may.list_in(request_from(), ["shop"])) == 404
    reviewer.namespace = (200, {"metadata": {"uid": "n3"}})
    assert await uids() == {"n3"}, "that there is none is not kept"
    reviewer.namespace = answers.refusal(500, "etcd is away")
    reviewer.now = 22
    assert await refusal(may.list_in(request_from(), ["shop"])) == 503
    assert set(reviewer.namespaces) == {"shop"}


TEAMS = [f"team-{number}" for number in range(100)]


@pytest.fixture
async def of_teams(may: permissions.Access, reviewer: Reviewer) -> permissions.Access:
    """The rights of callers of an operator that serves a hundred namespaces beside its own."""
    cluster = replace(may._cluster, served=namespaces.Served.from_names("tarsy", TEAMS))
    return permissions.Access(
        cluster=cluster,
        database=may._database,
        tokens=apis.tokens(cluster, "hook"),
        settings=platforms.API(),
        clock=reviewer.clock,
    )


def namespaces_asked(reviewer: Reviewer) -> Counter[str]:
    return Counter(spec["resourceAttributes"]["namespace"] for spec in reviewer.accesses)


async def test_a_right_in_all_namespaces_is_asked_for_once(of_teams: permissions.Access, reviewer: Reviewer) -> None:
    reviewer.allowed = {""}
    scope = await of_teams.list_in(request_from())
    assert (scope.namespaces, scope.named) == (dict.fromkeys(["tarsy", *TEAMS], "n1"), ())
    assert namespaces_asked(reviewer) == {"": 1}


async def test_team_caller_lists_own_namespaces_and_refusal_is_reviewed_again_after_10_s(
    of_teams: permissions.Access, reviewer: Reviewer
) -> None:
    reviewer.allowed = {"team-7", "team-8"}
    for now, refused, allowed in ((0, 1, 1), (9, 1, 1), (10, 2, 1)):
        reviewer.now = now
        for _ in range(2):
            scope = await of_teams.list_in(request_from())
            assert (scope.namespaces, scope.unchecked) == ({"team-7": "n1", "team-8": "n1"}, {})
        counts = namespaces_asked(reviewer)
        assert counts == {name: allowed if name in reviewer.allowed else refused for name in ("", "tarsy", *TEAMS)}
    assert set(reviewer.namespaces) == {"team-7", "team-8"}, "no uid of others is read"
    with pytest.raises(cluster_rights.ForbiddenError, match=r"in namespace team-9$"):
        await of_teams.list_in(request_from(), ["team-9", "team-8"])
    assert (await of_teams.list_in(request_from(), ["team-8"])).named == ("team-8",)


async def test_a_namespace_that_cannot_be_checked_hides_no_other_and_is_named(
    of_teams: permissions.Access, reviewer: Reviewer
) -> None:
    reviewer.allowed, reviewer.failing = {"team-7"}, {"team-8"}
    scope = await of_teams.list_in(request_from())
    assert set(scope.namespaces) == {"team-7"}
    (name,) = scope.unchecked
    assert name == "team-8"
    assert "cannot be looked up now" in scope.unchecked[name]
    reviewer.allowed, reviewer.now = set(), 60
    assert await refusal(of_teams.list_in(request_from())) == 503, "it may be the caller's"
    assert await refusal(of_teams.read(request_from(), "0")) == 503
    reviewer.failing, reviewer.now = set(), 120
    nor = r"User jane may not (list|get) alertinvestigations in namespace tarsy, nor in another one that is served"
    for refused in (of_teams.list_in(request_from()), of_teams.read(request_from(), "0")):
        with pytest.raises(cluster_rights.ForbiddenError, match=nor):
            await refused
    reviewer.allowed, reviewer.now = {"team-9"}, 180
    assert await refusal(of_teams.read(request_from(), "0")) == 404, "who may read somewhere is told that there is none"
    reviewer.failing, reviewer.now = {""}, 240
    assert await refusal(of_teams.list_in(request_from())) == 503


async def test_a_live_list_ends_when_the_namespaces_that_its_caller_may_list_change(
    of_teams: permissions.Access, reviewer: Reviewer
) -> None:
    subscribing = subscriptions.Subscriptions(hub=hubs.Hub(of_teams._database), may=of_teams)
    requested = subscriptions.Request(channel=live_events.Channel(None))
    reviewer.allowed = {"team-7", "team-8"}
    subscription = await subscribing.authorize(request_from(), requested)
    await subscription.check()
    reviewer.failing, reviewer.now = {"team-8"}, 60
    assert await refusal(subscription.check()) == 503, "it goes on for a while"
    reviewer.failing, reviewer.now = {"team-9"}, 120
    await subscription.check()
    for now, allowed in ((180, {"team-7"}), (240, {"team-7", "team-8", "team-9"})):
        reviewer.failing, reviewer.allowed, reviewer.now = set(), allowed, now
        with pytest.raises(subscriptions.EndedError, match="the namespaces that you may list are others now"):
            await subscription.check()
    reviewer.allowed, reviewer.now = {"team-7", "team-8"}, 300
    reviewer.namespace = (200, {"metadata": {"uid": "n2"}})
    with pytest.raises(subscriptions.EndedError, match=r"team-[78] was deleted and created again"):
        await subscription.check()
    reviewer.allowed, reviewer.now = set(), 360
    assert await refusal(subscription.check()) == 403


@pytest.mark.parametrize("named", [["Shop"], ["a", "a b"], [f"n{number}" for number in range(101)], ["x" * 64]])
async def test_names_of_namespaces_are_checked_before_anything_is_asked(
    may: permissions.Access, reviewer: Reviewer, named: list[str]
) -> None:
    assert await refusal(may.list_in(request_from(), named)) == 422
    assert reviewer.accesses == []


@pytest.mark.parametrize("hangs", ["tokenreviews", "subjectaccessreviews", "namespaces"])
async def test_an_api_server_that_does_not_answer_is_waited_for_in_vain_for_some_seconds(
    reviewer: Reviewer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    database = databases.Database(NOBODYS)
    async with answers.answering(reviewer, folder=tmp_path) as cluster:
        tokens = apis.tokens(cluster, "hook")
        may = permissions.Access(cluster=cluster, database=database, tokens=tokens, settings=platforms.API())
        assert await answered(may.list_in(request_from(), ["tarsy"])) == 200
        reviewer.hangs = hangs
        limits = time_limits.TimeLimits(monkeypatch)
        refused = asyncio.ensure_future(refusal(may.list_in(request_from("another"), ["shop"])))
        await reviewer.has_heard(lambda: reviewer.unanswered > 0)
        assert limits.expire(reviews.SECONDS)
        assert await refused == 503
    await database.close()


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
async def test_token_review_without_clear_approval_admits_no_caller(
    may: permissions.Access, reviewer: Reviewer, token: Any, status: int
) -> None:
    reviewer.token = (201, token)
    assert await refusal(may.see_setup(request_from())) == status
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
async def test_access_review_without_clear_approval_refuses_the_request(
    may: permissions.Access, reviewer: Reviewer, answer: tuple[int, Any], status: int
) -> None:
    reviewer.access = answer
    assert await refusal(may.see_setup(request_from())) == status
    if status == 503:
        reviewer.access = (201, {"status": {"allowed": True}})
        await may.see_setup(request_from())


async def test_caller_without_a_token_is_not_reviewed_and_a_trusted_proxy_still_names_the_author(
    may: permissions.Access, reviewer: Reviewer
) -> None:
    database = databases.Database(NOBODYS)
    trusting = platforms.API(trusted_proxies=["203.0.113.7"])
    local = permissions.Access(
        cluster=may._cluster, database=database, tokens=None, settings=trusting, clock=reviewer.clock
    )
    jane = [(b"x-forwarded-user", b"jane"), (b"authorization", b"Basic x")]
    for headers, author in (([], "api-client"), (jane, "jane")):
        request = requests.Request({"type": "http", "client": ("203.0.113.7", 1), "headers": headers})
        assert (await local.submit(request)).caller.author == (await local.see_setup(request)).author == author
    assert (reviewer.tokens, reviewer.accesses) == ([], [])
    await database.close()


async def test_a_token_that_has_expired_ends_the_socket_and_the_streams_that_it_opened(
    reviewer: Reviewer, tmp_path: Path, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "KNOWN_SECONDS", 0.0)
    monkeypatch.setattr(subscriptions, "CHECKED_EVERY", (0.05, 0.1))
    identity = await queue.admit(database)
    reviewer.namespace = (200, {"metadata": {"uid": "uid-of-tarsy"}})
    headers = apis.bearer(JANES)
    async with (
        answers.answering(reviewer, folder=tmp_path) as cluster,
        apis.listening(apis.parts(cluster=cluster, database=database, token="hook")) as url,
        watching.watching(url, headers=headers) as watcher,
        aiohttp.ClientSession(url, headers=headers) as session,
        session.get(f"/api/v1/investigations/{identity}/events") as one_stream,
        session.get("/api/v1/events") as many,
    ):
        assert (one_stream.status, many.status) == (200, 200)
        for channel in (f"investigation:{identity}", "investigations"):
            await watcher.ask(action="subscribe", channel=channel)
            await watcher.until_type("subscription.confirmed")
        asked = len(reviewer.tokens)
        await reviewer.has_heard(lambda: len(reviewer.tokens) > asked + 1)
        assert (await watcher.answer(action="ping"))["type"] in ("pong", "investigation.status")
        reviewer.token = NOBODYS_TOKEN
        code, reason = await watcher.closed()
        assert (code, "has expired" in str(reason)) == (1008, True)
        for response in (one_stream, many):
            reader = watching.Reader(response)
            assert "has expired" in (await reader.until_type("subscription.ended"))[-1]["reason"]
            with pytest.raises(EOFError):
                await reader.next()
