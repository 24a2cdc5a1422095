"""Public IP addresses: an alert supplies only a host's name, which may resolve to an address of our own network.

The connector asks this resolver for each connection, without a cache, and connects to one of the returned addresses. So
the checked address is the one that is used, even if the name resolves to another one a moment later.
"""

from __future__ import annotations

import ipaddress
import socket

from aiohttp import abc

from tarsy.transcript import ports

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
            *("192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24"),
            *("203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
            "168.63.129.16/32",  # Azure's own services, of each machine
            *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
        ),
    )
)
"""Source: IANA, IPv4 and IPv6 Special-Purpose Address Registries. Tunnel addresses contain another address."""
_UNICAST = ipaddress.ip_network("2000::/3")
"""The public part of IPv6: the rest is local, mapped, translated or unassigned."""


def is_public(address: str) -> bool:
    """Whether an IP address is public: not private, local, shared or tunnelled."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip.version == 6 and (ip not in _UNICAST or getattr(ip, "scope_id", None)):
        return False
    return ip.is_global and not any(ip in network for network in _NOT_PUBLIC if network.version == ip.version)


def is_loopback(address: str) -> bool:
    """Whether an IP address is this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Resolver(abc.AbstractResolver):
    """A resolver that refuses names with any address that is not public."""

    def __init__(self, names: abc.AbstractResolver, *, loopback: bool) -> None:
        """`names` resolves names; `loopback` allows this machine's own addresses."""
        self._names = names
        self._loopback = loopback

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        """The addresses of `host`. Raises RunbookError if one of them is not allowed."""
        hosts = await self._names.resolve(host, port, family)
        for resolved in hosts:
            if not (is_public(resolved["host"]) or (self._loopback and is_loopback(resolved["host"]))):
                raise ports.RunbookError(f"{host} is at {resolved['host']}, an address that is not public")
        return hosts

    async def close(self) -> None:
        """Close the resolver of names."""
        await self._names.close()
