"""Violations of a tool's schema, in words for the model: the location, the expected value, and the given one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

FAULTS_MAX = 5
"""Faults in one error."""
TYPES_MAX = 16
"""Types in one `type`; there are seven different ones."""
NAMES_MAX = 20
"""Names or options in an error."""
_EXCERPT_MAX = 60
"""Characters of a value in an error."""
_NAMES = {
    "null": "null",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}
_TYPES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}

Location: TypeAlias = tuple[str | int, ...]
"""A path within the arguments."""


@dataclass(frozen=True)
class Fault:
    """A violation of the schema."""

    location: Location
    problem: str
    """The problem, and the expected value."""

    def __str__(self) -> str:
        """The problem after its location, such as `spec.containers[0].name`."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step[:_EXCERPT_MAX]}" for step in self.location)
        path = "".join(steps).removeprefix(".")
        return f"{path}: {self.problem}" if path else self.problem


def allowed_types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types that the schema names; empty if it names none, or an unknown one."""
    named = schema.get("type")
    several = named if isinstance(named, list) else [named]
    if len(several) > TYPES_MAX or not all(isinstance(type_name, str) and type_name in _NAMES for type_name in several):
        return frozenset()
    return frozenset(several)


def type_of(value: Any) -> str:
    """The type of a JSON value; a whole number is an integer even if it is written as 1.0."""
    is_whole = isinstance(value, float) and value.is_integer()
    return "integer" if is_whole else _TYPES.get(type(value), "object")


def expectation(schema: Any) -> str:
    """The values that a schema allows, in a few words."""
    if not isinstance(schema, dict):
        return "something else" if schema is False else "anything"
    if "const" in schema:
        return excerpt(schema["const"])
    if options := members(schema, "enum"):
        more = ", ..." if len(options) > NAMES_MAX else ""
        return f"one of {', '.join(map(excerpt, options[:NAMES_MAX]))}{more}"
    named = [_NAMES[name] for name in sorted(allowed_types(schema))] or ["something else"]
    what = " or ".join(named)
    if isinstance(pattern := schema.get("pattern"), str):
        what += f" that matches {pattern[:_EXCERPT_MAX]}"
    elif required := [name for name in members(schema, "required")[:FAULTS_MAX] if isinstance(name, str)]:
        what = f"an object with {', '.join(map(quoted, required))}"
    elif named == ["something else"] and (several := members(schema, "anyOf") or members(schema, "oneOf")):
        what = " or ".join(
            dict.fromkeys(
                _NAMES[name]
                for option in several[:9]
                if isinstance(option, dict)
                for name in sorted(allowed_types(option))
            )
        )
    return what or "something else"


def excerpt(value: Any) -> str:
    """A value as an error shows it, truncated."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > _EXCERPT_MAX:
            return json.dumps(value[:_EXCERPT_MAX], ensure_ascii=False)[:-1] + '..."'
        case int() if abs(value) >= 10**_EXCERPT_MAX:  # Python writes at most 4,300 digits
            return f"a number of more than {_EXCERPT_MAX} digits"
        case _:
            return json.dumps(value, ensure_ascii=False)[: 2 * _EXCERPT_MAX]


def unexpected(value: Any, schema: Mapping[str, Any], location: Location) -> Fault:
    """The fault of a value that the schema does not allow."""
    return Fault(location, f"expected {expectation(schema)}, not {excerpt(value)}")


def members(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    """The list that a keyword of a schema has; empty for any other value."""
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def quoted(name: str) -> str:
    """A name as an error shows it, in quotes and truncated."""
    return f"'{name[:_EXCERPT_MAX]}'"
