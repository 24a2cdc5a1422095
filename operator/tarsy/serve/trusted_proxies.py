"""Trusted proxies: headers X-Forwarded-* count if the connection comes from a trusted proxy.

From all other addresses these headers are ignored.
"""

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

USER, EMAIL, GROUPS, FOR, HOST, PROTO = (
    f"X-Forwarded-{what}" for what in ("User", "Email", "Groups", "For", "Host", "Proto")
)
GROUPS_MAX = 256
"""The groups that a user may be in."""
HOPS_MAX = 32
"""Proxies in a row that are gone through for where a request came from."""
RESERVED = ("system:", "kubeadm:", "tarsy:")
"""How the names begin of those who have rights in a cluster as Kubernetes, kubeadm and we set it up; no proxy gives
them. Others that an admin has bound to much are for the proxy's own rules to keep back."""
PROXIED = "tarsy:proxied"
"""The group of all users that a proxy vouches for: a Role bound to it goes to every user whom the proxy lets in."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of a request, and its user, as far as they can be trusted."""

    address: str
    """The address of the sender: the connection's, or the one that the last trusted proxy names; "" without any."""
    name: str | None = None
    """The user that a trusted proxy names; None without one."""
    groups: tuple[str, ...] = ()


class Proxies:
    """The proxies that are believed."""

    def __init__(self, trusted: Collection[Network]) -> None:
        self._trusted = tuple(trusted)

    def trusts(self, host: str) -> bool:
        """Whether who connects from that address is believed."""
        peer = address(host)
        return peer is not None and self._trusts(peer)

    def origin(self, request: HTTPConnection) -> Origin:
        """Return the origin of a request. Raises a Problem for impossible headers of a trusted proxy."""
        host = request.client.host if request.client else ""
        peer = address(host)
        if peer is None or not self._trusts(peer):
            return Origin(address=str(peer or host))
        headers = request.headers
        return Origin(
            address=str(self._sender(peer, headers.getlist(FOR))), name=_name(headers), groups=_groups(headers)
        )

    def site(self, connection: HTTPConnection) -> str | None:
        """The origin under which its sender's browser knows this API; None where nothing says."""
        headers = connection.headers
        scheme = "https" if connection.url.scheme in ("https", "wss") else "http"
        host = _single(headers, "Host")
        if connection.client and self.trusts(connection.client.host):
            scheme, host = _single(headers, PROTO) or scheme, _single(headers, HOST) or host
        return fields.origin_of(f"{scheme}://{host}") if host else None

    def _trusts(self, sender: Address) -> bool:
        return any(sender in network for network in self._trusted)

    def _sender(self, peer: Address, hops: Collection[str]) -> Address:
        """The nearest address that is no trusted proxy's; the one before what is no address."""
        sender = peer
        for hop in reversed(",".join(hops).split(",")[-HOPS_MAX:]):
            hop_address = address(_without_port(hop.strip()))
            if hop_address is None:
                return sender
            sender = hop_address
            if not self._trusts(sender):
                break
        return sender


def _name(headers: datastructures.Headers) -> str | None:
    """The user, else their mail address."""
    headers_given = {header: _single(headers, header) for header in (USER, EMAIL)}
    names = [_checked(value, header) for header, value in headers_given.items() if value is not None]
    return names[0] if names else None


def _groups(headers: datastructures.Headers) -> tuple[str, ...]:
    groups_given = _single(headers, GROUPS)
    if groups_given is None:
        return ()
    groups = groups_given.split(",", GROUPS_MAX)
    if len(groups) > GROUPS_MAX:
        raise problems.Problem(HTTPStatus.FORBIDDEN, f"{GROUPS}: at most {GROUPS_MAX} groups")
    return tuple(_checked(group.strip(" \t"), GROUPS) for group in groups)


def _single(headers: datastructures.Headers, header: str) -> str | None:
    values = headers.getlist(header)
    if len(values) > 1:  # one of them may be its sender's own, which the proxy has passed on
        raise problems.Problem(HTTPStatus.BAD_REQUEST, f"{header}: it is there {len(values)} times")
    return values[0].strip(" \t") or None if values else None


def _checked(value: str, header: str) -> str:
    """Return the name in a header, if it is a possible name."""
    try:
        name = value.encode("latin-1").decode()  # the server reads headers as Latin-1, proxies write UTF-8
    except UnicodeError:
        name = ""
    if not name.isprintable() or not 1 <= len(name) <= investigations.AUTHOR_MAX:
        message = f"{header}: names have from 1 to {investigations.AUTHOR_MAX} printable characters, in UTF-8"
        raise problems.Problem(HTTPStatus.FORBIDDEN, message)
    if name.startswith(RESERVED):
        message = f"{header}: names that begin with {' or '.join(RESERVED)} are not a proxy's to give"
        raise problems.Problem(HTTPStatus.FORBIDDEN, message)
    return name


_WITH_PORT = re.compile(r'"?(?:\[([0-9A-Fa-f:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5})"?', re.ASCII)
"""An address as some proxies write it, with its port."""


def _without_port(hop: str) -> str:
    match = _WITH_PORT.fullmatch(hop)
    return (match[1] or match[2]) if match else hop


def address(text: str) -> Address | None:
    """The address, of version 4 where it is one in the clothes of version 6; None where it is none."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])  # behind it is the interface of this machine
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed
