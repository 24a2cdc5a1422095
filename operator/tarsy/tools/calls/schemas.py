"""Arguments held against the JSON Schema of their tool, and what it says of one of them.

The schema is a server's word: it may be wrong, without end, or made to keep us busy. So what is looked at is counted in
steps; patterns are RE2's; a reference leads within the schema or nowhere; and what cannot be understood says nothing.
What is refused here the schema refuses: the keywords that are not looked at (`not`, `if`, that no second one of `oneOf`
holds, `format`, ...) would only refuse more, and are left to the server.

Source: JSON Schema 2020-12, "Core" and "Validation"; of the older drafts what they write otherwise.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote

from tarsy.masking import rules

STEPS_MAX = 10_000
"""Pairs of a value and a schema that are looked at, and what takes as long: about a tenth of a second."""
FAULTS_MAX = 5
"""Faults that are told at once."""
ALTERNATIVES_MAX = 64
"""Schemas that are looked at for what they say of one value."""
REFERENCE_MAX = 256
"""Characters of a reference."""
TYPES_MAX = 16
"""Types that a schema may name for one value; there are seven."""
PATTERN_MAX = 1024
"""Characters of a pattern."""
PROGRAM_MAX = 300
"""RE2's instructions of a pattern; a label's name in Kubernetes takes 251."""
_MATCH_STEP = 2000
"""Bytes times instructions of a match that are a step: RE2 takes up to 6 ns for one."""
_EXACT_MAX = 2**53
"""Up to which every whole number is a float."""
_SHOWN_MAX = 60
_NAMES_MAX = 20

Place: TypeAlias = tuple[str | int, ...]
"""Where in the arguments something stands."""


@dataclass(frozen=True)
class Fault:
    """Something that the schema refuses."""

    place: Place
    problem: str
    """The problem there, and the remedy."""

    def __str__(self) -> str:
        return f"{path_text(self.place)}: {self.problem}" if self.place else self.problem


def path_text(location: Place) -> str:
    """A place as messages say it: `spec.containers[0].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN_MAX]}" for step in location)
    return "".join(steps).removeprefix(".")


class _TooMuchError(Exception):
    """It takes more steps than it may."""


class Schema:
    """The schema of a tool, for one call: its steps are counted over all that it is asked."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = STEPS_MAX
        self._compiled: dict[str, rules.Rule | None] = {}
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        self._is_older = isinstance(dialect, str) and _OLDER.search(dialect) is not None

    def faults(self, value: Any) -> list[Fault]:
        """Return the first faults of `value`; none if the check takes too long."""
        try:
            return self._faults(value, self._root, ())[:FAULTS_MAX]
        except (_TooMuchError, RecursionError):
            return []

    def of_all(self) -> list[Mapping[str, Any]]:
        """Return the subschemas for the arguments as a whole."""
        return self.subschemas([self._root])

    def subschemas(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        """All that is said of a value by its `schemas`: these, what they refer to, and what they are put together of.

        Nothing, where too much was asked for already.
        """
        subschemas: dict[int, Mapping[str, Any]] = {}
        waiting = [*schemas][:ALTERNATIVES_MAX]
        for schema in waiting:  # which grows meanwhile
            if not isinstance(schema, dict) or id(schema) in subschemas or len(subschemas) == ALTERNATIVES_MAX:
                continue
            self._left -= 1
            if self._left < 0:
                return []
            subschemas[id(schema)] = schema
            if "$ref" in schema:
                waiting.append(self._target(schema["$ref"]))
            for several in ("allOf", "anyOf", "oneOf"):
                waiting += _list(schema, several)[:ALTERNATIVES_MAX]
        return list(subschemas.values())

    def below(self, subschemas: Iterable[Mapping[str, Any]], step: str | int) -> list[Any]:
        """The schemas of a member or an item of a value, given what is `subschemas` of the value."""
        below: list[Any] = []
        for schema in subschemas:
            if isinstance(step, int):
                first, others = _items(schema)
                below.append(first[step] if step < len(first) else others)
            else:
                properties = _dict(schema, "properties")
                below.append(properties[step] if step in properties else schema.get("additionalProperties"))
        return below

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether a pattern finds something in `text`.

        None where RE2 cannot tell for what the server will do, and where too much was asked for already.
        """
        try:
            return self._matches(pattern, text)
        except _TooMuchError:
            return None

    def _spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise _TooMuchError

    def _target(self, reference: Any) -> Any:
        """Return the target of a reference within the schema; True, which allows everything, for any other."""
        if not isinstance(reference, str) or not reference.startswith("#") or len(reference) > REFERENCE_MAX:
            return True
        target = self._root
        for step in unquote(reference[1:]).split("/")[1:] if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict) and name in target:
                target = target[name]
            elif isinstance(target, list) and name.isdecimal() and int(name[:9]) < len(target):
                target = target[int(name[:9])]
            else:
                return True
        return target if reference == "#" or reference.startswith("#/") else True  # an anchor

    def _faults(self, value: Any, schema: Any, location: Place) -> list[Fault]:
        self._spend()
        if schema is False:
            return [Fault(location, "nothing may stand here")]
        if not isinstance(schema, dict):
            return []
        faults: list[Fault] = []
        if "$ref" in schema:
            faults += self._faults(value, self._target(schema["$ref"]), location)
            if self._is_older:  # then nothing beside it counts
                return faults
        accepted, own = types(schema), type_of(value)
        if accepted and own not in accepted and not (own == "integer" and "number" in accepted):
            return [*faults, Fault(location, f"expected {wanted(schema)}, not {excerpt(value)}")]
        faults += self._choice(value, schema, location)
        faults += self._of_kind(value, schema, location)
        for subschema in _list(schema, "allOf"):
            faults += self._faults(value, subschema, location)
        for several in ("anyOf", "oneOf"):
            faults += self._none_of(value, _list(schema, several), location)
        return faults

    def _of_kind(self, value: Any, schema: Mapping[str, Any], location: Place) -> list[Fault]:
        match value:
            case bool():
                return []
            case int() | float():
                return _number(value, schema, location)
            case str():
                return self._text(value, schema, location)
            case list():
                return self._list(value, schema, location)
            case dict():
                return self._object(value, schema, location)
        return []

    def _choice(self, value: Any, schema: Mapping[str, Any], location: Place) -> list[Fault]:
        options = [[schema["const"]]] if "const" in schema else []
        if isinstance(several := schema.get("enum"), list):
            options.append(several)
        self._spend(sum(map(len, options)) // 20)
        fits = all(any(same(value, option) for option in several) for several in options)
        return [] if fits else [_not(value, schema, location)]

    def _none_of(self, value: Any, several: Sequence[Any], location: Place) -> list[Fault]:
        """Return the faults of a value that none of `several` accepts: of the closest one, or of all together."""
        tried: list[list[Fault]] = []
        for option in several:
            if not (faults := self._faults(value, option, location)):
                return []
            tried.append(faults)
        if not tried:
            return []
        near = [faults for faults in tried if any(fault.place != location for fault in faults)]
        if near:
            return min(near, key=len)
        told_of = dict.fromkeys(wanted(option) for option in several[:_NAMES_MAX])
        return [Fault(location, f"expected {' or '.join(told_of)}, not {excerpt(value)}")]

    def _text(self, value: str, schema: Mapping[str, Any], location: Place) -> list[Fault]:
        faults = _bounds(len(value), schema, location, ("minLength", "maxLength"), "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and self._matches(pattern, value) is False:
            faults.append(_not(value, schema, location))
        return faults

    def _matches(self, pattern: str, text: str) -> bool | None:
        if pattern not in self._compiled:
            self._spend(50 + 2 * len(pattern[:PATTERN_MAX]))  # classes of Unicode take as long
            self._compiled[pattern] = _compiled(pattern)
        compiled = self._compiled[pattern]
        if compiled is None or (not text.isascii() and _CLASS.search(pattern)):
            return None
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return None
        self._spend(1 + len(encoded) * compiled.programsize // _MATCH_STEP)
        return compiled.search(encoded) is not None

    def _list(self, value: list[Any], schema: Mapping[str, Any], location: Place) -> list[Fault]:
        faults = _bounds(len(value), schema, location, ("minItems", "maxItems"), "items")
        first, others = _items(schema)
        for index, member in enumerate(value):
            subschema = first[index] if index < len(first) else others
            if subschema is not None:
                faults += self._faults(member, subschema, (*location, index))
        if schema.get("uniqueItems") is True:
            written = [json.dumps(member, sort_keys=True) for member in value]
            self._spend(len(value) + sum(map(len, written)) // 500)
            if len(set(written)) < len(value):
                faults.append(Fault(location, "no item may be there twice"))
        return faults

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], location: Place) -> list[Fault]:
        properties = _dict(schema, "properties")
        required = [name for name in _list(schema, "required") if isinstance(name, str)]
        depends = _dict(schema, "dependentRequired")
        self._spend(len(depends) // 20)
        for name, names in depends.items():
            if name in value and isinstance(names, list):
                required += [subschema for subschema in names if isinstance(subschema, str)]
        self._spend(len(required) // 20)
        missing = itertools.islice((name for name in dict.fromkeys(required) if name not in value), FAULTS_MAX)
        faults = [
            Fault(location, f"{_quoted(name)} is missing: {wanted(properties.get(name, True))}") for name in missing
        ]
        faults += _bounds(len(value), schema, location, ("minProperties", "maxProperties"), "members")
        unknown = []
        for name, member in value.items():
            schemas, is_known = self._of_member(name, schema, properties)
            if not is_known:
                unknown.append(name)
            for subschema in schemas:
                faults += self._faults(member, subschema, (*location, name))
            if "propertyNames" in schema:
                faults += self._faults(name, schema["propertyNames"], (*location, name))
        if unknown:
            there = ", ".join(map(_quoted, itertools.islice(properties, _NAMES_MAX))) or "none"
            names_told = ", ".join(map(_quoted, unknown[:FAULTS_MAX]))
            faults.append(Fault(location, f"{names_told} is not known here; known: {there}"))
        return faults

    def _of_member(self, name: str, schema: Mapping[str, Any], properties: Mapping[str, Any]) -> tuple[list[Any], bool]:
        """The schemas of a member, and whether there may be one of that name."""
        schemas = [properties[name]] if name in properties else []
        is_known = name in properties
        for pattern, subschema in _dict(schema, "patternProperties").items():
            self._spend(3)
            fits = self._matches(pattern, name)
            is_known = is_known or fits is not False
            if fits:
                schemas.append(subschema)
        others = schema.get("additionalProperties")
        if is_known or others is None or isinstance(others, bool):
            return schemas, is_known or others is not False
        return [*schemas, others], True


_OLDER = re.compile(r"/draft-0[3467]/")

_NAMES = {
    "null": "null",
    "boolean": "true or false",
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "array": "a list",
    "object": "an object",
}


def types(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that the schema names; none if it names none, or an unknown one."""
    named = schema.get("type")
    several = named if isinstance(named, list) else [named]
    if len(several) > TYPES_MAX or not all(isinstance(type_name, str) and type_name in _NAMES for type_name in several):
        return frozenset()
    return frozenset(several)


def type_of(value: Any) -> str:
    """The type of a JSON value; a whole number is an integer however it is written."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def wanted(schema: Any) -> str:
    """Return the schema's demand in a few words."""
    if not isinstance(schema, dict):
        return "something else" if schema is False else "anything"
    if "const" in schema:
        return excerpt(schema["const"])
    if options := _list(schema, "enum"):
        more = ", ..." if len(options) > _NAMES_MAX else ""
        return f"one of {', '.join(map(excerpt, options[:_NAMES_MAX]))}{more}"
    named = [_NAMES[name] for name in sorted(types(schema))] or ["something else"]
    what = " or ".join(named)
    if isinstance(pattern := schema.get("pattern"), str):
        what += f" that matches {pattern[:_SHOWN_MAX]}"
    elif required := [name for name in _list(schema, "required")[:FAULTS_MAX] if isinstance(name, str)]:
        what = f"an object with {', '.join(map(_quoted, required))}"
    elif named == ["something else"] and (several := _list(schema, "anyOf") or _list(schema, "oneOf")):
        what = " or ".join(
            dict.fromkeys(
                _NAMES[name] for option in several[:9] if isinstance(option, dict) for name in sorted(types(option))
            )
        )
    return what or "something else"


def excerpt(value: Any) -> str:
    """A value as messages say it, cut."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > _SHOWN_MAX:
            return json.dumps(value[:_SHOWN_MAX], ensure_ascii=False)[:-1] + '..."'
        case int() if abs(value) >= 10**_SHOWN_MAX:  # Python writes none of more than 4,300
            return f"a number of more than {_SHOWN_MAX} digits"
        case _:
            return json.dumps(value, ensure_ascii=False)[: 2 * _SHOWN_MAX]


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are the same; true and 1 are not."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


_CLASS = re.compile(r"\\[wWdDsSbB]|\(\?i")
"""The classes that are ASCII to some engines, and Unicode to others."""
_FOREIGN = re.compile(r"\\(?:\\|[^a-zA-Z]|[dDwWsSbBnrtfvxpP])|(?P<foreign>\\[a-zA-Z])")
"""An escape; a foreign one is something else to RE2 than to others."""


def _compiled(pattern: str) -> rules.Rule | None:
    if len(pattern) > PATTERN_MAX or any(match["foreign"] for match in _FOREIGN.finditer(pattern)):
        return None
    try:
        compiled = rules.unicode_rule(pattern.encode(), is_strange=True)
    except (rules.PatternError, UnicodeEncodeError):
        return None
    return compiled if compiled.programsize <= PROGRAM_MAX else None


def _number(value: float, schema: Mapping[str, Any], location: Place) -> list[Fault]:
    low, high, above, below, step = (
        _limit(schema, name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    )
    wrong = [
        f"at least {excerpt(low)}" if low is not None and value < low else "",
        f"at most {excerpt(high)}" if high is not None and value > high else "",
        f"more than {excerpt(above)}" if above is not None and value <= above else "",
        f"less than {excerpt(below)}" if below is not None and value >= below else "",
        f"a multiple of {int(step)}" if step is not None and _is_no_multiple(value, step) else "",
    ]
    return [Fault(location, f"expected {what}, not {excerpt(value)}") for what in wrong if what]


def _is_no_multiple(value: float, step: float) -> bool:
    """Return whether it is no multiple: exact for whole numbers; for others the server's rounding is unknown."""
    is_exact = 1 <= step <= _EXACT_MAX and abs(value) <= _EXACT_MAX and float(step).is_integer()
    return is_exact and value % step != 0


def _bounds(size: int, schema: Mapping[str, Any], location: Place, names: tuple[str, str], what: str) -> list[Fault]:
    low, high = (_limit(schema, name) for name in names)
    wrong = [
        f"at least {excerpt(low)}" if low is not None and size < low else "",
        f"at most {excerpt(high)}" if high is not None and size > high else "",
    ]
    return [Fault(location, f"expected {bound} {what}, not {size}") for bound in wrong if bound]


def _limit(schema: Mapping[str, Any], name: str) -> float | None:
    limit = schema.get(name)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _not(value: Any, schema: Mapping[str, Any], location: Place) -> Fault:
    return Fault(location, f"expected {wanted(schema)}, not {excerpt(value)}")


def _items(schema: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
    """The schemas of the first items, each its own, and that of the others; None says nothing."""
    items = schema.get("items")
    if isinstance(items, list):  # as older drafts write it
        return items, schema.get("additionalItems")
    return _list(schema, "prefixItems"), items


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    members = schema.get(name)
    return members if isinstance(members, list) else []


def _dict(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    members = schema.get(name)
    return members if isinstance(members, dict) else {}


def _quoted(name: str) -> str:
    return f"'{name[:_SHOWN_MAX]}'"
