"""Identity: the caller of a request, by its token or by a trusted proxy. `permissions` decides what it may do.

A token is the webhook's, compared here and never sent anywhere, or one that the API server knows (TokenReview). If a
proxy forwards a request with a token, the token's rights count, and the proxy's user is the author.

Every caller has a rate. An unknown one is counted by address, before the API server is asked. An address with many
unknown tokens gets few further questions, so that guesses delay no other caller; known callers from there are not
affected.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal

from starlette.requests import HTTPConnection

from tarsy.auth import api_server, credentials, single_flight
from tarsy.config.model import platforms
from tarsy.kube import client, reviews
from tarsy.resources import investigations
from tarsy.serve import limits, problems, trusted_proxies

ANONYMOUS = "api-client"
"""The author of requests without a name: with the webhook's token, or with `--insecure-dev`."""
KNOWN_SECONDS = 60.0
REFUSED_SECONDS = 10.0
"""For so long it holds what the API server says of a token."""
GUESSES = 30
"""The unknown tokens from one address in a row, after which it has to wait."""
GUESSES_PER_SECOND = 1

_AUTHENTICATED = "system:authenticated"
_TOKEN = re.compile(rb"[\x21-\x7e]{1,16384}")
"""The form of an API server's token; others are not sent there."""


class _GuessedError(Exception):
    """Too many tokens from one address were unknown; it may try another one in so many `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True)
class Sender:
    """The sender of a request."""

    who: reviews.User | Literal["webhook", "anybody"]
    """The owner of the rights: a user, the webhook's token, or with `--insecure-dev` every program of this machine."""
    author: str
    """Their name, of at most `AUTHOR_MAX` printable characters."""
    address: str
    is_vouched_for: bool = False
    """A proxy says who it is, and nothing else does."""


class Callers:
    """Knows senders."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        token: str | None,
        settings: platforms.API,
        questions: api_server.Asking,
        clock: Callable[[], float],
    ) -> None:
        """`token` is the webhook's; None is `--insecure-dev`. `clock` tells seconds that only rise."""
        self._cluster = cluster
        self._webhook = None if token is None else _digest(token.encode())
        self.proxies = trusted_proxies.Proxies(settings.trusted_proxies)
        self._rates = limits.Rates(per_second=settings.requests_per_second, burst=settings.burst, clock=clock)
        self._guesses = limits.Rates(per_second=GUESSES_PER_SECOND, burst=GUESSES, clock=clock)
        self._asking = questions
        self._users = single_flight.Kept[reviews.User](within=reviews.SECONDS, clock=clock)

    async def sender(self, request: HTTPConnection, *, busy: HTTPStatus = HTTPStatus.TOO_MANY_REQUESTS) -> Sender:
        """Return the sender of this request; its body is not read.

        Raises a Problem: 401 for an unknown sender, 503 if it cannot be checked, `busy` beyond its rate, 400 and 403
        for impossible headers of a trusted proxy.
        """
        origin = self.proxies.origin(request)
        who = await self._who(request, origin, busy)
        match who:
            case reviews.User():
                name = who.name
                self._count(f"user {name}", busy)
            case "webhook" | "anybody":
                name = ANONYMOUS
                self._count(f"{who} {limits.network(origin.address)}", busy)
        is_vouched_for = isinstance(who, reviews.User) and trusted_proxies.PROXIED in who.groups
        return Sender(
            who=who, author=printable_name(origin.name or name), address=origin.address, is_vouched_for=is_vouched_for
        )

    async def _who(
        self, request: HTTPConnection, origin: trusted_proxies.Origin, busy: HTTPStatus
    ) -> reviews.User | Literal["webhook", "anybody"]:
        if self._webhook is None:
            return "anybody"
        if "Authorization" not in request.headers and origin.name is not None:
            credentials.of_no_form(request)
            groups = dict.fromkeys((*origin.groups, _AUTHENTICATED, trusted_proxies.PROXIED))
            return reviews.User(name=origin.name, groups=tuple(groups))
        token = credentials.bearer(request)
        digest = _digest(token or b"")
        if token and secrets.compare_digest(digest, self._webhook):
            return "webhook"
        network = limits.network(origin.address)
        ask = functools.partial(self._review, (token or b"").decode("latin-1"))
        if cached := self._users.held(digest, ask):
            return cached
        self._count(f"address {network}", busy)
        if token is None or not _TOKEN.fullmatch(token):
            raise credentials.unknown(is_given=token is not None)
        try:
            async with self._asking.whether("whose the token is"):
                user = await self._users.get(digest, functools.partial(self._guess, network, ask), by=network)
        except _GuessedError as error:
            raise _later(error.seconds, "too many tokens that are nobody's came from here", busy) from error
        if user is None:
            raise credentials.unknown(is_given=True)
        return user

    async def _guess(self, network: str, ask: single_flight.Ask[reviews.User]) -> single_flight.Answer[reviews.User]:
        """Ask, unless too many tokens from there were unknown, which is checked when its turn comes."""
        if seconds := self._guesses.take(network):
            raise _GuessedError(seconds)
        is_nobodys = False
        try:
            answer = await ask()
            is_nobodys = answer.found is None
        finally:
            if not is_nobodys:
                self._guesses.give_back(network)
        return answer

    async def _review(self, token: str) -> single_flight.Answer[reviews.User]:
        user = await reviews.user_of(self._cluster, token)
        return single_flight.Answer(found=user, seconds=REFUSED_SECONDS if user is None else _lifetime(token))

    def _count(self, caller: str, busy: HTTPStatus) -> None:
        """Raise a Problem where the caller has no request left."""
        if seconds := self._rates.take(caller):
            raise _later(seconds, "too many requests of one caller", busy)


def _later(seconds: float, why: str, busy: HTTPStatus) -> problems.Problem:
    wait = math.ceil(seconds)
    return problems.Problem(busy, f"{why}: send the next one in {wait} s", headers={"Retry-After": str(wait)})


def _digest(token: bytes) -> bytes:
    """Return a digest of a token, so that none is stored; its fixed length makes comparisons take the same time."""
    return hashlib.sha256(token).digest()


def _lifetime(token: str) -> float:
    """For how many seconds a token that is good may be taken for so: not beyond its own end, where it says one."""
    ends = credentials.ends(token)
    return KNOWN_SECONDS if ends is None else max(0.0, min(KNOWN_SECONDS, ends - time.time()))


def printable_name(name: str) -> str:
    """A name as it may stand in specs, lists and answers."""
    return "".join(each if each.isprintable() else "\ufffd" for each in name)[: investigations.AUTHOR_MAX]
