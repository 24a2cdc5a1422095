"""Alert that a caller posts."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from tarsy.ingest import manifest, payload, plain
from tarsy.resources import investigations, tool_patterns
from tarsy.serve import problems


@pytest.mark.parametrize(
    "alert_data", ["pod web-0 restarts", " {not JSON\n", {"ä": [1, {"b": None}]}, [1.5, True], 7, None, False, {}, []]
)
def test_text_is_read_as_it_is_and_json_as_json(alert_data: Any) -> None:
    text = plain.Alert(alert_type="A", data=alert_data).text()
    assert (text if isinstance(alert_data, str) else json.loads(text)) == alert_data
    assert "\\u" not in text, "spelt out, as the model reads it"


@pytest.mark.parametrize(
    ("change", "location"),
    [
        ({"alert_type": ""}, "alert_type: "),
        ({"alert_type": "x" * 254}, "alert_type: "),
        ({"runbook": "https://" + "x" * 2049}, "runbook: "),
        ({"severity": "x" * 64}, "severity: "),
        ({"alertType": "A"}, "alertType: Extra inputs are not permitted"),
    ],
)
def test_invalid_field_is_reported_with_its_location(change: dict[str, Any], location: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        plain.Alert.model_validate({"alert_type": "A", "data": "x", **change})
    assert payload.places(error.value).startswith(location)


@pytest.mark.parametrize("runbook", ["https://github.com/a/b.md", "http://wiki:8080/a?b#c", "...", "", None])
def test_invalid_runbook_url_rejects_no_alert(runbook: str | None) -> None:
    """Former clients send one that is no URL, too; that it cannot be read is told in the timeline."""
    assert plain.Alert(alert_type="A", data="x", runbook=runbook).runbook == runbook


@pytest.mark.parametrize(
    ("runbook", "alert_data", "url"),
    [
        (None, {"runbook": "https://github.com/a/b.md"}, "https://github.com/a/b.md"),
        ("https://github.com/own.md", {"runbook": "https://github.com/a/b.md"}, "https://github.com/own.md"),
        (None, {"runbook": {"url": "https://github.com/a/b.md"}}, None),
        (None, {"pod": "web-0"}, None),
        (None, '{"runbook": "https://github.com/a/b.md"}', None),
        (None, {"runbook": "https://github.com/" + "x" * 3000}, "https://github.com/" + "x" * 2029),
    ],
)
def test_runbook_inside_json_data_is_taken_where_the_alert_names_none(
    runbook: str | None, alert_data: Any, url: str | None
) -> None:
    alert = plain.Alert(alert_type="A", data=alert_data, runbook=runbook)
    spec = manifest.draft_from_posted(alert, namespace="tarsy", author="me", idempotency_key="k", mask=str).manifest[
        "spec"
    ]
    assert spec.get("runbookURL") == url
    assert spec["alertData"] == (
        alert_data if isinstance(alert_data, str) else json.dumps(alert_data, separators=(",", ":"))
    )


def test_default_alert_type_keeps_the_alerts_own_type_as_its_name() -> None:
    alert = plain.Alert(alert_type="Rare", data="x")
    draft = manifest.draft_from_posted(alert, namespace="tarsy", author="me", idempotency_key="k", mask=str)
    assert draft.with_alert_type("Rare") is draft
    taken = draft.with_alert_type("kubernetes")
    assert (taken.manifest["spec"]["alertType"], taken.manifest["spec"]["labels"]) == (
        "kubernetes",
        {"alertname": "Rare"},
    )
    made = investigations.Spec.model_validate(taken.manifest["spec"])
    assert draft.is_same_request(made), "a chain for its own type came between two requests with one key"
    assert taken.is_same_request(investigations.Spec.model_validate(draft.manifest["spec"]))
    other = manifest.draft_from_posted(
        plain.Alert(alert_type="kubernetes", data="x"), namespace="tarsy", author="me", idempotency_key="k", mask=str
    )
    assert not other.is_same_request(made), "a key is for one alert"


def test_too_deeply_nested_json_is_refused_without_internal_error() -> None:
    with pytest.raises((pydantic.ValidationError, payload.PayloadError)):
        plain.Alert.model_validate(payload.load(b'{"alert_type": "A", "data": ' + b"[" * 400 + b"]" * 400 + b"}"))


def test_its_schema_stands_by_itself_in_the_apis_description() -> None:
    schema = plain.schema()
    assert (schema["required"], schema["additionalProperties"]) == (["alert_type", "data"], False)
    assert "$ref" not in json.dumps(schema)


NATIVE = "'google_search', 'code_execution', 'url_context' or 'web_search'"
MCP = {"servers": [{"name": "k8s", "tools": ["get"]}], "tools": {"deny": ["*.log"]}}


@pytest.mark.parametrize("native", ["native_tools", "nativeTools"])
def test_tool_selection_in_either_spelling_equals_the_one_in_the_object(native: str) -> None:
    selection = MCP | {native: {"google_search": False}}
    alert = plain.Alert.model_validate({"alert_type": "A", "data": "x", "mcp": selection})
    draft = manifest.draft_from_posted(alert, namespace="tarsy", author="me", idempotency_key="k", mask=str)
    assert draft.manifest["spec"]["mcp"] == MCP | {"nativeTools": {"google_search": False}}
    without = plain.Alert.model_validate({"alert_type": "A", "data": "x"})
    other = manifest.draft_from_posted(without, namespace="tarsy", author="me", idempotency_key="k", mask=str)
    assert "mcp" not in other.manifest["spec"]
    assert not draft.is_same_request(investigations.Spec.model_validate(other.manifest["spec"])), (
        "a key is for one alert"
    )


@pytest.mark.parametrize(
    ("mcp", "message"),
    [
        ({"native_tools": {"browser": False}}, f"mcp.native_tools.browser: no such native tool: there is {NATIVE}"),
        ({"native_tools": {"browser": False}, "server": []}, ""),
        ({"native_tools": {"google_search": 3}}, ""),
        ({"native_tools": {"google_search": "no"}}, ""),
        ([], ""),
    ],
)
def test_unknown_native_tool_is_reported_with_available_native_tools(mcp: Any, message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        plain.Alert.model_validate({"alert_type": "A", "data": "x", "mcp": mcp})
    assert plain.unknown_names(error.value) == message


OPEN = "a [ is never closed: close it, as in [ab], or write [[] for the character itself"


@pytest.mark.parametrize(
    ("mcp", "message"),
    [
        ({"native_tools": {"google_search": "no"}}, "mcp.native_tools.google_search: give true or false"),
        ({"servers": [{"name": "k", "tools": []}]}, "mcp.servers.0.tools: give 1 or more"),
        ({"tools": {"deny": ["pods_l*"]}}, f"mcp.tools.deny.0: {tool_patterns.misfit('pods_l*')}"),
        ({"tools": {"allow": ["*.[nodes_*"]}}, f"mcp.tools.allow.0: {OPEN}"),
        ({"servers": [{"name": "k", "tools": ["pods_*", "[nodes_*"]}]}, f"mcp.servers.0.tools.1: {OPEN}"),
    ],
)
def test_invalid_tool_selection_is_reported_in_plain_words(mcp: Any, message: str) -> None:
    with pytest.raises(pydantic.ValidationError) as error:
        plain.parse(json.dumps({"alert_type": "A", "data": "x", "mcp": mcp}).encode())
    problem = problems.invalid_body(error.value, plain.Alert)
    assert (problem.status, problem.detail) == (422, message)
