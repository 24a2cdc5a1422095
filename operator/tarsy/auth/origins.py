"""The origin of a page that opens a WebSocket: a browser lets any page do so, with the user's cookie for a proxy.

So if a browser names the page, it has to be one of ours. Requests with a token of their own may come from any page: no
browser adds such a token by itself.

Source: RFC 6455, section 10.2, "Origin Considerations"; RFC 6454.
"""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from starlette.requests import HTTPConnection

from tarsy.config.model import fields
from tarsy.serve import problems, trusted_proxies

_HOW = "name it in api.allowed_origins of the platform file if its pages may watch"


def ensure_own(
    connection: HTTPConnection, *, proxies: trusted_proxies.Proxies, allowed: Collection[str], is_vouched_for: bool
) -> None:
    """Let pass what our own pages open, and programs; a Problem for others.

    `is_vouched_for`: who it is has been said by a proxy alone, which may know them by a cookie.
    """
    origins = connection.headers.getlist("Origin")
    if not origins:
        if is_vouched_for:
            raise problems.Problem(
                HTTPStatus.FORBIDDEN, "Origin: without a token the browser has to say whose page it is"
            )
        return
    origin = fields.origin_of(origins[0]) if len(origins) == 1 else None
    if origin is None or origin not in (*allowed, proxies.site(connection)):
        excerpt = ", ".join(origins)[: problems.ECHOED_MAX]
        raise problems.Problem(HTTPStatus.FORBIDDEN, f"Origin: {excerpt} is none of ours: {_HOW}")
