from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tarsy.ingest import alertmanager, manifest
from tarsy.resources import investigation


@pytest.fixture
def payload(captures: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((captures / "alertmanager/alertmanager-0.33-webhook-firing.json").read_bytes())
    return loaded


def build(payload: dict[str, Any], *, index: int = 0) -> dict[str, Any]:
    notification = alertmanager.parse(json.dumps(payload).encode())
    return manifest.build(notification.alerts[index], notification, alert_type="pod-crash", namespace="tarsy")


def test_an_alert_becomes_the_object_that_asks_for_its_investigation(payload: dict[str, Any]) -> None:
    made = build(payload)
    data = made["spec"].pop("alertData")
    assert made == {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AlertInvestigation",
        "metadata": {"name": "kubepodcrashlooping-6eb8c03418906421-mwqv3726", "namespace": "tarsy"},
        "spec": {
            "alertType": "pod-crash",
            "fingerprint": "6eb8c03418906421",
            "startsAt": "2026-11-21T20:29:42.654068Z",
        },
    }
    assert json.loads(data) == {
        **payload["alerts"][0],
        "receiver": "hook",
        "groupLabels": payload["groupLabels"],
        "externalURL": "http://alertmanager:9093",
    }


def test_the_same_episode_makes_the_same_object_whatever_else_has_changed(payload: dict[str, Any]) -> None:
    before = build(payload)["metadata"]
    payload["alerts"].reverse()
    payload["alerts"][1]["annotations"] = {"summary": "still"}
    payload["notification_reason"] = "repeat interval elapsed"
    assert build(payload, index=1)["metadata"] == before
    payload["alerts"][1]["startsAt"] = "2026-11-21T20:29:42.655Z"
    assert build(payload, index=1)["metadata"] != before, "another episode"


def test_without_a_fingerprint_the_labels_tell_alerts_apart_in_any_order(payload: dict[str, Any]) -> None:
    first, second = payload["alerts"]
    second["startsAt"] = first["startsAt"]
    del first["fingerprint"], second["fingerprint"]
    names = {build(payload, index=index)["metadata"]["name"] for index in (0, 1)}
    assert len(names) == 2
    first["labels"] = dict(reversed(first["labels"].items()))
    assert build(payload)["metadata"]["name"] in names


def test_an_alert_that_no_object_can_hold_is_refused_by_how_much(payload: dict[str, Any]) -> None:
    room = investigation.ALERT_DATA_MAX - len(build(payload)["spec"]["alertData"])
    payload["alerts"][0]["annotations"]["summary"] += "é" * room
    assert len(build(payload)["spec"]["alertData"]) == investigation.ALERT_DATA_MAX
    payload["alerts"][0]["annotations"]["summary"] += "é"
    with pytest.raises(manifest.TooLargeError, match="the alert has 65537 characters, at most 65536 are taken"):
        build(payload)


def test_what_is_built_is_what_the_kind_takes(payload: dict[str, Any]) -> None:
    made = build(payload)
    read = investigation.AlertInvestigation.model_validate({"metadata": made["metadata"], "spec": made["spec"]})
    assert read.spec.model_dump(mode="json", by_alias=True, exclude_none=True) == made["spec"]
