"""The proxy for an address, from the environment.

aiohttp's `trust_env` would look it up with each request, and ~/.netrc as well, in a thread.
"""

from __future__ import annotations

from urllib import parse, request


def proxy_for(url: str) -> str | None:
    """Return the proxy for `url` by HTTPS_PROXY, HTTP_PROXY and NO_PROXY; None if it is reached directly."""
    address = parse.urlsplit(url)
    if not address.hostname or request.proxy_bypass(address.hostname):
        return None
    return request.getproxies().get(address.scheme)
