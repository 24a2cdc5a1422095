"""The dashboard of Grafana that an alert names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tarsy.ingest import dashboards

CAPTURES = Path(__file__).resolve().parents[2] / "captures"


def found(**alert: Any) -> tuple[str, int | None] | None:
    dashboard = dashboards.find(json.dumps(alert))
    return (dashboard.uid, dashboard.panel) if dashboard else None


def test_an_alert_of_grafana_names_its_panel() -> None:
    notification = json.loads((CAPTURES / "grafana/grafana-12-webhook-firing.json").read_text())
    assert found(**notification["alerts"][0]) == ("shop", 7)


@pytest.mark.parametrize(
    ("alert", "expected"),
    [
        (
            {"annotations": {"__dashboardUid__": "a-B_9", "__panelId__": "23"}, "panelURL": "/d/other?viewPanel=1"},
            ("a-B_9", 23),
        ),
        ({"dashboardURL": "https://g/grafana/d/abc/a-name?orgId=1", "panelURL": ""}, ("abc", None)),
        ({"panelURL": "https://g/d/abc?viewPanel=panel-7", "dashboardURL": "https://g/d/other"}, ("abc", 7)),
        ({"annotations": {"dashboard_url": "https://g/d/abc/name?var-pod=web-0"}}, ("abc", None)),
        ({"annotations": {"dashboard_url": "https://g/dashboards"}}, None),
        ({"annotations": {"__dashboardUid__": "../../admin"}}, None),
        ({"dashboardURL": f"https://g/d/{'x' * 41}"}, None),
        ({"dashboardURL": "http://[", "panelURL": 7, "annotations": "dashboard"}, None),
    ],
)
def test_ids_are_taken_of_annotations_and_addresses(
    alert: dict[str, Any], expected: tuple[str, int | None] | None
) -> None:
    assert found(**alert) == expected


@given(
    st.text(),
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    ),
)
def test_dashboard_id_found_in_any_data_is_valid_grafana_id(text: str, value: Any) -> None:
    for alert_data in (text + "dashboard", json.dumps({"annotations": value, "dashboardURL": text, "panelURL": value})):
        dashboard = dashboards.find(alert_data)
        assert dashboard is None or dashboard.uid.replace("-", "").replace("_", "").isalnum()
