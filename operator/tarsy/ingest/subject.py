"""The subject of an alert: the workload that its labels name, as a line for people and as labels; and its summary.

Source of the label syntax: Kubernetes documentation, "Labels and Selectors".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from tarsy.resources import base, investigations

WORKLOADS = ("deployment", "statefulset", "daemonset", "cronjob", "job_name", "pod")
"""The labels that name a workload. The first one that an alert has is used."""
_OBJECTS = ("persistentvolumeclaim", "horizontalpodautoscaler", "poddisruptionbudget", "resourcequota")
"""The labels that name another object of a namespace. The Pod and the node beside it are those of the program that
reports on it, such as the kubelet's."""
_OTHERS = ("persistentvolume", "node", "instance")
"""The labels that name the subject if none of those does."""
_SUBJECTS = (*WORKLOADS[:-1], *_OBJECTS, WORKLOADS[-1], *_OTHERS)
_SUMMARY_READ = 8 * investigations.ALERT_SUMMARY_MAX
"""Characters of an annotation that are masked: more than stay, so that no secret is halved before it is masked."""
_VALUE = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")

SEVERITY, ALERTNAME, NAMESPACE, WORKLOAD = (
    f"{base.GROUP}/{name}" for name in ("severity", "alertname", "namespace", "workload")
)


def target(labels: Mapping[str, str]) -> str:
    """Return the subject of an alert on one line, such as `shop/web-0`; "" if no label names one.

    An object of a namespace follows that. Without one, the subject is a persistent volume, a node, an instance, or the
    namespace alone.
    """
    values = {name: _one_line(labels.get(name, "")) for name in ("namespace", *_SUBJECTS)}
    label = next((name for name in _SUBJECTS if values[name]), "namespace")
    parts = [values[label]] if label in ("namespace", *_OTHERS) else [values["namespace"], values[label]]
    return "/".join(filter(None, parts))[: investigations.TARGET_MAX]


def identifying_labels(labels: Mapping[str, str], *, mask: Callable[[str], str]) -> dict[str, str]:
    """Return the labels that identify an alert, masked: alertname, namespace, and that of its subject."""
    subject_label = next((name for name in _SUBJECTS if labels.get(name, "").strip()), "")
    values = {name: _one_line(mask(labels.get(name, ""))) for name in ("alertname", "namespace", subject_label)}
    return {name: value[: investigations.TARGET_MAX] for name, value in values.items() if value}


def summary_line(summary: object, *, mask: Callable[[str], str] = str) -> str:
    """Return the first line of an annotation that has text, masked and cut; "" if there is none."""
    if not isinstance(summary, str):
        return ""
    return _one_line(mask(summary.lstrip()[:_SUMMARY_READ].partition("\n")[0]))[: investigations.ALERT_SUMMARY_MAX]


def summary_of_data(alert_data: str) -> str:
    """Return the first line of the annotation `summary` of masked alert data; "" if there is none.

    Only alert data that begins with a JSON object has annotations.
    """
    try:
        document, _ = json.JSONDecoder().raw_decode(alert_data)
    except (ValueError, RecursionError):
        return ""
    return summary_of_document(document)


def summary_of_document(document: object, *, mask: Callable[[str], str] = str) -> str:
    """Return the first line of the annotation `summary` of an alert as JSON, masked; "" if there is none."""
    annotations = document.get("annotations") if isinstance(document, dict) else None
    return summary_line(annotations.get("summary"), mask=mask) if isinstance(annotations, dict) else ""


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())


def object_labels(labels: Mapping[str, str], *, mask: Callable[[str, str], str]) -> dict[str, str]:
    """Return the labels of an alert's object: those that Kubernetes accepts and `mask(name, value)` does not change."""
    workload = next((name for name in WORKLOADS if labels.get(name)), WORKLOADS[-1])
    sources = {SEVERITY: "severity", ALERTNAME: "alertname", NAMESPACE: "namespace", WORKLOAD: workload}
    return {
        key: labels[name]
        for key, name in sources.items()
        if _VALUE.fullmatch(labels.get(name, "")) and mask(name, labels[name]) == labels[name]
    }
