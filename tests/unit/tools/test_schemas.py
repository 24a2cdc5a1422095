"""Arguments held against schemas: as another validator does it, and within bounds whatever the schema."""

from __future__ import annotations

import json
import pathlib
import random
import resource
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
from hypothesis import strategies
from support import steps
from tarsy.tools.calls import schemas

POD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z0-9-]+$", "maxLength": 63},
        "tail": {"type": "integer", "minimum": 1, "maximum": 1000},
        "container": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "output": {"enum": ["yaml", "table"]},
        "ports": {"type": "array", "items": {"$ref": "#/$defs/port"}, "maxItems": 2, "uniqueItems": True},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"port": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}},
}

REFUSED: dict[str, tuple[Any, list[str]]] = {
    "nothing": ({"name": "web-0"}, []),
    "all of it": (
        {"name": "a", "tail": 5.0, "container": None, "output": "yaml", "ports": [{"number": 1}], "labels": {"a": "b"}},
        [],
    ),
    "a type": ({"name": 5}, ["name: expected a string that matches ^[a-z0-9-]+$, not 5"]),
    "a pattern": ({"name": "Web"}, ['name: expected a string that matches ^[a-z0-9-]+$, not "Web"']),
    "a length": ({"name": "a" * 64}, ["name: expected at most 63 characters, not 64"]),
    "a truth for a number": ({"name": "a", "tail": True}, ["tail: expected an integer, not true"]),
    "a bound": ({"name": "a", "tail": 0}, ["tail: expected at least 1, not 0"]),
    "one of several": ({"name": "a", "container": 5}, ["container: expected a string or null, not 5"]),
    "within a list": (
        {"name": "a", "ports": [{"number": 1}, {"number": "1"}]},
        ['ports[1].number: expected an integer, not "1"'],
    ),
    "what is not known": (
        {"name": "a", "nmae": 1},
        ["'nmae' is unknown here; known: 'name', 'tail', 'container', 'output', 'ports', 'labels'"],
    ),
    "no object": ([], ["expected an object with 'name', not a list"]),
}


@pytest.mark.parametrize(("value", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused_values_are_reported_with_location_and_expected_value(value: Any, expected: list[str]) -> None:
    assert [str(fault) for fault in schemas.Schema(POD).faults(value)] == expected


# --- as others do it --------------------------------------------------------------------------------------------------

SCALARS = (
    strategies.none()
    | strategies.booleans()
    | strategies.integers(-5, 5)
    | strategies.sampled_from([0.0, 1.0, -2.0, 0.5, 1e300])
    | strategies.text("ab-1\u00e9", max_size=4)
)
NAMES = strategies.sampled_from(["a", "b", "ab", "-"])
VALUES = strategies.recursive(
    SCALARS,
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
SIZES = strategies.integers(0, 3)
PATTERNS = strategies.sampled_from(["^a", "b$", "^[ab]+$", "-", "^$", "a{2}", "(a|b)1", "[^a]"])
TYPES = strategies.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def checked_keywords(inner: strategies.SearchStrategy[Any]) -> strategies.SearchStrategy[Any]:
    """Schemas of all that is looked at."""
    several = strategies.lists(inner, min_size=1, max_size=3)
    named = strategies.dictionaries(NAMES, inner, max_size=3)
    return strategies.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | strategies.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": strategies.lists(SCALARS, min_size=1, max_size=3, unique_by=json.dumps),
            "const": SCALARS,
            "minimum": strategies.integers(-3, 3),
            "maximum": strategies.integers(-3, 3),
            "exclusiveMinimum": strategies.integers(-3, 3),
            "exclusiveMaximum": strategies.integers(-3, 3),
            "multipleOf": strategies.integers(1, 3),
            "minLength": SIZES,
            "maxLength": SIZES,
            "pattern": PATTERNS,
            "minItems": SIZES,
            "maxItems": SIZES,
            "items": inner,
            "prefixItems": several,
            "minProperties": SIZES,
            "maxProperties": SIZES,
            "properties": named,
            "patternProperties": strategies.dictionaries(PATTERNS, inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "required": strategies.lists(NAMES, max_size=2, unique=True),
            "dependentRequired": strategies.dictionaries(NAMES, strategies.lists(NAMES, unique=True), max_size=2),
            "allOf": several,
            "anyOf": several,
            "$ref": strategies.sampled_from(["#/$defs/a", "#/$defs/b"]),
        },
    )


LEFT = strategies.fixed_dictionaries(
    {},
    optional={
        "not": strategies.booleans() | strategies.fixed_dictionaries({"type": TYPES}),
        "oneOf": strategies.lists(strategies.fixed_dictionaries({"type": TYPES}), min_size=1, max_size=3),
        "if": strategies.fixed_dictionaries({"type": TYPES}),
        "then": strategies.booleans(),
        "contains": strategies.booleans(),
        "unevaluatedProperties": strategies.booleans(),
        "uniqueItems": strategies.booleans(),
        "minContains": SIZES,
        "x-unknown": strategies.text(),
    },
)
"""Keywords that only the server looks at, or of which some is not looked at."""
PARTS = strategies.booleans() | strategies.recursive(
    strategies.booleans() | checked_keywords(strategies.booleans()), checked_keywords, max_leaves=6
)


def whole(schema: Any, first: Any, other: Any) -> dict[str, Any]:
    """With something to refer to, which refers to nothing itself."""
    return {"allOf": [schema], "$defs": {"a": first, "b": other}}


WITHOUT_REFERENCES = strategies.booleans() | strategies.fixed_dictionaries({"type": TYPES})


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(schema=PARTS, first=WITHOUT_REFERENCES, other=WITHOUT_REFERENCES, value=VALUES)
def test_checked_keywords_agree_with_another_validator(schema: Any, first: Any, other: Any, value: Any) -> None:
    root = whole(schema, first, other)
    assert (not schemas.Schema(root).faults(value)) == jsonschema_rs.is_valid(root, value)


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(schema=PARTS, left=LEFT, first=WITHOUT_REFERENCES, other=WITHOUT_REFERENCES, value=VALUES)
def test_value_that_the_schema_allows_is_not_refused(
    schema: Any, left: dict[str, Any], first: Any, other: Any, value: Any
) -> None:
    root = whole(schema, first, other) | left
    hypothesis.assume(schemas.Schema(root).faults(value))
    assert not jsonschema_rs.is_valid(root, value)


# --- any author of a schema -------------------------------------------------------------------------------------------


@hypothesis.settings(max_examples=120, deadline=None)
@hypothesis.given(
    schema=strategies.dictionaries(
        strategies.sampled_from(
            [
                *(
                    *("type", "enum", "required", "properties", "items", "$ref", "anyOf", "pattern", "minimum"),
                    "minLength",
                ),
                *("prefixItems", "patternProperties", "additionalProperties", "allOf", "dependentRequired", "$schema"),
                *("multipleOf", "uniqueItems", "propertyNames", "const"),
            ]
        ),
        VALUES | strategies.sampled_from(["#", "#/", "#/a/~2", "#anchor", "http://evil/x", "(", "\\Qa", "\ud800"]),
    )
    | VALUES,
    value=VALUES,
)
def test_invalid_schema_restricts_by_its_valid_parts_and_raises_no_error(schema: Any, value: Any) -> None:
    parsed = schemas.Schema(schema)
    parsed.faults(value)
    parsed.subschemas(parsed.below(parsed.of_root(), "a"))
    parsed.subschemas(parsed.below(parsed.of_root(), 0))


def doubling(times: int) -> dict[str, Any]:
    """Each refers twice to the next: 2 ** times to look at."""
    return {
        "$ref": "#/$defs/0",
        "$defs": {
            str(at): {"anyOf": [{"$ref": f"#/$defs/{at + 1}"}, {"$ref": f"#/$defs/{at + 1}"}]} for at in range(times)
        }
        | {str(times): False},
    }


def anything(length: int) -> str:
    """A text of two letters that no automaton has seen before."""
    return "".join(random.Random(length).choices("ab", k=length))  # noqa: S311 - no secret


HOSTILE: dict[str, tuple[Any, Any]] = {
    "it refers to itself": ({"$ref": "#"}, {}),
    "it is made of itself": ({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}),
    "it doubles": (doubling(60), {}),
    "a pattern that takes for ever": ({"pattern": "^(a+)+$"}, "a" * 50_000 + "!"),
    "many patterns": ({"patternProperties": {f"^(a+)+{n}$": True for n in range(2000)}}, {"a" * 1000: 1, "b" * 999: 2}),
    "patterns that are as large as they may be": (
        {"patternProperties": {f"[ab]*a[ab]{{190}}c{n}": True for n in range(2200)}},
        {"ab" * 499 + str(n): 1 for n in range(6)},
    ),
    "patterns that take long to read": ({"allOf": [{"pattern": rf"(?i){n}" + r"\pL" * 330} for n in range(100)]}, "a"),
    "a pattern that is too large": ({"pattern": "(a{1000}){1000}"}, "a"),
    "a long choice": ({"items": {"enum": [str(n) for n in range(10_000)]}}, ["x"] * 10_000),
    "a long list": ({"items": {"anyOf": [{"type": "integer"}] * 60}}, ["x"] * 100_000),
    "a list of no two": ({"uniqueItems": True}, [{"a": n} for n in range(50_000)]),
    "deep": ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}, json.loads("[" * 90 + "]" * 90)),
}


@pytest.mark.parametrize(("schema", "value"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_schema_takes_a_bounded_number_of_steps(schema: Any, value: Any) -> None:
    def use() -> None:
        schemas.Schema(schema).faults(value)
        parsed = schemas.Schema(schema)
        for _ in range(1000):
            parsed.subschemas(parsed.below(parsed.of_root(), 0))

    assert steps.count(use) < 2_000_000


def resident() -> int:
    """Bytes of this process in memory."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_memory_of_hostile_patterns_is_freed() -> None:
    """With RE2's own bounds it is a gigabyte."""
    schema = {"patternProperties": {f"[ab]*a[ab]{{190}}c{n}": True for n in range(500)}}
    calls = [{anything(960 + n): 1} for n in range(40)]
    before = resident()
    for call in calls:
        schemas.Schema(schema).faults(call)
    assert resident() - before < 64 * 1024 * 1024
    assert steps.count(lambda: schemas.Schema(schema).faults(calls[0])) < 2_000_000


HUGE = 10**5000


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"multipleOf": 10**400}, 4, []),
        ({"multipleOf": 2.0}, 10**400 + 1, []),
        ({"multipleOf": float("inf")}, 4, []),
        ({"multipleOf": 2**53}, 5, [f"expected a multiple of {2**53}, not 5"]),
        ({"minimum": HUGE}, 4.5, ["expected at least a number of more than 60 digits, not 4.5"]),
        ({"maximum": float("-inf")}, 5, ["expected at most -Infinity, not 5"]),
        ({"const": HUGE}, 5, ["expected a number of more than 60 digits, not 5"]),
        ({"type": "string"}, -HUGE, ["expected a string, not a number of more than 60 digits"]),
    ],
    ids=lambda _: "size",
)
def test_a_number_may_be_of_any_size(schema: Any, value: Any, expected: list[str]) -> None:
    assert list(map(str, schemas.Schema(schema).faults(value))) == expected


@pytest.mark.parametrize("reference", ["http://127.0.0.1:9/x", "file:///etc/passwd", "other.json", "#anchor", 5, None])
def test_a_reference_leads_nowhere_but_into_the_schema(reference: Any) -> None:
    """Sockets are blocked here: one that were opened would be an error."""
    assert schemas.Schema({"$ref": reference, "type": "object"}).faults({}) == []


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("^a$", "a", True),
        ("^a$", "b", False),
        (r"^\w+$", "gr\u00f6\u00dfe", None),  # Unicode to some, ASCII to others
        (r"^\w+$", "web", True),
        ("(?=a)", "a", None),
        (r"(a)\1", "aa", None),
        (r"\Aa", "a", None),
        ("[", "a", None),
        ("a" * 2000, "a", None),
        ("^\u00e9$", "\u00e9", True),
        ("a", "\ud800", None),
    ],
)
def test_a_pattern_that_might_mean_something_else_to_the_server_is_left_to_it(
    pattern: str, text: str, fits: bool | None
) -> None:
    assert schemas.Schema({}).matches(pattern, text) is fits
