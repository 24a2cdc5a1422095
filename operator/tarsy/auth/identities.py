"""Identities: the caller of a request, by its credential. `permissions` decides what it may do.

A credential is a token of webhooks (`webhook_tokens`); a token that the API server knows (TokenReview); the user that a
trusted proxy names; or the cookie of a session. If a proxy forwards a request with a
token, the token's rights count, and the proxy's user is the author.

A browser adds the cookie of a session, or of a proxy, to requests of any page. So a change with such a credential has
to be JSON, and has to come from a page of ours.

Every caller has a rate. An unknown caller is counted by address, before the API server is asked. An address with many
unknown tokens gets few further lookups, so that guesses delay no other caller. Known callers at that address are not
affected.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Literal, TypeAlias

from starlette.requests import HTTPConnection

from tarsy import errors
from tarsy.auth import credentials, origins, request_log, sessions, single_flight, webhook_tokens
from tarsy.config.model import platforms
from tarsy.kube import client, objects, reviews
from tarsy.resources import investigations
from tarsy.serve import limits, problems, trusted_proxies
from tarsy.store.base import databases

ANONYMOUS = "api-client"
"""The author of requests without a name: with a token of webhooks, or with `--insecure-dev`."""
KNOWN_SECONDS = 60.0
UNKNOWN_SECONDS = 10.0
"""Seconds that the API server's answer about a token is cached: one for a known token, one for an unknown token."""
GUESSES = 30
"""Unknown tokens that one address may send in a row; then it has to wait."""
GUESSES_PER_SECOND = 1
LOGGED_SECONDS = 10.0
"""Seconds between two logged failures of lookups: requests without a token must not fill the log."""

_AUTHENTICATED = "system:authenticated"

log = logging.getLogger(__name__)

Principal: TypeAlias = reviews.User | webhook_tokens.Webhook | Literal["anybody"]
"""The owner of rights: a user, a token of webhooks, or with `--insecure-dev` every program of this machine."""
Credential: TypeAlias = Literal["none", "webhook", "token", "proxy", "session"]


class _TooManyGuessesError(Exception):
    """Too many tokens from one address were unknown; the address may send another one after `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request."""

    author: str
    """The name in specs, lists and the audit."""
    address: str
    """The address that the request came from."""
    has_session: bool = False
    """Whether a cookie identifies the caller, which can sign out."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The identity of a caller: who it is, and by which credential."""

    principal: Principal
    author: str
    """The caller's name, of at most `AUTHOR_MAX` printable characters."""
    address: str
    credential: Credential
    token_expiry: float | None = None
    """The expiry that the token states, in seconds of Unix time."""

    @property
    def is_ambient(self) -> bool:
        """Whether a browser adds the credential by itself to requests of any page."""
        return self.credential in ("proxy", "session")

    @property
    def caller(self) -> Caller:
        """The caller, for what records and shows it."""
        return Caller(author=self.author, address=self.address, has_session=self.credential == "session")


class Lookups:
    """Failures of lookups at the API server: the request gets a 503, and the reason is logged at intervals."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at = -LOGGED_SECONDS

    @asynccontextmanager
    async def unavailable_if_failed(self, subject: str) -> AsyncIterator[None]:
        """Raise a Problem if the lookup in this block fails; `subject` names what is looked up."""
        try:
            yield
        except (errors.TemporaryError, objects.RefusedError, TimeoutError) as error:
            if (now := self._clock()) - self._logged_at >= LOGGED_SECONDS:
                self._logged_at = now
                reason = str(error) or "the API server takes too long"
                log.warning("%s cannot be looked up: %s", subject, reason, extra={"action": "review_failed"})
            message = (
                f"{subject} cannot be looked up now: try again. If it stays so, the operator does not reach the API "
                "server, or lacks the ClusterRole system:auth-delegator; its log has the reason"
            )
            raise problems.Problem(HTTPStatus.SERVICE_UNAVAILABLE, message) from error


class Identities:
    """Finds the identities of callers."""

    def __init__(
        self,
        *,
        cluster: client.Cluster,
        database: databases.Database,
        tokens: Callable[[], webhook_tokens.Tokens] | None,
        settings: platforms.API,
        lookups: Lookups,
        clock: Callable[[], float],
    ) -> None:
        """`tokens` returns those of webhooks in force; None is `--insecure-dev`. `clock` is monotonic, in seconds."""
        self._cluster = cluster
        self.sessions = sessions.Sessions(cluster, database)
        self._tokens = tokens
        self.proxies = trusted_proxies.Proxies(settings.trusted_proxies)
        self._origins = origins.Origins(settings, self.proxies)
        self._rates = limits.Rates(per_second=settings.requests_per_second, burst=settings.burst, clock=clock)
        self._guesses = limits.Rates(per_second=GUESSES_PER_SECOND, burst=GUESSES, clock=clock)
        self._lookups = lookups
        self._users = single_flight.Cache[reviews.User](within=reviews.SECONDS, clock=clock)

    async def identify(self, request: HTTPConnection, *, busy: HTTPStatus = HTTPStatus.TOO_MANY_REQUESTS) -> Identity:
        """Return the caller of a request; its body is not read.

        Raises a Problem: 401 for an unknown caller, 503 if it cannot be looked up, `busy` beyond its rate, 400 and 403
        for impossible headers of a trusted proxy.
        """
        origin = self.proxies.origin(request)
        request_log.note(request, address=origin.address)
        principal, credential = await self._principal(request, origin, busy)
        if isinstance(principal, reviews.User):
            name = principal.name
            self._count(f"user {name}", busy)
        else:
            name = ANONYMOUS
            owner = principal.name if isinstance(principal, webhook_tokens.Webhook) else principal
            self._count(f"{owner} {limits.network(origin.address)}", busy)
        token = credentials.bearer(request) if credential == "token" else None
        identity = Identity(
            principal=principal,
            author=printable_name(origin.name or name),
            address=origin.address,
            credential=credential,
            token_expiry=credentials.expiry(token.decode("latin-1")) if token else None,
        )
        request_log.note(request, who=identity.author, credential=credential)
        if identity.is_ambient:
            self._origins.ensure_own_change(request)
        return identity

    async def _principal(
        self, request: HTTPConnection, origin: trusted_proxies.Origin, busy: HTTPStatus
    ) -> tuple[Principal, Credential]:
        """Return the owner of the request's first credential, in the order token, proxy, session."""
        if self._tokens is None:
            return "anybody", "none"
        network = limits.network(origin.address)
        if "Authorization" not in request.headers:
            if origin.name is not None:
                groups = dict.fromkeys((*origin.groups, _AUTHENTICATED, trusted_proxies.PROXIED))
                return reviews.User(name=origin.name, groups=tuple(groups)), "proxy"
            if cookie := sessions.cookie_of(request):
                if not self.sessions.has_seen(cookie):
                    self._count(f"address {network}", busy)
                if user := await self.sessions.user(cookie):
                    return user, "session"
                raise credentials.session_ended()
        token = credentials.bearer(request)
        if token and (webhook := self._tokens().owner(webhook_tokens.digest(token))):
            return webhook, "webhook"
        return await self._token_user(token, network, busy), "token"

    async def _token_user(self, token: bytes | None, network: str, busy: HTTPStatus) -> reviews.User:
        digest = webhook_tokens.digest(token or b"")
        look_up = functools.partial(self._review, (token or b"").decode("latin-1"))
        if user := self._users.cached(digest, look_up):
            return user
        self._count(f"address {network}", busy)
        if token is None or not credentials.is_token(token):
            raise credentials.unauthorized(has_token=token is not None)
        try:
            async with self._lookups.unavailable_if_failed("the owner of the token"):
                user = await self._users.get(digest, functools.partial(self._guess, network, look_up), caller=network)
        except _TooManyGuessesError as error:
            raise _rate_exceeded(error.seconds, "too many unknown tokens from this address", busy) from error
        if user is None:
            raise credentials.unauthorized(has_token=True)
        return user

    async def _guess(
        self, network: str, look_up: single_flight.Lookup[reviews.User]
    ) -> single_flight.Answer[reviews.User]:
        """Look a token up. Raises _TooManyGuessesError if too many tokens from `network` were unknown by now."""
        if seconds := self._guesses.take(network):
            raise _TooManyGuessesError(seconds)
        is_unknown = False
        try:
            answer = await look_up()
            is_unknown = answer.value is None
        finally:
            if not is_unknown:
                self._guesses.give_back(network)
        return answer

    async def _review(self, token: str) -> single_flight.Answer[reviews.User]:
        user = await reviews.user_of(self._cluster, token)
        if user is None:
            return single_flight.Answer(value=None, seconds=UNKNOWN_SECONDS)
        expiry = credentials.expiry(token)
        seconds = KNOWN_SECONDS if expiry is None else max(0.0, min(KNOWN_SECONDS, expiry - time.time()))
        return single_flight.Answer(value=user, seconds=seconds)

    def _count(self, caller: str, busy: HTTPStatus) -> None:
        """Count a request. Raises a Problem beyond the caller's rate."""
        if seconds := self._rates.take(caller):
            raise _rate_exceeded(seconds, "too many requests from this caller", busy)


def _rate_exceeded(seconds: float, reason: str, busy: HTTPStatus) -> problems.Problem:
    wait = math.ceil(seconds)
    return problems.Problem(busy, f"{reason}: send the next one in {wait} s", headers={"Retry-After": str(wait)})


def printable_name(name: str) -> str:
    """Return a name for specs, lists and answers: printable, and not longer than AUTHOR_MAX."""
    return "".join(character if character.isprintable() else "\ufffd" for character in name)[
        : investigations.AUTHOR_MAX
    ]
