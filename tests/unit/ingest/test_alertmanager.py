"""Alertmanager's payloads as 0.25 and 0.33 sent them, and what is none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tarsy.config.model import webhooks
from tarsy.ingest import alertmanager, manifest
from tarsy.ingest import payload as payloads

NAMES = [
    *("alertmanager-webhook-firing", "alertmanager-webhook-resolved", "alertmanager-webhook-mixed"),
    *("alertmanager-webhook-truncated", "alertmanager-0.33-webhook-firing", "alertmanager-0.33-webhook-resolved"),
]


@pytest.fixture
def payload(captures: Path) -> dict[str, Any]:
    """A notification of one firing and one resolved alert, to be changed."""
    loaded: dict[str, Any] = json.loads((captures / "alertmanager/alertmanager-webhook-mixed.json").read_bytes())
    return loaded


def parse(payload: object) -> alertmanager.Notification:
    return alertmanager.parse(json.dumps(payload).encode())


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_notification_is_read_alert_by_alert(captures: Path, name: str) -> None:
    body = (captures / f"alertmanager/{name}.json").read_bytes()
    sent, notification = json.loads(body), alertmanager.parse(body)
    assert [alert.raw for alert in notification.readable] == sent["alerts"]
    assert [alert.status for alert in notification.readable] == [alert["status"] for alert in sent["alerts"]]
    assert (notification.receiver, notification.group_labels) == (sent["receiver"], sent["groupLabels"])
    assert notification.truncated_alerts == sent["truncatedAlerts"]
    assert notification.external_url == "http://alertmanager:9093"


def test_nanoseconds_are_cut_to_microseconds(payload: dict[str, Any]) -> None:
    assert parse(payload).readable[0].starts_at == datetime(2026, 11, 21, 20, 26, 18, 109994, tzinfo=UTC)


def test_fields_of_later_releases_are_ignored_but_stay_in_the_alert(payload: dict[str, Any]) -> None:
    payload["routeLabels"] = {"a": "b"}
    payload["alerts"][0]["silenceURL"] = "http://x"
    assert parse(payload).readable[0].raw["silenceURL"] == "http://x"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"alert=x", "the body is not JSON: "),
        (b"[]", "version: expected \"4\", Alertmanager's webhook format, not 'list'"),
        (b'{"version": "1"}', "version: expected \"4\", Alertmanager's webhook format, not '1'"),
        (b'{"version": "4"}', "receiver: Field required; alerts: Field required"),
        (b'{"version": "4", "receiver": "r", "alerts": [1]}', "alerts.0: Input should be a valid dictionary"),
    ],
    ids=lambda value: value[:40].decode(errors="replace") if isinstance(value, bytes) else "",
)
def test_invalid_notification_payload_is_refused_with_location_of_problem(body: bytes, problem: str) -> None:
    with pytest.raises(payloads.PayloadError) as error:
        alertmanager.parse(body)
    assert str(error.value).startswith(problem)


@pytest.mark.parametrize(
    ("field", "value", "location"),
    [
        ("status", "suppressed", "alerts.1.status: "),
        ("labels", {"n": 1}, "alerts.1.labels.n: "),
        ("startsAt", "yesterday", "alerts.1.startsAt: "),
        ("startsAt", "2026-11-21T20:26:18", "alerts.1.startsAt: "),
        ("fingerprint", 7, "alerts.1.fingerprint: "),
    ],
)
def test_invalid_field_is_reported_by_location_and_rejects_only_its_alert(
    payload: dict[str, Any], field: str, value: object, location: str
) -> None:
    payload["alerts"][1][field] = value
    first, second = parse(payload).alerts
    assert isinstance(first, alertmanager.Alert)
    assert isinstance(second, alertmanager.Unreadable)
    assert second.problem.startswith(location)


def test_null_annotations_are_read_as_no_annotations(payload: dict[str, Any]) -> None:
    payload["alerts"][0]["annotations"] = None
    assert parse(payload).readable[0].annotations == {}


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        ({"alertname": "N", "alert_type": "T"}, {}, "T"),
        ({"alertname": "N"}, {}, "N"),
        ({"alertname": "N", "alert_type": ""}, {}, "N"),
        ({"alertname": "N", "kind": "K"}, {"alert_type_label": "kind"}, "K"),
        ({}, {}, ""),
    ],
)
def test_the_type_is_the_alerts_own_label_else_its_name(
    payload: dict[str, Any], labels: dict[str, str], settings: dict[str, str], expected: str
) -> None:
    payload["alerts"][0]["labels"] = labels
    assert manifest.alert_type(parse(payload).readable[0], webhooks.Ingest.model_validate(settings)) == expected


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_an_alert_of_too_many_labels_costs_itself_alone(payload: dict[str, Any], field: str) -> None:
    name = payload["alerts"][1]["labels"]["alertname"]
    payload["alerts"][1][field] = {"alertname": name} | {f"n{number}": "v" for number in range(999)}
    assert len(parse(payload).readable) == 2
    payload["alerts"][1][field]["one"] = "too many"
    _, unreadable = parse(payload).alerts
    assert isinstance(unreadable, alertmanager.Unreadable)
    assert (unreadable.alertname, unreadable.problem) == (name, f"alerts.1.{field}: more than 1000")


@pytest.mark.parametrize(
    "moment", ["0001-01-01T00:00:00+05:00", "9999-12-31T23:59:59-05:00", "2026-11-21T20:26:18+24:00"]
)
def test_alert_that_began_outside_of_all_years_costs_itself_alone(payload: dict[str, Any], moment: str) -> None:
    payload["alerts"][1]["startsAt"] = moment
    _, unreadable = parse(payload).alerts
    assert isinstance(unreadable, alertmanager.Unreadable)
    assert unreadable.problem.startswith("alerts.1.startsAt: ")
