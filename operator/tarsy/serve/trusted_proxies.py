"""Trusted proxies: X-Forwarded-* headers count on their connections, and are ignored on all others."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from http import HTTPStatus

from starlette import datastructures
from starlette.requests import HTTPConnection

from tarsy.config.model import fields
from tarsy.resources import investigations
from tarsy.serve import problems

USER, EMAIL, GROUPS = "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Groups"
FOR, HOST, PROTO = "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"
GROUPS_MAX = 256
"""Groups of a user."""
HOPS_MAX = 32
"""Proxies in a row that are followed to the sender of a request."""
RESERVED = ("system:", "kubeadm:", "tarsy:")
"""Prefixes of the users and groups that Kubernetes, kubeadm and TARSy give rights to: a proxy may not name them. If an
admin gives rights to other groups, the proxy's own rules have to guard those."""
PROXIED = "tarsy:proxied"
"""The group of all users that a proxy names: a Role that is bound to it is granted to all users of the proxy."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The sender of a request and its user, as far as the headers can be trusted."""

    address: str
    """The address of the sender: the connection's, or the one that the last trusted proxy names; "" if unknown."""
    name: str | None = None
    """The user that a trusted proxy names, or None."""
    groups: tuple[str, ...] = ()


class Proxies:
    """The trusted proxies."""

    def __init__(self, trusted: Collection[Network]) -> None:
        self._trusted = tuple(trusted)

    def origin(self, request: HTTPConnection) -> Origin:
        """Return the origin of a request. Raises a Problem for impossible headers of a trusted proxy."""
        host = request.client.host if request.client else ""
        peer = parse_address(host)
        if peer is None or not self._trusts(peer):
            return Origin(address=str(peer or host))
        headers = request.headers
        return Origin(
            address=str(self._sender(peer, headers.getlist(FOR))), name=_name(headers), groups=_groups(headers)
        )

    def site(self, connection: HTTPConnection) -> str | None:
        """Return the origin under which the sender's browser knows this API, or None if no header names it."""
        headers = connection.headers
        scheme = "https" if connection.url.scheme in ("https", "wss") else "http"
        host = _single(headers, "Host")
        peer = parse_address(connection.client.host) if connection.client else None
        if peer and self._trusts(peer):
            scheme, host = _single(headers, PROTO) or scheme, _single(headers, HOST) or host
        return fields.origin_of(f"{scheme}://{host}") if host else None

    def _trusts(self, sender: Address) -> bool:
        return any(sender in network for network in self._trusted)

    def _sender(self, peer: Address, hops: Collection[str]) -> Address:
        """Return the nearest address that is no trusted proxy's, or the last one before text that is no address."""
        sender = peer
        for hop in reversed(",".join(hops).split(",")[-HOPS_MAX:]):
            match = _WITH_PORT.fullmatch(hop.strip())
            hop_address = parse_address((match[1] or match[2]) if match else hop.strip())
            if hop_address is None:
                return sender
            sender = hop_address
            if not self._trusts(sender):
                break
        return sender


def _name(headers: datastructures.Headers) -> str | None:
    """Return the user's name, else the mail address; both are checked."""
    values = {header: _single(headers, header) for header in (USER, EMAIL)}
    names = [_checked(value, header) for header, value in values.items() if value is not None]
    return names[0] if names else None


def _groups(headers: datastructures.Headers) -> tuple[str, ...]:
    value = _single(headers, GROUPS)
    if value is None:
        return ()
    groups = value.split(",", GROUPS_MAX)
    if len(groups) > GROUPS_MAX:
        raise problems.Problem(HTTPStatus.FORBIDDEN, f"{GROUPS}: at most {GROUPS_MAX} groups")
    return tuple(_checked(group.strip(" \t"), GROUPS) for group in groups)


def _single(headers: datastructures.Headers, header: str) -> str | None:
    values = headers.getlist(header)
    if len(values) > 1:  # the proxy may have passed on one of the sender
        raise problems.Problem(HTTPStatus.BAD_REQUEST, f"{header}: it appears {len(values)} times")
    return values[0].strip(" \t") or None if values else None


def _checked(value: str, header: str) -> str:
    """Return the name in a header. Raises a Problem for an impossible or reserved one."""
    try:
        name = value.encode("latin-1").decode()  # the server reads headers as Latin-1, proxies write UTF-8
    except UnicodeError:
        name = ""
    if not name.isprintable() or not 1 <= len(name) <= investigations.AUTHOR_MAX:
        message = f"{header}: names have from 1 to {investigations.AUTHOR_MAX} printable characters, in UTF-8"
        raise problems.Problem(HTTPStatus.FORBIDDEN, message)
    if name.startswith(RESERVED):
        message = f"{header}: a proxy may not give a name that begins with {' or '.join(RESERVED)}"
        raise problems.Problem(HTTPStatus.FORBIDDEN, message)
    return name


_WITH_PORT = re.compile(r'"?(?:\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5})"?', re.ASCII)
"""An address with a port, as some proxies write it."""


def parse_address(text: str) -> Address | None:
    """Return the address in `text`, or None; an IPv4 address that is mapped to IPv6 is returned as IPv4."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])  # after % stands an interface of this machine
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
