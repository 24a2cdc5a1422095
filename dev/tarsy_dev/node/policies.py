"""What NetworkPolicies allow, as the API documents it: pure functions from objects to flows.

A pod is isolated in a direction when a policy of its namespace selects it and names that direction. It is then reached
by, or reaches, only what one of these policies allows. A connection between two pods needs the consent of both sides.
Policies know pods by the addresses that they have now, and add up; none forbids what another allows.

Left open by the API, and done here as most network plugins do: an `ipBlock` matches pods too; addresses of Services are
matched after they were replaced by those of pods; connections that are open stay open; protocols other than TCP, UDP
and SCTP pass only where a rule names no ports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Object = Mapping[str, Any]
Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True, order=True)
class Ports:
    """Ports of one protocol: `first` to `last`, all of them by default."""

    protocol: str
    first: int = 0
    last: int = 65535


@dataclass(frozen=True)
class Block:
    """Addresses: a network without some parts of it."""

    network: str
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Allowed:
    """Connections that are allowed: with these peers, to these ports. None is all, and an empty tuple nothing."""

    peers: tuple[Block, ...] | None
    ports: tuple[Ports, ...] | None


@dataclass(frozen=True)
class Isolation:
    """What a pod that is isolated in a direction is still allowed there."""

    address: str
    direction: Direction
    allowed: tuple[Allowed, ...]


def isolations(pods: Sequence[Object], namespaces: Sequence[Object], policies: Sequence[Object]) -> list[Isolation]:
    """Return the isolation of each pod and direction that a policy selects; the rest is open."""
    labels = {namespace["metadata"]["name"]: _labels(namespace) for namespace in namespaces}
    reachable = [pod for pod in pods if _has_own_address(pod)]
    found = []
    for pod in reachable:
        selecting = [policy for policy in policies if _selects(policy, pod)]
        for direction in ("Ingress", "Egress"):
            naming = [policy for policy in selecting if direction in _directions(policy)]
            if naming:
                allowed = [each for policy in naming for each in _allowed(policy, direction, pod, reachable, labels)]
                found.append(Isolation(pod["status"]["podIP"], direction, tuple(allowed)))
    return found


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Return whether a label selector matches; an empty one matches everything."""
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for requirement in selector.get("matchExpressions") or ():
        value, values = labels.get(requirement["key"]), requirement.get("values") or ()
        is_met = {
            "In": value is not None and value in values,
            "NotIn": value is None or value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[requirement["operator"]]
        if not is_met:
            return False
    return True


def _has_own_address(pod: Object) -> bool:
    """A pod on the node's network is the node to policies, and one that has ended may have lent its address on."""
    status = pod.get("status", {})
    ended = status.get("phase") in {"Succeeded", "Failed"}
    return bool(status.get("podIP")) and not ended and not pod["spec"].get("hostNetwork")


def _labels(thing: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = thing["metadata"].get("labels") or {}
    return labels


def _selects(policy: Object, pod: Object) -> bool:
    same_namespace = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same_namespace and matches(policy["spec"].get("podSelector") or {}, _labels(pod))


def _directions(policy: Object) -> Sequence[str]:
    """Without `policyTypes` a policy is about ingress, and about egress if it has rules for it."""
    spec = policy["spec"]
    return spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])


def _allowed(
    policy: Object, direction: Direction, pod: Object, pods: Iterable[Object], labels: Mapping[str, Mapping[str, str]]
) -> Iterable[Allowed]:
    rules, side = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    for rule in policy["spec"].get(rules) or ():
        named = [port for port in rule.get("ports") or () if isinstance(port.get("port"), str)]
        numbered = tuple(_numbered(port) for port in rule.get("ports") or () if port not in named)
        peers = rule.get(side) or None
        chosen = [other for other in pods if peers is None or _is_peer(other, peers, policy, labels)]
        blocks = _addresses(chosen) + _ip_blocks(peers or ())
        addresses = None if peers is None else tuple(blocks)
        if not rule.get("ports"):
            yield Allowed(addresses, None)
        if numbered:
            yield Allowed(addresses, numbered)
        for port in named:
            # The name of a port of whoever is called: of the pod itself, or of each pod that it may call.
            if direction == "Ingress":
                yield Allowed(addresses, _of_name(port, pod))
            else:
                yield from (Allowed(_addresses([other]), _of_name(port, other)) for other in chosen)


def _is_peer(pod: Object, peers: Iterable[Object], policy: Object, labels: Mapping[str, Mapping[str, str]]) -> bool:
    namespace = pod["metadata"]["namespace"]
    for peer in peers:
        if "ipBlock" in peer:
            continue
        if peer.get("namespaceSelector") is None:
            in_namespace = namespace == policy["metadata"]["namespace"]
        else:
            in_namespace = matches(peer["namespaceSelector"], labels.get(namespace, {}))
        if in_namespace and matches(peer.get("podSelector") or {}, _labels(pod)):
            return True
    return False


def _addresses(pods: Iterable[Object]) -> tuple[Block, ...]:
    return tuple(Block(pod["status"]["podIP"]) for pod in pods)


def _ip_blocks(peers: Iterable[Object]) -> tuple[Block, ...]:
    """The blocks of IPv4: nothing here has another address."""
    blocks = [peer["ipBlock"] for peer in peers if "ipBlock" in peer]
    return tuple(Block(block["cidr"], tuple(block.get("except") or ())) for block in blocks if ":" not in block["cidr"])


def _numbered(port: Object) -> Ports:
    protocol = port.get("protocol", "TCP")
    first = port.get("port")
    return Ports(protocol) if first is None else Ports(protocol, first, port.get("endPort", first))


def _of_name(port: Object, pod: Object) -> tuple[Ports, ...]:
    """The ports of a pod's containers that have this name and protocol."""
    return tuple(
        Ports(port.get("protocol", "TCP"), known["containerPort"], known["containerPort"])
        for container in pod["spec"]["containers"]
        for known in container.get("ports") or ()
        if known.get("name") == port["port"] and known.get("protocol", "TCP") == port.get("protocol", "TCP")
    )
