"""The form of a request: it carries a token, or with `--insecure-dev` comes from a program of this machine.

A browser on this machine is no such program: requests that a web page makes it send are refused.
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
HOW = f"give the token as `Authorization: {SCHEME} <token>`"


def bearer(request: HTTPConnection) -> bytes | None:
    """The token of a request; None where there is none, or more than one, or something else.

    Source: RFC 6750, "Bearer Token Usage".
    """
    headers = request.headers.getlist("Authorization")
    scheme, _, token = headers[0].partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() != SCHEME.lower():
        return None
    return token.strip(" \t").encode("latin-1") or None  # the server reads headers as Latin-1


def ends(token: str) -> float | None:
    """When a token says that it ends, in seconds of Unix time; None where it says nothing that can be read.

    Whether it is anybody's is not looked at. Source: RFC 7519, "JSON Web Token".
    """
    try:
        _, claims, _ = token.split(".")
        expiry = json.loads(base64.urlsafe_b64decode(f"{claims}=="))["exp"]
        return float(expiry) if isinstance(expiry, int | float) and math.isfinite(expiry) else None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None


def unknown(*, is_given: bool) -> problems.Problem:
    """Return the answer to an unknown caller; `is_given`: it sent a token."""
    if not is_given:
        return problems.Problem(HTTPStatus.UNAUTHORIZED, HOW, headers={"WWW-Authenticate": SCHEME})
    message = "the token is nobody's here, or has expired: `kubectl create token` makes one of a ServiceAccount"
    headers = {"WWW-Authenticate": f'{SCHEME} error="invalid_token"'}
    return problems.Problem(HTTPStatus.UNAUTHORIZED, message, headers=headers)


async def same_machine(request: HTTPConnection) -> None:
    """Let pass what no page of the web can make a browser send.

    A page can send a form's types across sites without asking, but no JSON; and it can give a name of its own this
    machine's address (DNS rebinding), but then that name is the Host.

    Source: Fetch standard, "CORS-safelisted request-header".
    """
    if not all(map(_is_loopback, request.headers.getlist("Host") or [""])):
        message = "without a token only this machine is served: call 127.0.0.1, [::1] or localhost"
        raise problems.Problem(HTTPStatus.MISDIRECTED_REQUEST, message)
    of_no_form(request)


def of_no_form(request: HTTPConnection) -> None:
    """Accept reads, and requests that a page's form cannot send: checked for every caller without a token.

    A browser adds the cookie that a proxy knows people by, and its address, to every request that any page makes it
    send.
    """
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if request.scope.get("method", "GET") not in ("GET", "HEAD") and kind != "application/json":
        message = "without a token only JSON is taken: send Content-Type: application/json"
        raise problems.Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z.-]+))(?::[0-9]{1,5})?", re.ASCII | re.IGNORECASE)
"""A host and perhaps a port. Source: RFC 9110, section 7.2, "Host and :authority"."""


def _is_loopback(host: str) -> bool:
    """Whether a Host header is this machine and nothing else: who reads it as a URL's part takes more than that."""
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
