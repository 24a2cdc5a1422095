"""The kubelet and kube-proxy of the node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tarsy_dev import assets, children
from tarsy_dev.node import addresses, cgroups, networks, runtime

# What the kubelet sets for the whole machine, and here finds set, in files of its own (namespaces.py).
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


def start(*, kubeconfig: Path, authority: Path, cgroup: str, log: Path, settings: Mapping[str, Any]) -> children.Child:
    """Start the kubelet; containerd answers already. `settings` go before those of its configuration here."""
    config = _write("kubelet.json", {**_config(authority, cgroup), **settings})
    flags = {
        "config": config,
        "kubeconfig": kubeconfig,
        "hostname-override": addresses.NODE,
        "node-ip": addresses.NODE_ADDRESS,
    }
    return _start("kubelet", flags, log)


def start_proxy(*, kubeconfig: Path, log: Path) -> children.Child:
    """Start kube-proxy."""
    config = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clusterCIDR": addresses.PODS,
        "hostnameOverride": addresses.NODE,
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        # 0 leaves alone what belongs to the whole machine.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
    return _start("kube-proxy", {"config": _write("kube-proxy.json", config)}, log)


def _start(program: str, flags: dict[str, Any], log: Path) -> children.Child:
    command = [*networks.INSIDE, str(assets.program(program)), *(f"--{flag}={value}" for flag, value in flags.items())]
    return children.start(command, name=program, log=log, cwd=Path("/"))


def _write(name: str, config: dict[str, Any]) -> Path:
    path = Path("/run") / name
    path.write_text(json.dumps(config))
    return path


def _config(authority: Path, cgroup: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{runtime.SOCKET}",
        "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": str(authority)}},
        "clusterDNS": [addresses.DNS],
        "clusterDomain": "cluster.local",
        "resolvConf": str(networks.resolv_conf()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.path(cgroup),
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "protectKernelDefaults": True,
        # Images come from archives and cannot be pulled again, so none is ever removed.
        "imageGCHighThresholdPercent": 100,
        # Sizes rather than shares: the disk is the machine's.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi", "imagefs.available": "1Gi"},
        "nodeStatusReportFrequency": "10s",
        "syncFrequency": "10s",
        "serializeImagePulls": False,
    }
