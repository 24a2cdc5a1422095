"""The API says one thing one way: a field has one type, wherever it stands."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from support import apis, summary_rows
from support.masking import NO_SECRETS
from tarsy.controller import investigation_statuses
from tarsy.live import events_from_log
from tarsy.resources import investigations as kind
from tarsy.store.reads import summaries
from tarsy.views import investigations, rows

DESCRIPTION = apis.description()
SCHEMAS: dict[str, dict[str, Any]] = DESCRIPTION["components"]["schemas"]
FORMER_TAG = "compat"
"""The paths of earlier clients, whose words the founding documents fix."""
OF_ITS_OWN = {"ChainSpec"}
"""A chain's spec is what kubectl shows: its fields are the kind's."""
FIXED = {
    "tool_calls": "a count in the kinds' status, the calls of an answer in the founding documents' messages",
    "status": "RFC 9457 makes it a number in a problem",
}
"""Fields with two types, and what fixes both."""
FIXED_FOR_FORMER = {"alert_data": "a text in 004's AlertSession, an object in 000's history"}
ENDED = summary_rows.summary(
    state="ended",
    ending="Completed",
    started_at=summary_rows.AT,
    ended_at=summary_rows.AT,
    gaps=[{"tool": "k8s.nodes", "reason": "forbidden"}],
    stage_names=("look", "tell"),
    stage_agents=(1, 1),
    grounds="InspectedWithGaps",
    cost=0.1,
    stages=(summary_rows.stage(name="look", outcome="Completed", ended_at=summary_rows.AT),),
)


def references(node: object) -> Iterator[str]:
    """The names of the schemas that a part of the description refers to."""
    if isinstance(node, dict):
        if isinstance(reference := node.get("$ref"), str) and reference.startswith("#/components/schemas/"):
            yield reference.rpartition("/")[2]
        for below in node.values():
            yield from references(below)
    elif isinstance(node, list):
        for below in node:
            yield from references(below)


def answered(*, by_former: bool) -> set[str]:
    """The names of the schemas that the answers of earlier clients' paths, or of all others, have."""
    operations = [method for methods in DESCRIPTION["paths"].values() for method in methods.values()]
    names: set[str] = set()
    left = {
        name
        for operation in operations
        if (FORMER_TAG in operation["tags"]) == by_former
        for name in references(operation["responses"])
    }
    while left:
        names |= left
        left = {name for schema_name in left for name in references(SCHEMAS[schema_name])} - names
    return names - OF_ITS_OWN


def type_of(schema: dict[str, Any]) -> str:
    """The JSON type of a schema, without null; of a list with that of its items, of a time its format."""
    if "$ref" in schema:
        return type_of(SCHEMAS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        kinds = {type_of(option) for option in schema["anyOf"]} - {"null"}
        return " or ".join(sorted(kinds))
    kind = schema.get("type", "string" if "enum" in schema or "const" in schema else "anything")
    match kind:
        case "array" if "items" in schema:
            return f"array of {type_of(schema['items'])}"
        case "string" if schema.get("format") == "date-time":
            return "time"
        case _:
            return str(kind)


@pytest.mark.parametrize("by_former", [False, True], ids=["ours", "of earlier clients"])
def test_fields_with_same_name_have_same_type(by_former: bool) -> None:
    types: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(answered(by_former=by_former)):
        for field, schema in SCHEMAS[name].get("properties", {}).items():
            types[field][type_of(schema)].append(name)
    fixed = FIXED_FOR_FORMER if by_former else FIXED
    several = {field: dict(kinds) for field, kinds in types.items() if len(kinds) > 1}
    assert several.keys() == fixed.keys(), several


def test_investigation_schema_has_all_fields_of_its_list_row_with_same_types() -> None:
    row, full = (SCHEMAS[model.__name__]["properties"] for model in (rows.Row, investigations.Investigation))
    assert row.items() <= full.items()
    facts = {name: schema for name, schema in full.items() if name not in ("executions", "unreadable")}
    assert facts.items() <= SCHEMAS["Export"]["properties"].items()


def snake(name: str) -> str:
    return re.sub("(?<=[a-z])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def of_kind(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The fields of a model of the kind's status, and of `usage` within it, as the API spells them."""
    for name, field_schema in schema["properties"].items():
        options = [
            candidate for candidate in field_schema.get("anyOf", [field_schema]) if candidate.get("type") != "null"
        ]
        (option,) = options
        if "$ref" in option:
            option = definitions[option["$ref"].rpartition("/")[2]]
        if name == "usage":
            yield from of_kind(option, definitions)
        elif "$ref" in (items := option.get("items", {})):
            yield snake(name), f"array of {definitions[items['$ref'].rpartition('/')[2]]['type']}"
        else:
            yield snake(name), type_of(option)


def test_api_field_named_like_a_crd_status_field_has_the_same_type() -> None:
    status = kind.Status.model_json_schema(by_alias=True)
    fields = SCHEMAS["Investigation"]["properties"]
    types = {name: field_type for name, field_type in of_kind(status, status["$defs"]) if name in fields}
    assert {"phase", "summary", "cost", "total_tokens", "progress", "attempts", "message", "gaps"} <= types.keys()
    assert {name: type_of(fields[name]) for name in types} == types


def type_of_value(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case str():
            return "time" if re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+Z", value) else "string"
        case list():
            return f"array of {type_of_value(value[0])}"
        case _:
            return "object"


def test_live_event_fields_have_same_types_as_the_investigation_answer() -> None:
    fields = SCHEMAS["Investigation"]["properties"]
    body = events_from_log.status_body(ENDED) | events_from_log.end_body(ENDED)
    common = {name: value for name, value in body.items() if name in fields}
    assert body.keys() - common.keys() == set()
    assert {name: type_of_value(value) for name, value in common.items() if value is not None} == {
        name: type_of(fields[name]) for name, value in common.items() if value is not None
    }
    assert body["stages"] == [{"name": "look", "phase": "Completed"}, {"name": "tell", "phase": "Cancelled"}]
    assert body["ended_at"] == "2026-11-21T03:17:40.500000Z"


@pytest.mark.parametrize(
    ("cost", "expected"),
    [(None, None), (0.006299999999999999, "0.0063"), (0.1 + 0.2, "0.3"), (5e-7, "0.0000005"), (0.0, "0")],
)
def test_cost_is_decimal_text_in_every_schema(cost: float | None, expected: str | None) -> None:
    schemas = [
        component["properties"]["cost"]
        for name, component in SCHEMAS.items()
        if "cost" in component.get("properties", {})
    ]
    assert len(schemas) >= 7
    for schema in schemas:
        jsonschema_rs.validator_for(schema).validate(expected)
        assert not jsonschema_rs.validator_for(schema).is_valid(0.5)
    head = summaries.Details(
        summary=replace(ENDED, cost=cost),
        alert_data="x",
        severity=None,
        fingerprint=None,
        runbook_url=None,
        chain=None,
        runs=[],
        log_seq=1,
    )
    assert investigations.facts(head, mask=str).cost == expected
    assert investigation_statuses.build(head.summary, secrets=NO_SECRETS).usage.cost == expected
