"""Label and field selectors of recorded worlds."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.evaluation import selectors

KEYS = st.sampled_from(["app", "tier", "k8s.io/name"])
VALUES = st.sampled_from(["", "web", "db-1", "x.y"])
LABELS = st.dictionaries(KEYS, VALUES)


@given(LABELS, KEYS, st.lists(VALUES, min_size=1))
def test_each_selector_operator_matches_as_in_kubernetes(labels: dict[str, str], key: str, values: list[str]) -> None:
    listed = ", ".join(values)
    assert selectors.labels(f"{key}={values[0]}")(labels) is (labels.get(key) == values[0])
    assert selectors.labels(f"{key} == {values[0]}")(labels) is (labels.get(key) == values[0])
    assert selectors.labels(f"{key}!={values[0]}")(labels) is (labels.get(key) != values[0])
    assert selectors.labels(f"{key} in ({listed})")(labels) is (key in labels and labels[key] in values)
    assert selectors.labels(f"{key} notin ({listed})")(labels) is (labels.get(key) not in values)
    assert selectors.labels(key)(labels) is (key in labels)
    assert selectors.labels(f"!{key}")(labels) is (key not in labels)


@given(LABELS, LABELS)
def test_requirements_are_joined_by_and(labels: dict[str, str], wanted: dict[str, str]) -> None:
    selector = ",".join(f"{key}={value}" for key, value in wanted.items())
    assert selectors.labels(selector)(labels) is (wanted.items() <= labels.items())


@pytest.mark.parametrize("selector", ["a in b", "a=b=c", "a in (b", "=b", "a=b c", "a,,b", "a>1"])
def test_a_label_selector_that_the_api_server_refuses_is_refused(selector: str) -> None:
    with pytest.raises(selectors.SelectorError):
        selectors.labels(selector)


@given(st.text(max_size=40))
def test_any_text_is_a_label_selector_or_an_error(text: str) -> None:
    with contextlib.suppress(selectors.SelectorError):
        selectors.labels(text)({"a": "b"})


POD = {"metadata": {"name": "web-0", "namespace": "shop"}, "spec": {"nodeName": "n"}, "status": {"phase": "Failed"}}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ("", True),
        ("status.phase=Failed", True),
        ("status.phase!=Running,spec.nodeName=n", True),
        ("status.phase=Failed,metadata.name=other", False),
        ("spec.hostNetwork=false", True),
        ("spec.serviceAccountName=", True),
    ],
)
def test_fields_are_compared_as_texts(selector: str, *, is_selected: bool) -> None:
    assert selectors.fields(selector, group="", resource="pods")(POD) is is_selected


def test_an_unknown_field_is_refused_with_the_api_servers_message() -> None:
    with pytest.raises(selectors.SelectorError, match=r"^field label not supported: spec\.replicas$"):
        selectors.fields("spec.replicas=1", group="apps", resource="deployments")


def test_events_are_selected_by_the_object_that_they_are_about() -> None:
    event = {"involvedObject": {"kind": "Pod", "name": "web-0"}, "type": "Warning", "source": {"component": "kubelet"}}
    selects = selectors.fields("involvedObject.name=web-0,type=Warning,source=kubelet", group="", resource="events")
    assert selects(event)
    assert not selects({**event, "type": "Normal"})
