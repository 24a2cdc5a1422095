"""The two networks of a node: the control plane's, which is init's own, and the one of the node and its pods.

A pair of interfaces joins them. Neither has a way out: what is for other addresses is unreachable.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tarsy_dev import controlplane
from tarsy_dev.node import addresses

NODE = "node"
"""The name of the node's network, as `ip netns` knows it."""
INSIDE = ["nsenter", f"--net=/run/netns/{NODE}", "--"]
"""The start of a command in the node's network. Not `ip netns exec`, which hides the cgroups."""


def make() -> None:
    """Make the node's network and the interfaces of both. /run has to be init's own."""
    _ip("link set lo up")
    _ip(f"netns add {NODE}")
    _ip(f"link add cluster0 type veth peer name uplink netns {NODE}")
    _ip(f"address add {addresses.CONTROL_PLANE}/{addresses.LINK} dev cluster0")
    _ip(f"address add {addresses.OUTSIDE}/32 dev lo")
    _ip("link set cluster0 up")
    _ip("link set lo up", node=True)
    _ip(f"address add {addresses.NODE_ADDRESS}/{addresses.LINK} dev uplink", node=True)
    _ip("link set uplink up", node=True)
    for network in (addresses.PODS, controlplane.SERVICES):
        _ip(f"route add {network} via {addresses.NODE_ADDRESS}")
    _ip(f"route add {addresses.OUTSIDE_NETWORK} via {addresses.CONTROL_PLANE}", node=True)
    for is_node in (False, True):
        _ip("route add unreachable default", node=is_node)
    subprocess.run([*INSIDE, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1"], check=True)


def resolv_conf() -> Path:
    """Write the node's list of name servers, which is empty, and return its path."""
    path = Path("/run/resolv.conf")
    path.write_text("# The node knows no names. Pods ask CoreDNS.\n")
    return path


def _ip(command: str, *, node: bool = False) -> None:
    subprocess.run([*(INSIDE if node else []), "ip", *command.split()], check=True)
