"""Parser of the arguments that a model writes for a tool: JSON, YAML, or pairs such as `a=b, c=d`.

The schema of the tool is unknown here. A value that may be a number or a text is a number only if the number is written
in the same way: `1.10` is a version for one tool and a share for another. `tools.calls.arguments` has the schema.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from tarsy import rawjson
from tarsy.transcript import messages

_NOTHING = frozenset({"", "none", "null", "n/a", "-"})
"""The texts that mean no arguments."""
DEPTH_MAX = 100
"""The maximum nesting of lists and objects."""
LENGTH_MAX = 32 * 1024
"""The maximum length of text that is read as YAML or pairs, in characters; it takes some hundredths of a second."""
_UNREADABLE = (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)
"""The exceptions of the parsers. PyYAML's constructors raise them for a tag that does not fit its value."""

INTEGER_MAX = 1200
"""The maximum length of an integer, in characters; a longer one stays text. Python refuses more than 4,300 digits."""

_WORDS = {"true": True, "false": False, "null": None, "none": None}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15}+)(?:\.[0-9]{1,15}+)?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KEY = r"[\"'`]?(?P<%s>[A-Za-z_][\w.-]*+)[\"'`]?\s*+(?:=(?!=)|:(?=[\s\"']|\Z))"
"""A name, and the sign between it and its value. The colon of an address is no such sign."""
_PAIR = re.compile(
    rf"""
    [\s,;]*+{_KEY % "key"}[ \t]*+
    (?:
        "(?P<double>(?:[^"\\]|\\.)*+)"(?=[\s,;]|\Z)
        | '(?P<single>[^']*+)'(?=[\s,;]|\Z)
        | (?P<bare>(?:"[^"\n]*+"|\{{[^{{}}\n]*+\}}|\([^()\n]*+\)|\[[^\[\]\n]*+\]|(?![\s,;]{_KEY % "next"})[^\n])*+)
    )
    [\s,;]*+
    """,
    re.DOTALL | re.VERBOSE,
)
"""A pair. Its value ends at the next pair or the line's end; quotes and brackets are not split."""

RAW = "input"
"""The argument that holds a text that cannot be parsed."""


def to_json(raw: str) -> str:
    """Return the arguments as the JSON text of an object. This never fails, and takes linear time.

    A text that `parse` cannot read becomes the argument `input`.
    """
    parameters = parse(raw)
    arguments = {RAW: raw.strip()} if parameters is None else parameters
    return messages.storable(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def parse(raw: str) -> dict[str, Any] | None:
    """Return the arguments as a JSON object; None if the text is none. This never fails, and takes linear time.

    A text that is no JSON object is read as YAML, then as pairs, unless it is longer than `LENGTH_MAX`.
    """
    text = raw.strip()
    if text.lower() in _NOTHING:
        return {}
    for attempt in (_from_json, _from_yaml, _from_pairs) if len(text) <= LENGTH_MAX else (_from_json,):
        try:
            if (parameters := attempt(text)) is not None:
                plain: dict[str, Any] = _plain(parameters)
                return plain
        except _UNREADABLE:
            continue
    return None


def _plain(value: Any, *, deepest: int = DEPTH_MAX) -> Any:
    """Return `value` as JSON; raises ValueError if it is nested too deep for some of the programs that read it."""
    match value:
        case dict() | list() | tuple() if deepest == 0:
            raise ValueError("nested too deep")
        case dict():
            return {str(key): _plain(member, deepest=deepest - 1) for key, member in value.items()}
        case list() | tuple():
            return [_plain(member, deepest=deepest - 1) for member in value]
        case set():
            return ", ".join(sorted(map(str, value)))
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value)


def _same_number(text: str) -> float | str:
    """Return the number if Python writes it in the same way; else the text, such as `1.10`."""
    number = float(text)
    return number if math.isfinite(number) and repr(number) == text else text


_JSON = json.JSONDecoder(
    strict=False,
    parse_float=lambda text: number if math.isfinite(number := float(text)) else text,
    parse_int=lambda text: int(text) if len(text) <= INTEGER_MAX else text,
    parse_constant=rawjson.refuse_constant,
)
"""A decoder that takes line breaks inside strings and refuses NaN and Infinity; too large numbers stay text."""


def loads(text: str) -> Any:
    """Return the value of a JSON text; raises ValueError or RecursionError. Numbers that are too large stay text."""
    return _JSON.decode(text)


def _from_json(text: str) -> dict[str, Any] | None:
    loaded = loads(text) if text.startswith("{") else None
    return loaded if isinstance(loaded, dict) else None


_REPLACED_TAGS = {"timestamp", "int", "float", "bool", "value"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # in C if PyYAML was built so
    """PyYAML's safe loader with JSON's numbers and words: a date, a time of day, `0755`, `no` and `=` stay text."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in _REPLACED_TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"None\Z"), ["N"])  # as in Python
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"-?(?:0|[1-9][0-9]*+)\Z"), list("-0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"-?(?:0|[1-9][0-9]*+)\.[0-9]++(?:[eE][-+]?[0-9]++)?\Z"), list("-0123456789")
)
_Loader.add_constructor(
    "tag:yaml.org,2002:int",
    lambda loader, node: (
        text if len(text := loader.construct_scalar(node)) > INTEGER_MAX else loader.construct_yaml_int(node)
    ),
)
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: _same_number(loader.construct_scalar(node)))


def _from_yaml(text: str) -> dict[str, Any] | None:
    """Parse a YAML mapping. One with anchors is refused, because aliases can multiply its size."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            return None
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            return None
    loaded = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    is_mapping = isinstance(loaded, dict) and all(isinstance(key, str) for key in loaded)
    return loaded if is_mapping else None


def _from_pairs(text: str) -> dict[str, Any] | None:
    """Parse `a=b, c=d` or `a: b, c: d`, separated by commas, semicolons, spaces or line breaks."""
    if text.startswith(("{", "[")):  # broken JSON or YAML
        return None
    pairs: dict[str, Any] = {}
    start = 0
    while start < len(text):
        pair = _PAIR.match(text, start)
        if pair is None:
            return None
        pairs[pair["key"]] = _pair_value(pair)
        start = pair.end()
    return pairs


def _pair_value(pair: re.Match[str]) -> Any:
    """Return the value of a pair: a text without its quotes, a number, or one of JSON's words."""
    if pair["bare"] is None:
        return _ESCAPE.sub(r"\1", pair["double"]) if pair["single"] is None else pair["single"]
    bare = pair["bare"].strip(" \t\r,;")
    if bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    if not _NUMBER.fullmatch(bare):
        return bare
    return _same_number(bare) if "." in bare else int(bare)
