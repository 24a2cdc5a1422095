"""The credentials in a request: a bearer token, or none if no web page can have sent the request.

Any page can make a browser send a request, with the browser's address and the cookie by which a proxy knows its user.
So a request without a token must not be one that a page's form can send.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import math
import re
from http import HTTPStatus

from starlette.requests import HTTPConnection

from tarsy.serve import problems

SCHEME = "Bearer"
_TOKEN = re.compile(rb"[\x21-\x7e]{1,16384}")
"""The form of a token: the API server's, and those of webhooks."""
TOKEN_MISSING = f"give the token as `Authorization: {SCHEME} <token>`"


def bearer(request: HTTPConnection) -> bytes | None:
    """Return the token of a request, or None if there is not exactly one. Source: RFC 6750, "Bearer Token Usage"."""
    headers = request.headers.getlist("Authorization")
    scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != SCHEME.lower():
        return None
    return token.strip(" \t").encode("latin-1") or None  # the server reads headers as Latin-1


def is_token(text: bytes) -> bool:
    """Return whether a text can be a token."""
    return _TOKEN.fullmatch(text) is not None


def expiry(token: str) -> float | None:
    """Return the expiry that a token states, in seconds of Unix time, or None; the token is not verified.

    Source: RFC 7519, "JSON Web Token".
    """
    try:
        _, claims, _ = token.split(".")
        seconds = json.loads(base64.urlsafe_b64decode(f"{claims}=="))["exp"]
        return float(seconds) if isinstance(seconds, int | float) and math.isfinite(seconds) else None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None


def unauthorized(*, has_token: bool) -> problems.Problem:
    """Return the problem of a request with an unknown token, or without one."""
    if not has_token:
        return problems.Problem(HTTPStatus.UNAUTHORIZED, TOKEN_MISSING, headers={"WWW-Authenticate": SCHEME})
    message = "the token is unknown or has expired: `kubectl create token` makes one for a ServiceAccount"
    headers = {"WWW-Authenticate": f'{SCHEME} error="invalid_token"'}
    return problems.Problem(HTTPStatus.UNAUTHORIZED, message, headers=headers)


def session_ended() -> problems.Problem:
    """Return the problem of a cookie without a session."""
    message = "the session has ended: `tarsy open` begins another one"
    return problems.Problem(HTTPStatus.UNAUTHORIZED, message, headers={"WWW-Authenticate": SCHEME})


def ensure_same_machine(request: HTTPConnection) -> None:
    """Raise a Problem for a request that may come from elsewhere, or from a web page.

    Without asking, a page can send only the content types of forms to another site, and no JSON. A page can also point
    its own name at this machine's address (DNS rebinding), but then the Host is that name.

    Source: Fetch standard, "CORS-safelisted request-header".
    """
    if not all(map(_is_loopback, request.headers.getlist("Host") or [""])):
        message = "without a token only this machine is served: call 127.0.0.1, [::1] or localhost"
        raise problems.Problem(HTTPStatus.MISDIRECTED_REQUEST, message)
    refuse_forms(request)


def refuse_forms(request: HTTPConnection) -> None:
    """Raise a Problem for a request that a page's form can send; reads are accepted."""
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if request.scope.get("method", "GET") not in ("GET", "HEAD") and kind != "application/json":
        message = "without a token only JSON is taken: send Content-Type: application/json"
        raise problems.Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z.-]+))(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""A host and perhaps a port. Source: RFC 9110, section 7.2, "Host and :authority"."""


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine. Parsers of URLs accept more forms of an address than this."""
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    version_6, name = match.groups()
    try:
        if version_6:
            return ipaddress.IPv6Address(version_6).is_loopback
        return name.lower() == "localhost" or ipaddress.IPv4Address(name).is_loopback
    except ValueError:
        return False
