"""The subject of an alert: a line for people, and labels by which objects are selected."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.ingest import subject
from tarsy.resources import investigations

VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")


def unmasked(_: str, value: str) -> str:
    return value


@pytest.mark.parametrize(
    ("labels", "target"),
    [
        ({"namespace": "shop", "pod": "web-0"}, "shop/web-0"),
        ({"namespace": "shop", "pod": "web-7c5-x", "deployment": "web"}, "shop/web"),
        ({"namespace": "shop", "statefulset": "db", "daemonset": "log"}, "shop/db"),
        ({"namespace": "shop", "job_name": "c-1", "pod": "c-1-x"}, "shop/c-1"),
        ({"namespace": "shop", "deployment": "", "pod": "web-0"}, "shop/web-0"),
        ({"pod": "web-0"}, "web-0"),
        (
            {"namespace": "shop", "persistentvolumeclaim": "data", "node": "n1", "instance": "10.0.0.1:10250"},
            "shop/data",
        ),
        ({"namespace": "shop", "horizontalpodautoscaler": "web", "pod": "kube-state-metrics-5f-x"}, "shop/web"),
        ({"namespace": "shop", "statefulset": "db", "persistentvolumeclaim": "data"}, "shop/db"),
        (
            {"persistentvolume": "pv-1", "phase": "Failed", "instance": "10.0.0.1:8080", "namespace": "monitoring"},
            "pv-1",
        ),
        ({"namespace": "shop"}, "shop"),
        ({"node": "worker-1", "instance": "10.0.0.1:9100", "namespace": "monitoring"}, "worker-1"),
        ({"instance": "10.0.0.1:9100"}, "10.0.0.1:9100"),
        ({"namespace": "shop", "pod": "web\n-0\x1b[31m"}, "shop/web -0 [31m"),
        ({"alertname": "Watchdog"}, ""),
        ({}, ""),
    ],
)
def test_target_is_the_workload_behind_its_namespace(labels: dict[str, str], target: str) -> None:
    assert subject.target(labels) == target


def test_volumes_reported_by_same_node_are_different_subjects() -> None:
    def labels(claim: str) -> dict[str, str]:
        reported = {"alertname": "KubePersistentVolumeFillingUp", "namespace": "shop", "persistentvolumeclaim": claim}
        return subject.identifying_labels(reported | {"node": "n1"}, mask=str)

    assert labels("a") != labels("b")


@given(
    st.dictionaries(st.sampled_from(["severity", "alertname", "namespace", *subject.WORKLOADS]), st.text(max_size=80))
)
def test_object_labels_have_values_that_kubernetes_takes(labels: dict[str, str]) -> None:
    for value in subject.object_labels(labels, mask=unmasked).values():
        assert VALUE.fullmatch(value)
        assert 0 < len(value) <= 63
    target = subject.target(labels)
    assert len(target) <= investigations.TARGET_MAX
    assert target.isprintable()


@pytest.mark.parametrize(
    ("alert_data", "summary"),
    [
        ('{"annotations": {"summary": "Disk is full\\nnow"}}', "Disk is full"),
        ('{"annotations": {"summary": "a"}}\n{"receiver": "b"}', "a"),
        ('{"annotations": {"summary": ["a"]}}', ""),
        ('{"annotations": ["summary"]}', ""),
        ('{"annotations": {}}', ""),
        ('["summary"]', ""),
        ("summary: a", ""),
        ("[" * 100_000, ""),
        ('{"annotations": {"summary": "' + "x" * 100_000 + '"}}', "x" * investigations.ALERT_SUMMARY_MAX),
        ("", ""),
    ],
)
def test_summary_is_the_first_line_of_the_annotation(alert_data: str, summary: str) -> None:
    assert subject.summary_of_data(alert_data) == summary


def test_identifying_labels_are_masked_before_they_are_cut() -> None:
    secret = "x" * 250 + "secret"
    labels = {"alertname": secret, "pod": " ", "node": "n\n1", "team": "shop"}

    identifying = subject.identifying_labels(labels, mask=lambda text: text.replace(secret, "[MASKED]"))

    assert identifying == {"alertname": "[MASKED]", "node": "n 1"}
