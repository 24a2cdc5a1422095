"""The origin of the page that sends a request: a browser lets any page send one, with the user's cookie.

So a page that the browser names has to be one of ours. A request with a token may come from any page, because no
browser adds a token by itself.

Source: RFC 6455, section 10.2, "Origin Considerations"; RFC 6454; OWASP, "Cross-Site Request Forgery Prevention".
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import HTTPConnection

from tarsy.auth import credentials
from tarsy.config.model import fields, platforms
from tarsy.serve import problems, trusted_proxies

_SUBSCRIBE_REMEDY = "if its pages may subscribe, add it to api.allowed_origins in the platform file"
_CHANGE_REMEDY = "if TARSy is reached at this address, it has to be api.public_url in the platform file"
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
        self._ensure(connection, required=is_ambient, allowed=self._allowed, remedy=_SUBSCRIBE_REMEDY)

    def ensure_own_change(self, request: HTTPConnection) -> None:
        """Raise a Problem for a change that is not JSON, or that no page of ours has sent."""
        if request.scope["type"] == "http" and request.scope["method"] not in _READING:
            credentials.refuse_forms(request)
            self._ensure(request, required=True, allowed=frozenset(), remedy=_CHANGE_REMEDY)

    def _ensure(self, connection: HTTPConnection, *, required: bool, allowed: frozenset[str], remedy: str) -> None:
        origins = connection.headers.getlist("Origin")
        if not origins:
            if required:
                message = "Origin: it is missing; a request without a token needs it"
                raise problems.Problem(HTTPStatus.FORBIDDEN, message)
            return
        origin = fields.origin_of(origins[0]) if len(origins) == 1 else None
        if origin is None or origin not in (*allowed, *self._own, self._proxies.site(connection)):
            excerpt = ", ".join(origins)[: problems.ECHOED_MAX]
            raise problems.Problem(HTTPStatus.FORBIDDEN, f"Origin: {excerpt} is not allowed: {remedy}")
