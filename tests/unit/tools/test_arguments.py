"""The arguments that a tool gets of a model's text, or the reason why it gets none."""

from __future__ import annotations

import functools
import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies
from support import steps
from tarsy.tools.calls import arguments
from tarsy.transcript import messages, react, tool_arguments

LOG: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "tail": {"type": "integer", "minimum": 1},
        "share": {"type": "number"},
        "previous": {"type": "boolean"},
        "container": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "since": {"type": ["integer", "null"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "names": {"type": "array", "items": {"type": "string"}},
        "anything": {},
    },
    "required": ["name"],
    "additionalProperties": False,
}
QUERY: dict[str, Any] = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
    "required": ["query"],
}
FREE: dict[str, Any] = {"type": "object"}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}

READ: dict[str, tuple[dict[str, Any], str, Any]] = {
    "nothing": (FREE, "", {}),
    "JSON": (LOG, '{"name": "web-0", "tail": 5}', {"name": "web-0", "tail": 5}),
    "JSON, written as a text": (LOG, '"{\\"name\\": \\"web-0\\"}"', {"name": "web-0"}),
    "YAML": (
        LOG,
        "name: web-0\nlabels:\n  app: web\nnames:\n- a",
        {"name": "web-0", "labels": {"app": "web"}, "names": ["a"]},
    ),
    "pairs": (LOG, "name=web-0, tail=5", {"name": "web-0", "tail": 5}),
    "a text": (QUERY, 'rate(up{job="a"}[5m])', {"query": 'rate(up{job="a"}[5m])'}),
    "a text, as a ReAct answer has it": (QUERY, react.arguments("the pod web-0"), {"query": "the pod web-0"}),
    "a text for whoever takes anything": (FREE, react.arguments("the pod"), {"input": "the pod"}),
    "what is called so": ({"properties": {"input": {"type": "string"}}}, '{"input": "x"}', {"input": "x"}),
    # The types that the schema names:
    "a number in quotes": (LOG, '{"name": "a", "tail": "5", "share": ".5"}', {"name": "a", "tail": 5, "share": 0.5}),
    "a whole number": (LOG, '{"name": "a", "tail": 5.0}', {"name": "a", "tail": 5}),
    "versions in YAML": (LOG, "name: 1.10\nshare: 1.10", {"name": "1.10", "share": 1.1}),
    "nothing for what need not be there": (
        LOG,
        '{"name": "a", "tail": null, "since": null}',
        {"name": "a", "since": None},
    ),
    "an empty text for what is none": (
        LOG,
        '{"name": "a", "tail": "", "names": "", "since": ""}',
        {"name": "a", "since": None},
    ),
    "a list in quotes": (LOG, '{"name": "a", "names": "[\\"b\\", 1]"}', {"name": "a", "names": ["b", "1"]}),
    "no Unicode": (LOG, '{"name": "\\ud83d\\udca5 \\ud83d \\u0000"}', {"name": "\U0001f4a5 \ufffd \ufffd"}),
}


@pytest.mark.parametrize(("schema", "text", "expected"), READ.values(), ids=READ)
def test_arguments_are_read_as_they_were_meant(schema: dict[str, Any], text: str, expected: Any) -> None:
    resolved = arguments.resolve(text, schema, is_child=True)
    assert json.dumps(resolved) == json.dumps(expected), "true is not 1, nor 5 5.0"


def read(text: str, schema: dict[str, Any], *, is_child: bool = True) -> dict[str, Any] | str:
    """The arguments, or why there are none."""
    try:
        return arguments.resolve(text, schema, is_child=is_child)
    except arguments.UnfitError as unfit:
        return str(unfit)


TAKES = (
    "expected an object with name (a string, required), tail (an integer), share (a number), previous (true or false), "
    "container (a string or null), since (an integer or null), labels (an object), names (a list), "
    "anything (something else)"
)
QUERY_TAKES = "expected an object with query (a string, required), limit (an integer)"
UNFIT: dict[str, tuple[dict[str, Any], str, str]] = {
    "a text for a tool of several": (LOG, "web-0", f"they are neither JSON nor YAML nor pairs (name=value); {TAKES}"),
    "JSON that is cut": (
        QUERY,
        '{"query": "up',
        f"they are not JSON (Unterminated string starting at: line 1 column 11 (char 10)); {QUERY_TAKES}",
    ),
    "a list": (QUERY, '["up"]', f"they are a list; {QUERY_TAKES}"),
    "too deep": (FREE, '{"a":' * 101 + "1" + "}" * 101, "they are nested deeper than 100 levels"),
    "too deep in quotes": (
        {"properties": {"a": {"type": "array"}}},
        json.dumps({"a": "[" * 200 + "]" * 200}),
        "they are nested deeper than 100 levels",
    ),
    "what the schema refuses": (LOG, "name: a\ntail: 0", "tail: expected at least 1, not 0"),
    "what is missing": (LOG, "{}", "'name' is missing: a string"),
}


@pytest.mark.parametrize(("schema", "text", "problem"), UNFIT.values(), ids=UNFIT)
def test_unusable_arguments_are_refused_with_location_and_expected_value(
    schema: dict[str, Any], text: str, problem: str
) -> None:
    assert read(text, schema, is_child=False) == problem


# --- what a command line would take for something else ----------------------------------------------------------------

OPTIONS = [
    *("--server=https://evil.example", "-n", "-", "--", "---", "-oyaml", "--kubeconfig=/proc/self/environ"),
    *("\n--server=x\n", "  -A", "-5m", "--5", "-1e9e9", "-0x10", "-rate(up[5m])", "..", "../.."),
    *("../etc/passwd", "a/../../b", "a/..", "..\\windows", "file:../x", "/proc/self/../1/environ"),
    *("@../secret", "..%2f..%2fsecret", "a/%2e%2e/b", "x[../y]"),
]
HARMLESS = [
    *("web-0", "-5", "-0.5", "-1e3", "1..5", "HEAD..main", "..main", "50%..60%", "...", "a..b", "v1...v2"),
    *("kubectl get pods -A", "a --server=x", "- a\n- b", "---\nkind: Pod\nmetadata: {name: web-0}\n"),
    "apiVersion: v1\nargs:\n- --server=x\n- ../..\n",
    *('sum(rate(http_requests_total{job="api"}[5m])) by (le)', "- up", "(-up)", '{__name__=~"up.*"}', ""),
    *(" ", "\u2013\u2013server"),
]


@pytest.mark.parametrize("value", OPTIONS)
@pytest.mark.parametrize(
    "nested", ["{}", '{"labels": {"a": {}}}', '{"names": ["x", {}]}', '{"anything": [{"b": [{}]}]}']
)
def test_value_with_another_meaning_in_a_command_line_goes_to_no_child(nested: str, value: str) -> None:
    text = nested.replace("{}", json.dumps(value)) if nested != "{}" else json.dumps({"container": value})
    raw_arguments = json.loads(text) | {"name": "a"}
    with pytest.raises(arguments.UnfitError, match=r"begins with a dash|steps out of where it begins"):
        arguments.resolve(json.dumps(raw_arguments), LOG, is_child=True)
    assert arguments.resolve(json.dumps(raw_arguments), LOG, is_child=False) == raw_arguments, (
        "a server elsewhere has a schema of its own"
    )


@pytest.mark.parametrize("value", HARMLESS)
def test_text_arguments_go_to_every_server(value: str) -> None:
    raw_arguments = {"name": value, "labels": {"a": value}, "names": [value], "anything": [{"a": value}]}
    assert arguments.resolve(json.dumps(raw_arguments), LOG, is_child=True) == raw_arguments


def test_unnamed_member_is_refused_if_it_looks_like_an_option() -> None:
    with pytest.raises(arguments.UnfitError, match=r'^labels: "--server" begins with a dash'):
        arguments.resolve('{"name": "a", "labels": {"--server": "x"}}', LOG, is_child=True)
    declared = {"properties": {"-n": {"type": "string"}}}
    assert arguments.resolve('{"-n": "x"}', declared, is_child=True) == {"-n": "x"}


@pytest.mark.parametrize(
    ("schema", "value", "is_asked_for"),
    [
        ({"enum": ["-A", "-n"]}, "-A", True),
        ({"enum": ["-A", "-n"]}, "-n ", False),
        ({"const": "--all"}, "--all", True),
        ({"type": "string", "default": "-"}, "-", True),
        ({"type": "string", "examples": ["../x"]}, "../x", True),
        ({"type": "string", "pattern": "^-[a-z]$"}, "-a", True),
        ({"type": "string", "pattern": "^(?:-|[+])?[0-9]+[smh]$"}, "-5m", True),
        ({"type": "string", "pattern": r"^[+\-]?[0-9]+[smh]$"}, "-5m", True),
        ({"type": "string", "pattern": "^-[a-z]$"}, "--server", False),
        ({"type": "string", "pattern": ".*"}, "--server", False),
        ({"type": "string", "pattern": "^.*$"}, "--server", False),
        ({"type": "string", "pattern": "[a-z-]+"}, "--server", False),
        ({"type": "string", "pattern": r"^\.\./[a-z]+$"}, "../x", True),
        ({"type": "string", "pattern": "^.*$"}, "../x", False),
        ({"type": "string", "enum": "--server"}, "--server", False),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/flag"}]}, "-A", True),
        ({}, "-A", False),
    ],
)
def test_a_schema_may_ask_for_it(schema: dict[str, Any], value: str, is_asked_for: bool) -> None:
    root = {"properties": {"flag": schema}, "$defs": {"flag": {"const": "-A"}}}
    assert (read(json.dumps({"flag": value}), root) == {"flag": value}) is is_asked_for


def test_a_schema_that_takes_too_long_to_look_at_asks_for_nothing() -> None:
    both = [{"$ref": "#"}, {"$ref": "#"}]
    with pytest.raises(arguments.UnfitError, match="begins with a dash"):
        arguments.resolve('{"a": "--server=x"}', {"allOf": both, "properties": {"a": {"anyOf": both}}}, is_child=True)


# --- whatever comes ---------------------------------------------------------------------------------------------------

PIECES = [
    *("{", "}", "[", "]", '"', "'", ":", ",", "=", "\n", " ", "- ", "&a ", "*a", "!!set ", "!!python/name:os.system "),
    *(
        "name",
        "tail",
        "5",
        "1.10",
        "no",
        "~",
        "--x",
        "../",
        "\x00",
        "\ud83d",
        "\\ud83d",
        "2026-10-01",
        "<<: ",
        "|\n",
        "#",
    ),
]
TEXTS = strategies.lists(strategies.sampled_from(PIECES), max_size=30).map("".join) | strategies.text(
    strategies.characters(), max_size=40
)
SCHEMAS = strategies.sampled_from([LOG, QUERY, FREE, NOTHING, {"$ref": "#"}, {"properties": 5}, {"required": "name"}])


@hypothesis.settings(max_examples=250, deadline=None)
@hypothesis.given(text=TEXTS, schema=SCHEMAS, is_child=strategies.booleans())
def test_any_text_of_a_model_is_arguments_or_an_error(text: str, schema: dict[str, Any], is_child: bool) -> None:
    outcome = read(text, schema, is_child=is_child)
    if isinstance(outcome, str):
        assert outcome
        return
    assert messages.is_plain_json(outcome)
    assert messages.storable_json(outcome) == outcome
    json.dumps(outcome, ensure_ascii=False, allow_nan=False).encode()
    assert arguments.resolve(json.dumps(outcome), schema, is_child=is_child) == outcome, (
        "to read them again changes nothing"
    )


HUGE = ["1" + "0" * 400, "9" * 4299, "9" * 5000, "1e400", "-1e999", "1e-400", str(2**53 + 1), "4.5"]
HOSTILE_TEXTS = strategies.one_of(
    strategies.sampled_from(HUGE).map(lambda number: f'{{"a": {number}, "b": [{number}], "c": "{number}"}}'),
    strategies.tuples(
        strategies.sampled_from(["!!int", "!!float"])
        | strategies.sampled_from(["!!bool", "!!set", "!!timestamp", "!!binary", "!!str", ""]),
        strategies.sampled_from(
            [*HUGE, "0x" + "F" * 8000, "1:" * 900 + "1", "inf", "nan", ".inf", "-.inf", ".nan", "-", "{"]
        ),
    ).map(lambda both: f"a: {both[0]} {both[1]}\nb: 5"),
    strategies.integers(1, 2000).map(lambda levels: '{"a": ' + "[" * levels + "]" * levels + "}"),
    strategies.integers(1, 2000).map(lambda levels: json.dumps({"a": "[" * levels + "]" * levels})),
    strategies.text(strategies.characters(), max_size=40).map(lambda text: json.dumps({"a": text, text: "--x"})),
    TEXTS,
)
_KEYWORDS = [
    *("type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "pattern", "required"),
    *("items", "prefixItems", "additionalItems", "properties", "patternProperties", "additionalProperties"),
    *("propertyNames", "dependentRequired", "uniqueItems", "allOf", "anyOf", "oneOf", "$ref", "$schema", "examples"),
    "default",
]
_OF_NUMBERS = ["multipleOf", "minimum", "exclusiveMaximum", "const"]
HOSTILE_VALUES = (
    strategies.sampled_from([400, 5000]).map(lambda digits: 10**digits)
    | strategies.sampled_from([-(10**400), 2**53 + 1, 1e308, 5e-324, 0, -1, 2.0, True, None, "", "#"])
    | strategies.floats()
    | strategies.sampled_from(
        ["integer", "number", "string", "array", "object", "boolean", "#/properties/a", "^-", "("]
    )
)
HOSTILE_SCHEMAS = strategies.recursive(
    HOSTILE_VALUES,
    lambda inner: strategies.one_of(
        strategies.lists(inner, max_size=3),
        strategies.dictionaries(strategies.sampled_from(_KEYWORDS), inner, max_size=4),
        strategies.dictionaries(strategies.sampled_from(["a", "b", "c", ".*", "("]), inner, max_size=3),
        strategies.tuples(inner, strategies.integers(1, 2000)).map(
            lambda both: functools.reduce(lambda below, _: {"items": below}, range(both[1]), both[0])
        ),
    ),
    max_leaves=12,
)


@hypothesis.settings(max_examples=400, deadline=None)
@hypothesis.given(
    text=HOSTILE_TEXTS,
    a=HOSTILE_SCHEMAS | strategies.dictionaries(strategies.sampled_from(_OF_NUMBERS), HOSTILE_VALUES, min_size=1),
    root=strategies.dictionaries(strategies.sampled_from(_KEYWORDS), HOSTILE_SCHEMAS, max_size=4),
    is_child=strategies.booleans(),
)
def test_any_number_or_depth_raises_only_unfit_error(text: str, a: Any, root: dict[str, Any], is_child: bool) -> None:
    schema = root if "properties" in root else root | {"properties": {"a": a}}
    outcome = read(text, schema, is_child=is_child)
    if isinstance(outcome, str):
        assert not outcome.startswith("they hold what no tool can take"), "each is told of for itself"
    else:
        json.dumps(outcome, allow_nan=False)
    assert isinstance(json.loads(tool_arguments.to_json(text)), dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: !!int 0x" + "F" * 8000, "0x" + "F" * 8000),
        ('{"a": ' + "9" * 5000 + "}", "9" * 5000),
        ('{"a": ' + "9" * 1200 + "}", int("9" * 1200)),
        ("a: !!int 0x10", 16),
        ("a: !!float inf", "inf"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_number_that_json_or_python_cannot_hold_stays_text(text: str, expected: Any) -> None:
    assert json.loads(tool_arguments.to_json(text)) == {"a": expected}
    assert arguments.resolve(text, {}, is_child=True) == {"a": expected}


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "[" * 100_000,
        '{"a":' * 100_000,
        "a: !!python/object/apply:os.system [true]",
        "a: !!binary x",
        "9" * 10_000,
        '{"a": ' + "9" * 10_000 + "}",
        "a=b," * 50_000,
        '"' * 100_000,
        "\\" * 100_000,
        '{"a": "' + "\\ud83d" * 10_000 + '"}',
        "- " * 50_000,
        "../" * 50_000,
        '{"names": [' + "1," * 400_000 + "1]}",
        '{"anything": [' + "{}," * 9_000 + "{}]}",
        '{"labels": {' + ",".join(f'"{n}": 1' for n in range(9_000)) + "}}",
        json.dumps({"name": "a", "names": "[" + "1," * 16_000 + "1]", "anything": "x" * 900_000}),
        "a=b " * 250_000,
    ],
    ids=lambda text: text[:20],
)
@pytest.mark.parametrize("schema", [LOG, QUERY, FREE], ids=["log", "query", "free"])
def test_no_text_takes_many_steps_or_grows(schema: dict[str, Any], text: str) -> None:
    def length() -> int:
        outcome = read(text, schema)
        return len(outcome) if isinstance(outcome, str) else len(json.dumps(outcome)) // 8

    assert steps.count(length, packages=("tarsy", "yaml")) < 2_000_000
    assert length() <= max(2000, len(text))
