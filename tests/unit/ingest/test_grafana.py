"""Payloads as Grafana's documentation has them, release by release, and what is none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from tarsy.config.model import webhooks
from tarsy.ingest import alertmanager, formats, grafana, manifest
from tarsy.ingest import payload as payloads

NAMES = [
    "grafana-9-webhook-firing",
    "grafana-10-webhook-test",
    "grafana-11-webhook-mixed",
    "grafana-12-webhook-firing",
    "grafana-12-webhook-resolved",
]


def recorded(captures: Path, name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((captures / f"grafana/{name}.json").read_bytes())
    return loaded


@pytest.fixture
def payload(captures: Path) -> dict[str, Any]:
    """A notification of one firing alert, to be changed."""
    return recorded(captures, "grafana-12-webhook-firing")


def parse(payload: object) -> alertmanager.Notification:
    return grafana.parse(json.dumps(payload).encode())


def made(notification: alertmanager.Notification) -> dict[str, Any]:
    """The spec of its first alert's object."""
    draft = manifest.draft_from_alert(
        notification.readable[0],
        manifest.notification_data(notification, mask=str),
        sent_by="grafana",
        alert_type="A",
        namespace="tarsy",
        author="api-client",
        mask=str,
    )
    spec: dict[str, Any] = draft.manifest["spec"]
    return spec


@pytest.mark.parametrize("name", NAMES)
def test_every_notification_is_read_alert_by_alert(captures: Path, name: str) -> None:
    sent = recorded(captures, name)
    notification = parse(sent)
    assert [alert.raw for alert in notification.readable] == sent["alerts"]
    assert [alert.status for alert in notification.readable] == [alert["status"] for alert in sent["alerts"]]
    assert [manifest.fingerprint(alert) for alert in notification.readable] == [
        alert["fingerprint"] for alert in sent["alerts"]
    ]
    assert (notification.receiver, notification.group_labels) == (sent["receiver"], sent["groupLabels"])
    assert notification.truncated_alerts == sent["truncatedAlerts"]


def test_alert_start_time_from_grafana_is_read_in_any_time_zone(payload: dict[str, Any]) -> None:
    (alert,) = parse(payload).readable
    assert alert.starts_at.astimezone(UTC) == datetime(2026, 11, 21, 7, 51, 3, 157076, tzinfo=UTC)


def test_resolved_alert_has_same_fingerprint_and_start_as_firing_alert(captures: Path) -> None:
    fired, resolved = (parse(recorded(captures, f"grafana-12-webhook-{status}")) for status in ("firing", "resolved"))
    first, other = fired.readable[0], resolved.readable[0]
    assert (first.status, other.status) == ("firing", "resolved")
    assert (manifest.fingerprint(first), first.starts_at) == (manifest.fingerprint(other), other.starts_at)


def test_fields_of_grafana_alone_are_in_the_alerts_data(payload: dict[str, Any]) -> None:
    spec = made(parse(payload))
    alert_data = json.loads(spec["alertData"])
    for field in ("values", "valueString", "dashboardURL", "panelURL", "silenceURL", "imageURL", "orgId"):
        assert alert_data[field] == payload["alerts"][0][field]
    assert (alert_data["receiver"], alert_data["externalURL"]) == ("tarsy", "https://grafana.example.com/")
    assert spec["source"]["type"] == "grafana"
    assert spec["source"]["groupKey"] == payload["groupKey"]
    assert spec["runbookURL"] == "https://example.com/rb.md"
    assert spec["severity"] == "critical"
    assert manifest.alert_type(parse(payload).readable[0], webhooks.Ingest()) == "pod-crash"


@pytest.mark.parametrize(
    ("external", "sent", "expected"),
    [
        ("https://grafana.example.com/", "?orgId=1", "https://grafana.example.com/?orgId=1"),
        ("https://example.com/grafana/", "alerting/x/view", "https://example.com/grafana/alerting/x/view"),
        ("https://grafana.example.com/", "https://other.example.com/x", "https://other.example.com/x"),
        ("", "?orgId=1", "?orgId=1"),
    ],
)
def test_source_of_an_alert_can_be_followed(payload: dict[str, Any], external: str, sent: str, expected: str) -> None:
    payload["externalURL"] = external
    payload["alerts"][0]["generatorURL"] = sent
    (alert,) = parse(payload).readable
    assert (alert.generator_url, alert.raw["generatorURL"]) == (expected, sent)
    assert made(parse(payload))["source"].get("generatorURL", "") == expected


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is not JSON: "),
        (b"[]", "version: expected \"1\", Grafana's webhook format, not 'list'"),
        (b'{"version": "4"}', "version: expected \"1\", Grafana's webhook format, not '4'"),
        (b'{"version": "1"}', "receiver: Field required; alerts: Field required"),
    ],
)
def test_invalid_notification_payload_is_refused_with_location_of_problem(body: bytes, problem: str) -> None:
    with pytest.raises(payloads.PayloadError) as error:
        grafana.parse(body)
    assert str(error.value).startswith(problem)


ANYTHING = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
    max_leaves=5,
)
TEXTS = strategies.text() | strategies.sampled_from(
    ["http://[", "//", "?", "\\", "http://\udcff", "javascript:x", "::"]
)
FIELDS = ["status", "labels", "annotations", "startsAt", "generatorURL", "fingerprint", "values", "orgId"]


@hypothesis.given(
    changed=strategies.dictionaries(strategies.sampled_from(FIELDS), ANYTHING | TEXTS, max_size=3),
    beside=strategies.dictionaries(
        strategies.sampled_from(["externalURL", "groupLabels", "groupKey", "truncatedAlerts", "receiver", "alerts"]),
        ANYTHING | TEXTS,
        max_size=2,
    ),
)
def test_any_grafana_payload_is_accepted_or_refused_and_raises_no_other_error(
    captures: Path, changed: dict[str, Any], beside: dict[str, Any]
) -> None:
    payload = recorded(captures, "grafana-12-webhook-firing")
    payload["alerts"][0] |= changed
    payload["alerts"].append(dict(payload["alerts"][0], **changed))
    payload |= beside
    try:
        notification = formats.PARSERS["grafana"](json.dumps(payload).encode())
    except payloads.PayloadError:
        return
    for alert in notification.readable:
        single_alert = notification.model_copy(update={"alerts": [alert]})
        json.dumps(made(single_alert), ensure_ascii=False).encode()
