"""The arguments that a model writes for a tool: usually JSON, and otherwise what models tend to write.

No tool is known here. So a value that may have been meant as a number or as a text stays text if the number would be
spelled otherwise: `1.10` is a version to one tool, and a share to another. `tools.calls.arguments` knows which.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import yaml

from tarsy.transcript import messages

_NOTHING = frozenset({"", "none", "null", "n/a", "-"})
"""The texts that mean no arguments."""
DEEPEST = 100
"""Levels of lists and objects in one another."""
LONGEST = 32 * 1024
"""Characters that are read as anything but JSON; to read as many takes some hundredths of a second."""
_UNREADABLE = (*(yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError),)
"""The exceptions of the parsers; PyYAML's constructors fail with them on a tag that does not fit."""

INTEGER_LONGEST = 1200
"""Characters of an integer, in any notation; a longer one stays text. Python writes none of more than 4,300 digits."""

_WORDS = {"true": True, "false": False, "null": None, "none": None}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,15}+)(?:\.[0-9]{1,15}+)?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KEY = r"[\"'`]?(?P<%s>[A-Za-z_][\w.-]*+)[\"'`]?\s*+(?:=(?!=)|:(?=[\s\"']|\Z))"
"""A name and what stands before a value; the colon of an address is none."""
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
"""A pair. Its value goes on to the next pair or the line's end, and over what is in quotes or brackets."""


RAW = "input"
"""The argument that holds an unreadable text."""


def to_json(raw: str) -> str:
    """The JSON text of an object; this never fails, and takes time in proportion to the text.

    What is nothing that `parse` reads is the argument `input`.
    """
    parameters = parse(raw)
    arguments = {RAW: raw.strip()} if parameters is None else parameters
    return messages.storable(json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def parse(raw: str) -> dict[str, Any] | None:
    """The arguments, as JSON can hold them; None where the text is none. This never fails, and takes linear time.

    What is no JSON object is read as YAML, then as pairs, unless it is too long for that.
    """
    text = raw.strip()
    if text.lower() in _NOTHING:
        return {}
    for attempt in (_from_json, _from_yaml, _from_pairs) if len(text) <= LONGEST else (_from_json,):
        try:
            if (parameters := attempt(text)) is not None:
                plain: dict[str, Any] = _plain(parameters)
                return plain
        except _UNREADABLE:
            continue
    return None


def _plain(value: Any, *, deepest: int = DEEPEST) -> Any:
    """`value` as JSON can hold it; a ValueError if it is nested too deep for all programs that read it."""
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


def _number(text: str) -> float | str:
    """A number; one that is too large for us stays text."""
    number = float(text)
    return number if math.isfinite(number) else text


def _integer(text: str) -> int | str:
    """An integer; one that is too long stays text."""
    return int(text) if len(text) <= INTEGER_LONGEST else text


def _same_number(text: str) -> float | str:
    """A number that is written as it was; else the text, so that nothing of it is lost: `1.10`."""
    number = float(text)
    return number if math.isfinite(number) and repr(number) == text else text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


_JSON = json.JSONDecoder(strict=False, parse_float=_number, parse_int=_integer, parse_constant=_refuse)
"""Python's, with line breaks inside strings, and without NaN and Infinity."""


def loads(text: str) -> Any:
    """Return the value of a JSON text; raises ValueError or RecursionError. Numbers that are too large stay text."""
    return _JSON.decode(text)


def _from_json(text: str) -> dict[str, Any] | None:
    loaded = loads(text) if text.startswith("{") else None
    return loaded if isinstance(loaded, dict) else None


_OTHERWISE = {"timestamp", "int", "float", "bool"}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc] # in C where PyYAML has that
    """PyYAML's safe loader, but what looks like a date, a time of day, `0755` or `no` stays what it looks like."""

    yaml_implicit_resolvers = {
        first: [(tag, kind) for tag, kind in resolvers if tag.rpartition(":")[2] not in _OTHERWISE]
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
        text if len(text := loader.construct_scalar(node)) > INTEGER_LONGEST else loader.construct_yaml_int(node)
    ),
)
_Loader.add_constructor("tag:yaml.org,2002:float", lambda loader, node: _same_number(loader.construct_scalar(node)))


def _from_yaml(text: str) -> dict[str, Any] | None:
    """A mapping in YAML, without references, which multiply."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            return None
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            return None
    loaded = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    is_mapping = isinstance(loaded, dict) and all(isinstance(key, str) for key in loaded)
    return loaded if is_mapping else None


def _from_pairs(text: str) -> dict[str, Any] | None:
    """`a=b, c=d` and `a: b, c: d`, with commas, semicolons, blanks or line breaks between them."""
    if text.startswith(("{", "[")):  # it is meant to be what it could not be read as
        return None
    pairs: dict[str, Any] = {}
    at = 0
    while at < len(text):
        pair = _PAIR.match(text, at)
        if pair is None:
            return None
        pairs[pair["key"]] = _value(pair)
        at = pair.end()
    return pairs


def _value(pair: re.Match[str]) -> Any:
    """A pair's value: without its quotes, or the number or word of JSON's that it is."""
    if pair["bare"] is None:
        return _ESCAPE.sub(r"\1", pair["double"]) if pair["single"] is None else pair["single"]
    bare = pair["bare"].strip(" \t\r,;")
    if bare.lower() in _WORDS:
        return _WORDS[bare.lower()]
    if not _NUMBER.fullmatch(bare):
        return bare
    return _same_number(bare) if "." in bare else int(bare)
