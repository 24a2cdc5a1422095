"""The origin of a page that sends a request: a browser lets any page do so, with the user's cookie.

So a page that the browser names has to be one of ours. A caller with a token of its own may come from any page: no
browser adds such a token by itself.

Source: RFC 6455, section 10.2, "Origin Considerations"; RFC 6454; OWASP, "Cross-Site Request Forgery Prevention".
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import HTTPConnection

from tarsy.auth import credentials
from tarsy.config.model import fields, platforms
from tarsy.serve import problems, trusted_proxies

_TO_WATCH = "name it in api.allowed_origins of the platform file if its pages may watch"
_TO_CHANGE = "if people reach TARSy there, it has to be api.public_url of the platform file"
_READING = ("GET", "HEAD")


class Origins:
    """The origins of our own pages, and of those that the platform file allows."""

    def __init__(self, settings: platforms.API, proxies: trusted_proxies.Proxies) -> None:
        self._proxies = proxies
        self._allowed = frozenset(settings.allowed_origins)
        self._own = frozenset([settings.public_url] if settings.public_url else [])

    def ensure_own(self, connection: HTTPConnection, *, is_ambient: bool) -> None:
        """Raise a Problem for a WebSocket that another site's page opens; programs send no origin.

        `is_ambient`: the browser adds the caller's credential by itself.
        """
        self._ensure(connection, required=is_ambient, allowed=self._allowed, remedy=_TO_WATCH)

    def ensure_own_change(self, request: HTTPConnection) -> None:
        """Raise a Problem for a change that no page of ours has sent, and for one that is no JSON."""
        if request.scope["type"] == "http" and request.scope["method"] not in _READING:
            credentials.refuse_forms(request)
            self._ensure(request, required=True, allowed=frozenset(), remedy=_TO_CHANGE)

    def _ensure(self, connection: HTTPConnection, *, required: bool, allowed: frozenset[str], remedy: str) -> None:
        origins = connection.headers.getlist("Origin")
        if not origins:
            if required:
                message = "Origin: without a token the browser has to say whose page it is"
                raise problems.Problem(HTTPStatus.FORBIDDEN, message)
            return
        origin = fields.origin_of(origins[0]) if len(origins) == 1 else None
        if origin is None or origin not in (*allowed, *self._own, self._proxies.site(connection)):
            excerpt = ", ".join(origins)[: problems.ECHOED_MAX]
            raise problems.Problem(HTTPStatus.FORBIDDEN, f"Origin: {excerpt} is none of ours: {remedy}")
