"""The API's description is complete: a route that is added without a description fails here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from fastapi import routing
from starlette.routing import WebSocketRoute
from support import apis
from tarsy.api import app
from tarsy.live import web_sockets
from tarsy.serve import strict

UNDESCRIBED = {"/openapi.json", "/api/v1/investigations/{identity}/events", "/api/v1/events", *web_sockets.PATHS}
"""The description itself, and endless answers, which tools that read descriptions cannot handle."""
OPEN = {"checkLiveness", "checkReadiness", "reportHealth"}
"""The operations without a right."""
REPORTS = {("reportHealth", "503")}
"""The failures that have an answer model of their own, beside the problem."""
DESCRIPTION = apis.description()
OPERATIONS: dict[str, dict[str, Any]] = {
    operation["operationId"]: {**operation, "path": path, "method": method}
    for path, methods in DESCRIPTION["paths"].items()
    for method, operation in methods.items()
}
each_operation = pytest.mark.parametrize("name", OPERATIONS)


def schema_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve the references of a schema."""
    if "$ref" not in schema:
        return schema
    target: Any = DESCRIPTION
    for step in schema["$ref"].removeprefix("#/").split("/"):
        target = target[step]
    return schema_of(target)


def valid(example: Any, schema: dict[str, Any]) -> None:
    """Fail unless the example matches its schema."""
    full_schema = {"components": DESCRIPTION["components"], **schema}
    jsonschema_rs.validator_for(full_schema, validate_formats=True).validate(example)


def contents(operation: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the request body and the answers: "body" or the status, media type, content."""
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield "body", kind, content
    for status, answer in operation["responses"].items():
        for kind, content in schema_of(answer).get("content", {}).items():
            yield status, kind, content


def unbounded(schema: dict[str, Any]) -> str:
    """Return the bound that a parameter's schema lacks, or ""."""
    schema = schema_of(schema)
    of_all = {name: schema[name] for name in ("maxLength", "minimum", "maximum", "maxItems") if name in schema}
    for option in schema.get("anyOf", ()):
        if left := unbounded(option | of_all):
            return left
    if "enum" in schema or "const" in schema or "anyOf" in schema:
        return ""
    match schema.get("type"):
        case "string":
            return "" if "maxLength" in schema or schema.get("format") == "date-time" else "maxLength"
        case "integer" | "number":
            return "" if {"minimum", "maximum"} <= schema.keys() else "minimum and maximum"
        case "array":
            return ("" if "maxItems" in schema else "maxItems") or unbounded(schema["items"])
        case "boolean" | "null":
            return ""
        case _:
            return "a type"


def test_every_route_is_described_and_strict() -> None:
    for context in routing.iter_route_contexts(app.bare().routes):
        if isinstance(context.original_route, WebSocketRoute):
            continue
        assert isinstance(context.original_route, strict.Route), f"{context.path}: make its router by strict.router"
        for method in (context.path not in UNDESCRIBED and context.methods) or ():
            assert method.lower() in DESCRIPTION["paths"][context.path_format]


@each_operation
def test_an_operation_has_a_name_a_summary_and_a_tag(name: str) -> None:
    operation = OPERATIONS[name]
    assert re.fullmatch(r"[a-z]+([A-Z][a-z]+)+", name), "name it by operation_id: a verb and what it is done to"
    assert len(operation["summary"]) > 10
    assert len(operation["tags"]) == 1
    assert operation["tags"][0] in app.TAGS


@each_operation
def test_an_operation_names_the_right_that_it_needs(name: str) -> None:
    operation = OPERATIONS[name]
    if name in OPEN:
        assert operation["security"] == []
        assert "401" not in operation["responses"]
    else:
        named = [scheme for requirement in operation["security"] for scheme in requirement]
        assert named
        assert set(named) <= DESCRIPTION["components"]["securitySchemes"].keys()
        assert {"401", "403", "429"} <= operation["responses"].keys()
        assert "Needs " in operation["description"]


@each_operation
def test_an_operation_lists_its_problems(name: str) -> None:
    operation = OPERATIONS[name]
    problems = {status for status in operation["responses"] if status >= "400"}
    assert {"400", "408", "422", "500", "503"} <= problems
    for status in problems:
        content = schema_of(operation["responses"][status])["content"]
        own = {"application/json"} if (name, status) in REPORTS else set()
        assert content.keys() == {"application/problem+json", *own}
        assert content["application/problem+json"]["schema"] == {"$ref": "#/components/schemas/Problem"}
        assert content["application/problem+json"]["example"]["status"] == int(status)


@each_operation
def test_an_operation_has_valid_examples(name: str) -> None:
    for what, kind, content in contents(OPERATIONS[name]):
        assert "example" in content, f"{what} ({kind}): put one into operator/tarsy/api/examples"
        valid(content["example"], content["schema"])
    for parameter in OPERATIONS[name].get("parameters", ()):
        schema = schema_of(parameter["schema"])
        examples = [*schema.get("examples", ()), *(value for value in [schema.get("default")] if value is not None)]
        assert examples or "enum" in schema, f"{parameter['name']}: give it examples=[...]"
        for example in examples:
            valid(example, schema)


@each_operation
def test_an_operation_bounds_its_parameters(name: str) -> None:
    for parameter in OPERATIONS[name].get("parameters", ()):
        assert parameter.get("description"), parameter["name"]
        assert not unbounded(parameter["schema"]), f"{parameter['name']} lacks {unbounded(parameter['schema'])}"


@each_operation
def test_an_operation_has_a_model_for_its_answer(name: str) -> None:
    for status, kind, content in contents(OPERATIONS[name]):
        if "json" in kind and status != "body":
            fields = schema_of(content["schema"]).get("properties")
            assert fields, "name a model as what it returns"


def test_every_field_of_an_answer_has_a_type() -> None:
    for name, schema in DESCRIPTION["components"]["schemas"].items():
        for field, field_schema in schema.get("properties", {}).items():
            assert field_schema.keys() & {"$ref", "anyOf", "const", "enum", "type"}, f"{name}.{field} may be anything"


def test_every_example_belongs_to_an_operation() -> None:
    assert {file.split(".")[0] for file in app.examples()} <= OPERATIONS.keys()
