"""The origin of a page that opens a WebSocket: a browser lets any page do so, with the user's cookie for a proxy.

So a page that the browser names has to be one of ours. A caller with a token of its own may come from any page: no
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
    """Raise a Problem for a connection that another site's page opens; programs send no origin.

    `is_vouched_for`: only a proxy's word identifies the caller, which the proxy may know by a cookie.
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
