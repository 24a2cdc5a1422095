"""NetworkPolicies as rules of nftables: one transaction that replaces all rules of before.

What is forwarded from a pod, to a pod or both passes a chain of each isolated side. What the node sends to its pods and
gets of them is not forwarded, so that no policy shuts out probes or the node, as the API has it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence

from tarsy_dev.node.policies import Allowed, Isolation

TABLE = "inet tarsy-policies"


def ruleset(isolations: Sequence[Isolation]) -> str:
    """Return the input of `nft -f -` by which exactly these isolations are in force."""
    chains = {isolation: f"{isolation.direction.lower()}-{isolation.address}" for isolation in isolations}
    lines = [f"table {TABLE}", f"delete table {TABLE}", f"table {TABLE} {{"]
    for isolation, name in chains.items():
        lines += [f"  chain {name} {{", *(f"    {rule}" for rule in _rules(isolation)), "  }"]
    lines += ["  chain forward {", "    type filter hook forward priority 0; policy accept;"]
    lines += ["    ct state established,related accept"]
    # A pod is never shut out of itself, by the way of a Service.
    lines += [
        f"    ip saddr . ip daddr {{ {_list(f'{address} . {address}' for address in _addresses(isolations))} }} accept"
    ]
    for direction, side in (("Egress", "saddr"), ("Ingress", "daddr")):
        jumps = [f"{each.address} : jump {name}" for each, name in chains.items() if each.direction == direction]
        if jumps:
            lines.append(f"    ip {side} vmap {{ {_list(jumps)} }}")
    lines += ["  }", "}"]
    return "\n".join(line for line in lines if "{  }" not in line) + "\n"


def _rules(isolation: Isolation) -> Iterable[str]:
    """The rules of one side; what they let pass goes on to the other side's."""
    side = "saddr" if isolation.direction == "Ingress" else "daddr"
    for allowed in isolation.allowed:
        for peer in _peers(allowed, side):
            for port in _ports(allowed):
                yield " ".join(part for part in (peer, port, "return") if part)
    yield "drop"


def _peers(allowed: Allowed, side: str) -> Iterable[str]:
    if allowed.peers is None:
        yield ""
        return
    whole = [block.network for block in allowed.peers if not block.excluded]
    if whole:
        yield f"ip {side} {{ {_list(_disjoint(whole))} }}"
    for block in allowed.peers:
        if block.excluded:
            yield f"ip {side} {block.network} ip {side} != {{ {_list(_disjoint(block.excluded))} }}"


def _ports(allowed: Allowed) -> Iterable[str]:
    if allowed.ports is None:
        yield ""
        return
    for port in allowed.ports:
        yield f"meta l4proto {port.protocol.lower()} th dport {port.first}-{port.last}"


def _disjoint(networks: Iterable[str]) -> list[str]:
    """A set of nftables holds no network twice, and none inside another."""
    return [str(network) for network in ipaddress.collapse_addresses(map(ipaddress.IPv4Network, networks))]


def _addresses(isolations: Iterable[Isolation]) -> list[str]:
    return list(dict.fromkeys(isolation.address for isolation in isolations))


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)
