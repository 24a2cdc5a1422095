"""Conversion of pydantic's validation errors into problems of the file.

Each problem has its line, its path and, for a choice, the alternatives; never the wrong value.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pydantic
import pydantic_core

from tarsy.config.model import fields, platforms
from tarsy.resources import files

KeyPath = tuple[int | str, ...]

_WORD = re.compile("[A-Za-z_-]{1,40}")
"""A key that may be misspelt, and is quoted. A key with digits may be a misplaced secret, and is not quoted."""
_DURATION = "[0-9]{1,9}(?:ms|[smhd])"
_IN_WORDS = {
    platforms.SERVER_NAME: "expected letters, digits and -, or single _ between them",
}
_TAGGED = (("llm_providers",), 2), (("deliveries",), 2), (("mcp_servers", "transport"), 3)
"""The paths of the unions by `type`, and the index at which pydantic inserts the type, which is no key of the file."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A problem and its path."""

    path: KeyPath
    """The location in the checked value."""
    problem: files.Problem
    is_unknown: bool
    """Whether it is an unknown key: without it the meaning of the rest is the same."""


def problems(
    error: pydantic.ValidationError, document: files.Document, *, model: type[pydantic.BaseModel], at: KeyPath = ()
) -> Iterator[Fault]:
    """Yield the problems of the value at `at` of `document`."""
    for error_details in error.errors():
        location = untagged(error_details["loc"])
        message = _message(error_details)
        shown_location, line = location, (*at, *location)
        is_unknown = error_details["type"] == "extra_forbidden"
        if is_unknown:
            shown_location = location[:-1]
            key = str(location[-1])
            key_text = key if _WORD.fullmatch(key) else "a key that is no word"
            message = f"unknown: {key_text}. Available: {', '.join(_keys(_schema(model), error_details['loc'][:-1]))}"
        elif location[-1:] == ("[key]",):
            shown_location, line = location[:-1], (*at, *location[:-1])
            message = f"invalid name: {message}"
        elif error_details["type"] == "union_tag_invalid":
            line = (*line, "type")
        else:
            # The message of a rule over several keys begins with the wrong key, such as `custom_patterns.1.name`.
            steps = message.partition(":")[0].split(".")
            line = (*line, *(int(step) if step.isascii() and step.isdecimal() else step for step in steps))
        problem = document.problem(line, f"{files.path_text((*at, *shown_location))}: {message}")
        yield Fault(path=location, problem=problem, is_unknown=is_unknown)


def untagged(location: KeyPath) -> KeyPath:
    """Return a location of pydantic as a path in the file, without the types of unions."""
    steps = {location[:1], location[:1] + location[2:3]}
    tag = next((index for above, index in _TAGGED if above in steps), len(location))
    return location[:tag] + location[tag + 1 :]


def _message(error: pydantic_core.ErrorDetails) -> str:
    match error["type"]:
        case "union_tag_invalid":
            return f"expected one of {error['ctx']['expected_tags']}"
        case "union_tag_not_found":
            return "type is missing"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "expected a mapping"
        case "list_type":
            return "expected a list"
        case "too_short":
            return f"expected {error['ctx']['min_length']} or more"
        case "string_pattern_mismatch":
            pattern = error["ctx"]["pattern"]
            return _IN_WORDS.get(pattern, f"Input should match {pattern}")
        case "int_type" | "int_parsing" if seconds := _seconds(error):
            return f"expected seconds, a whole number: write {seconds}"
    return error["msg"].removeprefix("Value error, ")


def _seconds(error: pydantic_core.ErrorDetails) -> str:
    """Return the seconds of a value such as `5m` or `1h30m` where a number of seconds is expected; else ""."""
    value = error["input"]
    if "seconds" not in str(error["loc"][-1]).lower() or not isinstance(value, str):
        return ""
    if re.fullmatch("[0-9]{1,9}", value):
        return str(int(value))
    if not re.fullmatch(f"({_DURATION}){{1,5}}", value):
        return ""
    seconds = sum((fields.duration(duration) for duration in re.findall(_DURATION, value)), timedelta()).total_seconds()
    return str(math.ceil(seconds) or "")


@functools.cache
def _schema(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    return model.model_json_schema(by_alias=True)


def _keys(schema: dict[str, Any], location: KeyPath) -> list[str]:
    """Return the keys of a JSON schema at a location of pydantic."""
    node = _resolved(schema, schema)
    for step in location:
        if "discriminator" in node:
            below = {"$ref": node["discriminator"]["mapping"][step]}
        elif step in node.get("properties", {}):
            below = node["properties"][step]
        else:
            values = [node.get("items"), *node.get("patternProperties", {}).values(), node.get("additionalProperties")]
            below = next((mapping for mapping in values if mapping), {})
        node = _resolved(below, schema)
    return list(node.get("properties", {}))


def _resolved(node: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema behind a reference, or behind a choice between a schema and null."""
    while "$ref" in node or "anyOf" in node:
        if "anyOf" in node:
            node = next(option for option in node["anyOf"] if option.get("type") != "null")
        else:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    return node
