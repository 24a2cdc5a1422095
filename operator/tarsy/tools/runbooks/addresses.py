"""Addresses that are anybody's: a name may stand for one that is ours, and a name is all that an alert has to give.

What is connected to is the very address that was looked at: the connector asks this resolver for each connection, keeps
nothing of what it says, and connects to one of the addresses that it was told. So a name that stands for something else
a moment later gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket

from aiohttp import abc

from tarsy.transcript import ports

_NOT_FOR_ALL = tuple(
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
"""Source: IANA, IPv4 and IPv6 Special-Purpose Address Registries. What is tunnelled hides an address in another."""
_UNICAST = ipaddress.ip_network("2000::/3")
"""The public part of IPv6: the rest is local, mapped, translated or unassigned."""


def is_anybodys(address: str) -> bool:
    """Whether an address, as numbers, is one of the public network: not private, local, shared or tunnelled."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip.version == 6 and (ip not in _UNICAST or getattr(ip, "scope_id", None)):
        return False
    return ip.is_global and not any(ip in network for network in _NOT_FOR_ALL if network.version == ip.version)


def is_loopback(address: str) -> bool:
    """Whether an address, as numbers, is this machine's own."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class Resolver(abc.AbstractResolver):
    """Tells what names stand for, and refuses those that stand for what is not anybody's, be it among others."""

    def __init__(self, names: abc.AbstractResolver, *, loopback: bool) -> None:
        """`names` knows what they stand for; `loopback` lets this machine itself pass."""
        self._names = names
        self._loopback = loopback

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[abc.ResolveResult]:
        """The addresses of `host`; a RunbookError where one of them is to be kept away from."""
        hosts = await self._names.resolve(host, port, family)
        for resolved in hosts:
            if not (is_anybodys(resolved["host"]) or (self._loopback and is_loopback(resolved["host"]))):
                raise ports.RunbookError(f"{host} is at {resolved['host']}, an address that is not public")
        return hosts

    async def close(self) -> None:
        """Close what knows the names."""
        await self._names.close()
