"""Owners: the thing in a cluster that an alert is about, by its labels.

Labels come from the metric or from the target that was scraped. Of kube-state-metrics and node-exporter, `pod` and
`namespace` may be the exporter's own, while the metric is about a node. If the metric has a label that the target has
too, Prometheus keeps the metric's (`honor_labels`), or renames it to `exported_...`: then `pod`, `node` and
`namespace` are the target's, and only the renamed ones count.

Two different things must never be taken for one. So an alert whose labels are ambiguous has no known owner.

Source: Prometheus documentation, "Configuration", `honor_labels`; kube-state-metrics, "Exposed metrics".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tarsy.ingest import subject

Unknown: TypeAlias = Literal["unnamed", "elsewhere", "absent", "forbidden", "unavailable"]
"""Why an owner is unknown: no label names it; it is in another cluster; the cluster does not have it; the right to
read it is missing; the cluster does not answer in time."""

_KINDS = {
    "deployment": ("apps", "Deployment"),
    "statefulset": ("apps", "StatefulSet"),
    "daemonset": ("apps", "DaemonSet"),
    "cronjob": ("batch", "CronJob"),
    "job_name": ("batch", "Job"),
    "pod": ("", "Pod"),
}
"""API group and kind by label. The label `job` is not among them: it names the scrape."""
_OF_TARGETS = ("namespace", "pod", "node")
"""The labels that targets have as well."""
_OTHER_OBJECTS = (
    "certificatesigningrequest",
    "clusterrole",
    "clusterrolebinding",
    "configmap",
    "customresource_kind",
    "endpointslice",
    "horizontalpodautoscaler",
    "ingress",
    "ingressclass",
    "lease",
    "limitrange",
    "mutatingwebhookconfiguration",
    "networkpolicy",
    "persistentvolume",
    "persistentvolumeclaim",
    "phase",  # of a namespace
    "poddisruptionbudget",
    "replicaset",
    "replicationcontroller",
    "resourcequota",
    "role",
    "rolebinding",
    "secret",
    "serviceaccount",
    "storageclass",
    "validatingwebhookconfiguration",
    "verticalpodautoscaler",
    "volumeattachment",
)
"""Labels of metrics about other things than nodes. Their `node` is the target's, as with the kubelet's volumes."""
_NODE_EXPORTERS = ("kube-state-metrics", "node-exporter")
"""Programs whose metrics are about nodes, among others."""
_EXPORTER = re.compile(
    r"(?:.*[-_])?(?:kube-state-metrics|exporter|pushgateway|collector(?:-contrib|-k8s)?)"
    r"|cadvisor|telegraf|alloy|(?:grafana|opentelemetry|otel)-agent|otelcol(?:-contrib)?|node-problem-detector|opencost"
    r"|argocd-application-controller|cert-manager(?:-controller)?"
)
"""Programs whose metrics are about other things than their pods, though some of their alerts may be about these."""
_POD_OF_NODE_EXPORTER = re.compile(rf"(?:.*-)?(?:{'|'.join(_NODE_EXPORTERS)})(?:-[a-z0-9]+){{0,2}}")
_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_NAME_MAX = 253


class UnknownError(Exception):
    """The owner of an alert is not known; the message says why."""

    def __init__(self, kind: Unknown, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, kw_only=True)
class Thing:
    """An object of a cluster, as far as its name tells it from others."""

    group: str
    """The API group, without the version; "" is the core group."""
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    """The uid that a label gives it; "" if there is none, or if the object was looked up."""

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(filter(None, (self.namespace, self.name)))}"


def named(labels: Mapping[str, str]) -> Thing:
    """Return the thing that an alert's labels name; raises UnknownError if none does.

    A Pod or a Job may have a controller, and a Pod may be an exporter's (`is_exporter`): then the thing is another.
    """
    own = _metric_labels(labels)
    label = next((label for label in subject.WORKLOADS if label in own), None)
    if label is None:
        return node(labels)
    if not own.get("namespace"):
        raise UnknownError("unnamed", f"label {label} is there, but no label names the namespace")
    group, kind = _KINDS[label]
    name, namespace = _checked(label, own), _checked("namespace", own)
    return Thing(group=group, kind=kind, namespace=namespace, name=name, uid=labels.get("uid", ""))


def node(labels: Mapping[str, str], *, of_exporter: bool = False) -> Thing:
    """Return the node that an alert's labels name; raises UnknownError if it is about another thing, or none.

    `of_exporter`: its pod and namespace are an exporter's.
    """
    own = _metric_labels(labels)
    if "node" not in own:
        raise UnknownError("unnamed", "no label names a workload or a node")
    if other := next((other for other in _OTHER_OBJECTS if labels.get(other)), None):
        raise UnknownError("unnamed", f"label {other} names another thing than the node")
    is_of_metric = of_exporter or "exported_node" in labels or _is_scrape_of_node_exporter(labels)
    if labels.get("service") and not is_of_metric:
        raise UnknownError("unnamed", "label node may be that of a target of the service")
    # A namespace that may be the metric's own: the alert may be about a part of the node, or about the namespace.
    namespace = "" if of_exporter else own.get("namespace", "")
    name = _checked("node", own)
    return Thing(group="", kind="Node", namespace=namespace, name=name, uid=labels.get("uid", ""))


def is_like_node_exporter(labels: Mapping[str, str]) -> bool:
    """Whether the label `pod` seems to be that of kube-state-metrics or node-exporter, by names alone."""
    if labels.get("exported_pod") or not _POD_OF_NODE_EXPORTER.fullmatch(labels.get("pod", "")[: _NAME_MAX + 1]):
        return False
    container = labels.get("container", "")
    if container and not container.startswith("kube-rbac-proxy"):
        return container in _NODE_EXPORTERS
    return _is_scrape_of_node_exporter(labels)


def is_exporter(programs: Iterable[str]) -> bool:
    """Whether a pod's programs, by its labels and images, report on other things than the pod."""
    return any(_EXPORTER.fullmatch(program) for program in programs)


def is_node_exporter(programs: Iterable[str]) -> bool:
    """Whether a pod's programs are kube-state-metrics or node-exporter, which report on nodes."""
    return any(program.endswith(_NODE_EXPORTERS) for program in programs)


def _is_scrape_of_node_exporter(labels: Mapping[str, str]) -> bool:
    return any(labels.get(label, "").endswith(_NODE_EXPORTERS) for label in ("job", "service"))


def _metric_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of a thing that are the metric's, and those of which it cannot be known."""
    names = (*_OF_TARGETS, *subject.WORKLOADS)
    exported = {name: labels[f"exported_{name}"] for name in names if labels.get(f"exported_{name}")}
    others = [name for name in names if labels.get(name) and not (exported and name in _OF_TARGETS)]
    return {name: labels[name] for name in others} | exported


def _checked(label: str, own: Mapping[str, str]) -> str:
    """Return the value of a label if an object may have such a name."""
    value = own[label]
    if len(value) > _NAME_MAX or not _SUBDOMAIN.fullmatch(value):
        raise UnknownError("unnamed", f"label {label} is no name of an object")
    return value
