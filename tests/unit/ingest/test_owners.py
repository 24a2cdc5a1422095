"""Owners by labels: which thing an alert is about, and that two different things are never one."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.ingest import owners, subject

KSM = {
    "namespace": "monitoring",
    "pod": "prom-kube-state-metrics-5f9b7c6d4-x2x7k",
    "container": "kube-state-metrics",
    "job": "kube-state-metrics",
    "service": "prom-kube-state-metrics",
    "instance": "10.0.0.9:8080",
}
"""The labels of the target, which a metric about a node or a claim does not replace."""
WEB = {"namespace": "shop", "pod": "web-5d8-abcde"}
EXPORTED = {"exported_namespace": "shop", "exported_pod": "web-5d8-abcde", "exported_container": "web"}
"""The metric's own labels, where Prometheus renames them."""

NAMES = st.sampled_from(["a", "b", "web", "web-0", "a.b"])
ODD = st.sampled_from(["", " ", "..", ".", "a/b", "A", "w\u0435b", "web ", "a" * 254, "web\n", "-a", "a..b", "\ud800"])
VALUES = st.one_of(NAMES, ODD, st.text(max_size=5))
LABELS = st.dictionaries(
    st.sampled_from(
        [
            "namespace",
            *subject.WORKLOADS,
            "node",
            "job",
            "uid",
            "persistentvolumeclaim",
            "container",
            "service",
            *EXPORTED,
        ]
    ),
    VALUES,
)


def thing(kind: str, name: str, namespace: str = "shop", group: str = "apps", uid: str = "") -> owners.Thing:
    return owners.Thing(group=group, kind=kind, namespace=namespace, name=name, uid=uid)


POD = thing("Pod", "web-5d8-abcde", group="")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (WEB, POD),
        (WEB | {"deployment": "web"}, thing("Deployment", "web")),
        (WEB | {"uid": "u1"}, thing("Pod", "web-5d8-abcde", group="", uid="u1")),
        (KSM | EXPORTED, POD),
        (KSM | {"exported_namespace": "shop", "deployment": "web"}, thing("Deployment", "web")),
        (KSM | {"exported_namespace": "shop", "job_name": "backup"}, thing("Job", "backup", group="batch")),
        (WEB | {"deployment": ""}, POD),
        ({"node": "n1"}, thing("Node", "n1", "", "")),
        (KSM | {"exported_node": "n1", "node": "n9"}, thing("Node", "n1", "", "")),
        ({"namespace": "shop", "node": "n1"}, thing("Node", "n1", "shop", "")),
        ({"namespace": "m", "service": "x-kube-state-metrics", "node": "n1"}, thing("Node", "n1", "m", "")),
    ],
)
def test_labels_name_the_thing_that_the_metric_is_about(labels: dict[str, str], expected: owners.Thing) -> None:
    assert owners.named(labels) == expected


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ({}, "no label names a workload or a node"),
        ({"job": "kube-state-metrics", "instance": "10.0.0.9:8080"}, "no label names a workload or a node"),
        ({"pod": "web-0"}, "label pod is there, but no label names the namespace"),
        ({"pod": "web-0", "namespace": ""}, "no label names the namespace"),
        (KSM | {"exported_pod": "web-0"}, "no label names the namespace"),
        (KSM | {"exported_namespace": "shop", "persistentvolumeclaim": "data"}, "no label names a workload or a node"),
        (KSM | {"exported_namespace": "shop", "node": "n1"}, "no label names a workload or a node"),
        ({"namespace": "shop", "persistentvolumeclaim": "data", "node": "n1"}, "label persistentvolumeclaim names"),
        ({"namespace": "shop", "service": "checkout", "node": "n1"}, "node may be that of a target of the service"),
        ({"namespace": "shop", "serviceaccount": "web", "node": "n1"}, "label serviceaccount names another thing"),
        ({"namespace": "shop", "phase": "Terminating", "node": "n1"}, "label phase names another thing"),
        ({"namespace": "shop", "pod": ".."}, "label pod is no name of an object"),
        ({"namespace": "../x", "pod": "web"}, "label namespace is no name of an object"),
        ({"namespace": "shop", "deployment": "w\u0435b"}, "label deployment is no name"),
        ({"namespace": "shop", "deployment": "a" * 254}, "label deployment is no name"),
        ({"node": "10.0.0.1:9100"}, "label node is no name"),
    ],
)
def test_ambiguous_labels_name_nothing(labels: dict[str, str], why: str) -> None:
    with pytest.raises(owners.UnknownError, match=re.escape(why)) as caught:
        owners.named(labels)
    assert caught.value.kind == "unnamed"


@given(LABELS)
def test_a_thing_has_the_name_and_the_namespace_of_labels_and_can_be_part_of_a_path(labels: dict[str, str]) -> None:
    try:
        owner = owners.named(labels)
    except owners.UnknownError:
        return
    assert owner.name in labels.values()
    assert owner.namespace in ("", *labels.values())
    assert (owner.namespace == "") <= (owner.kind == "Node")
    for name in filter(None, (owner.namespace, owner.name)):
        assert re.fullmatch(r"[a-z0-9][-.a-z0-9]{0,252}", name)
        assert ".." not in name
    assert owner.uid == labels.get("uid", "")


@given(LABELS, LABELS)
def test_two_alerts_have_same_owner_only_if_identifying_labels_are_equal(
    first: dict[str, str], two: dict[str, str]
) -> None:
    def identity(labels: dict[str, str]) -> Any:
        """The labels that name a thing, where no target has labels of its own."""
        label = next((label for label in subject.WORKLOADS if labels.get(label)), "node")
        return label, labels.get(label), labels.get("namespace") or "", labels.get("uid", "")

    def owner_of(labels: dict[str, str]) -> owners.Thing | None:
        try:
            return owners.named(labels)
        except owners.UnknownError:
            return None

    first, two = ({k: v for k, v in labels.items() if not k.startswith("exported_")} for labels in (first, two))
    if owner_of(first) and owner_of(two):
        assert (owner_of(first) == owner_of(two)) == (identity(first) == identity(two))


def test_pod_of_kube_state_metrics_or_node_exporter_is_recognized_by_its_names() -> None:
    assert owners.is_like_node_exporter(KSM | {"node": "n1"})
    assert owners.is_like_node_exporter(KSM | {"container": "kube-rbac-proxy-main"})
    assert owners.is_like_node_exporter({"pod": "node-exporter-x7k2p", "job": "node-exporter"})
    for other in (
        {"container": "web"},
        {"pod": "web-5d8-abcde"},
        {"pod": "kube-state-metrics-reader-of-many-things"},
        {"exported_pod": "web-0"},
        {"pod": ""},
    ):
        assert not owners.is_like_node_exporter(KSM | other), other
    assert not owners.is_like_node_exporter({"pod": "kube-state-metrics-0", "job": "prometheus", "service": "x"})
    assert not owners.is_like_node_exporter({})


def test_a_node_that_an_exporter_names_has_no_namespace() -> None:
    assert owners.node(KSM | {"node": "n1"}, of_exporter=True) == thing("Node", "n1", "", "")
    with pytest.raises(owners.UnknownError, match="label persistentvolume names another thing"):
        owners.node(KSM | {"node": "n1", "persistentvolume": "pv"}, of_exporter=True)


def test_exporters_are_recognized_by_labels_and_images() -> None:
    for program in ("kube-state-metrics", "node-exporter", "prometheus-node-exporter", "postgres_exporter", "exporter"):
        assert owners.is_exporter(["web", program]), program
    assert owners.is_node_exporter(["kube-state-metrics"])
    assert not owners.is_node_exporter(["blackbox-exporter"])
    for program in (
        "cadvisor",
        "argocd-application-controller",
        "cert-manager-controller",
        "opentelemetry-collector-k8s",
    ):
        assert owners.is_exporter([program]), program
        assert not owners.is_node_exporter([program])
    for program in (
        *("web", "my-cadvisor-reader", "cert-manager-webhook", "exporters", "kube-state-metrics-reader"),
        "exporter-web",
    ):
        assert not owners.is_exporter([program]), program
