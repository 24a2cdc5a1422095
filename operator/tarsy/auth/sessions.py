"""Sessions of browsers: a one-time code begins one, a cookie continues it.

A user with a token gets a code for it, and opens an address with the code in the browser. The browser exchanges the
code for a cookie, so no token is ever in a URL, in a page or in the browser's storage. All replicas read the sessions
from the database, which has digests only.

A session has the identity that the API server named when the code was made, and ends with the token. Its rights are
checked at the API server like those of a token. A token cannot be reviewed again from its digest, so the session of a
token that states no expiry is short.
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import cookies
from typing import Any

from starlette.requests import HTTPConnection

from tarsy.kube import client, reviews
from tarsy.store.base import audit, databases
from tarsy.store.fleet import browser_sessions

COOKIE = "tarsy_session"
LIFETIME_MAX = timedelta(hours=8)
LIFETIME_WITHOUT_END = timedelta(minutes=15)
"""The lifetime of a session whose token states no expiry."""
SEEN_MAX = 2048
"""Digests of cookies that a process remembers."""
_SECRET_BYTES = 32
_SECRET_LENGTH_MAX = 100
"""Characters of a code or cookie; a longer one is not looked up."""


@dataclass(frozen=True, kw_only=True)
class Code:
    """A one-time code."""

    code: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True)
class NewSession:
    """A session that has just begun."""

    cookie: str
    until: datetime


def lifetime(token_end: float | None) -> timedelta:
    """Return the lifetime of a session; `token_end` is in seconds of Unix time, None if the token states no expiry."""
    if token_end is None:
        return LIFETIME_WITHOUT_END
    return timedelta(seconds=min(LIFETIME_MAX.total_seconds(), max(0.0, token_end - time.time())))


class Sessions:
    """The sessions of browsers, in the database."""

    def __init__(self, cluster: client.Cluster, database: databases.Database) -> None:
        """`cluster` names the operator's own namespace, for the audit."""
        self._cluster = cluster
        self._database = database
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        """The digests of the latest cookies that had a session. Only the database says whether they still have it."""

    async def create_code(self, user: reviews.User, *, token_end: float | None, by: audit.Caller) -> Code:
        """Create a one-time code for a user, who is the caller `by`."""
        code = secrets.token_urlsafe(_SECRET_BYTES)
        expires_at = await browser_sessions.add_code(
            self._database,
            _digest(code),
            identity=dataclasses.asdict(user),
            session_lifetime=lifetime(token_end),
            namespace=self._cluster.served.own,
            by=by,
        )
        return Code(code=code, expires_at=expires_at)

    async def begin(self, code: str, *, address: str) -> NewSession | None:
        """Use up a code and begin a session at `address`. None if the code is unknown, used or expired."""
        if len(code) > _SECRET_LENGTH_MAX:
            return None
        cookie = secrets.token_urlsafe(_SECRET_BYTES)
        session = await browser_sessions.begin(
            self._database,
            code=_digest(code),
            session=_digest(cookie),
            namespace=self._cluster.served.own,
            address=address,
        )
        return NewSession(cookie=cookie, until=session.until) if session else None

    async def user(self, cookie: str) -> reviews.User | None:
        """Return the user of a session. None if the cookie is unknown, or its session has ended."""
        if len(cookie) > _SECRET_LENGTH_MAX:
            return None
        digest = _digest(cookie)
        session = await browser_sessions.read(self._database, digest)
        self._seen.pop(digest, None)
        if session is None:
            return None
        self._seen[digest] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return _user(session.identity)

    def has_seen(self, cookie: str) -> bool:
        """Whether a cookie had a session when it was last read in this process."""
        return _digest(cookie) in self._seen

    async def end(self, cookie: str, *, address: str) -> None:
        """End the session of a cookie, if there is one, on a request from `address`."""
        await browser_sessions.end(self._database, _digest(cookie), namespace=self._cluster.served.own, address=address)


def cookie_of(connection: HTTPConnection) -> str | None:
    """Return the session's cookie of a request, or None if there is not exactly one."""
    values = [
        value.strip(' \t"')
        for header in connection.headers.getlist("Cookie")
        for name, _, value in (part.partition("=") for part in header.split(";"))
        if name.strip() == COOKIE
    ]
    return values[0] if len(values) == 1 and values[0] else None


def set_cookie(session: NewSession, *, is_https: bool) -> str:
    """Return the header `Set-Cookie` that begins a session.

    Scripts cannot read the cookie. A link from another site, such as a chat, opens the page with it; a request that a
    page of another site makes does not carry it.
    """
    return _cookie_header(session.cookie, expires=session.until, is_https=is_https)


def clear_cookie(*, is_https: bool) -> str:
    """Return the header `Set-Cookie` that removes the cookie."""
    return _cookie_header("", expires=datetime.fromtimestamp(0, UTC), is_https=is_https)


def _cookie_header(value: str, *, expires: datetime, is_https: bool) -> str:
    jar: cookies.SimpleCookie = cookies.SimpleCookie()
    jar[COOKIE] = value
    attributes: dict[str, Any] = {
        "path": "/",
        "expires": expires.astimezone(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "httponly": True,
        "samesite": "Lax",
    }
    if is_https:
        attributes["secure"] = True
    jar[COOKIE].update(attributes)
    return jar[COOKIE].OutputString()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _user(identity: dict[str, Any]) -> reviews.User:
    return reviews.User(
        name=identity["name"],
        uid=identity["uid"],
        groups=tuple(identity["groups"]),
        extra=tuple((name, tuple(values)) for name, values in identity["extra"]),
    )
