"""The subject of an alert: the workload that its labels name, as a line for people and as Kubernetes labels.

Source of the label syntax: Kubernetes documentation, "Labels and Selectors".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tarsy.resources import base, investigations

WORKLOADS = ("deployment", "statefulset", "daemonset", "cronjob", "job_name", "pod")
"""The labels that name a workload. The first one that an alert has is used."""
_OTHERS = ("node", "instance")
"""The labels that name the subject if no label names a workload."""
_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

SEVERITY, ALERTNAME, NAMESPACE, WORKLOAD = (
    f"{base.GROUP}/{name}" for name in ("severity", "alertname", "namespace", "workload")
)


def target(labels: Mapping[str, str]) -> str:
    """Return the subject of an alert on one line, such as `shop/web-0`; "" if no label names one.

    A workload follows its namespace. Without a workload, the subject is a node, an instance, or the namespace alone.
    """

    def one_line(text: str) -> str:
        return " ".join("".join(character if character.isprintable() else " " for character in text).split())

    values = {name: one_line(labels.get(name, "")) for name in ("namespace", *WORKLOADS, *_OTHERS)}
    workload = next((values[name] for name in WORKLOADS if values[name]), "")
    other = next((values[name] for name in _OTHERS if values[name]), "")
    target_name = "/".join(filter(None, [values["namespace"], workload])) if workload else other or values["namespace"]
    return target_name[: investigations.TARGET_MAX]


def object_labels(labels: Mapping[str, str], *, mask: Callable[[str, str], str]) -> dict[str, str]:
    """Return the labels of an alert's object: those that Kubernetes accepts and `mask(name, value)` does not change."""
    workload = next((name for name in WORKLOADS if labels.get(name)), WORKLOADS[-1])
    sources = {SEVERITY: "severity", ALERTNAME: "alertname", NAMESPACE: "namespace", WORKLOAD: workload}
    return {
        key: labels[name]
        for key, name in sources.items()
        if _VALUE.fullmatch(labels.get(name, "")) and mask(name, labels[name]) == labels[name]
    }
