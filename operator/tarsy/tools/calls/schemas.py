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
    """What is wrong there, and what would be right."""

    def __str__(self) -> str:
        return f"{told(self.place)}: {self.problem}" if self.place else self.problem


def told(place: Place) -> str:
    """A place as messages say it: `spec.containers[0].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step[:_SHOWN_MAX]}" for step in place)
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
        """What of `value` is refused, the first few; nothing where it takes too long to find out."""
        try:
            return self._faults(value, self._root, ())[:FAULTS_MAX]
        except (_TooMuchError, RecursionError):
            return []

    def of_all(self) -> list[Mapping[str, Any]]:
        """What it says of the arguments as a whole."""
        return self.said([self._root])

    def said(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        """All that is said of a value by its `schemas`: these, what they refer to, and what they are put together of.

        Nothing, where too much was asked for already.
        """
        found: dict[int, Mapping[str, Any]] = {}
        waiting = [*schemas][:ALTERNATIVES_MAX]
        for schema in waiting:  # which grows meanwhile
            if not isinstance(schema, dict) or id(schema) in found or len(found) == ALTERNATIVES_MAX:
                continue
            self._left -= 1
            if self._left < 0:
                return []
            found[id(schema)] = schema
            if "$ref" in schema:
                waiting.append(self._target(schema["$ref"]))
            for several in ("allOf", "anyOf", "oneOf"):
                waiting += _list(schema, several)[:ALTERNATIVES_MAX]
        return list(found.values())

    def below(self, said: Iterable[Mapping[str, Any]], step: str | int) -> list[Any]:
        """The schemas of a member or an item of a value, given what is `said` of the value."""
        below: list[Any] = []
        for schema in said:
            if isinstance(step, int):
                first, others = _items(schema)
                below.append(first[step] if step < len(first) else others)
            else:
                known = _dict(schema, "properties")
                below.append(known[step] if step in known else schema.get("additionalProperties"))
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
        """What a reference within the schema leads to; True, which says nothing, for any other."""
        if not isinstance(reference, str) or not reference.startswith("#") or len(reference) > REFERENCE_MAX:
            return True
        found = self._root
        for step in unquote(reference[1:]).split("/")[1:] if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name[:9]) < len(found):
                found = found[int(name[:9])]
            else:
                return True
        return found if reference == "#" or reference.startswith("#/") else True  # an anchor

    def _faults(self, value: Any, schema: Any, place: Place) -> list[Fault]:
        self._spend()
        if schema is False:
            return [Fault(place, "nothing may stand here")]
        if not isinstance(schema, dict):
            return []
        found: list[Fault] = []
        if "$ref" in schema:
            found += self._faults(value, self._target(schema["$ref"]), place)
            if self._is_older:  # then nothing beside it counts
                return found
        if not _is_of(value, types(schema)):
            return [*found, Fault(place, f"expected {wanted(schema)}, not {shown(value)}")]
        found += self._choice(value, schema, place)
        found += self._of_kind(value, schema, place)
        for one in _list(schema, "allOf"):
            found += self._faults(value, one, place)
        for several in ("anyOf", "oneOf"):
            found += self._none_of(value, _list(schema, several), place)
        return found

    def _of_kind(self, value: Any, schema: Mapping[str, Any], place: Place) -> list[Fault]:
        match value:
            case bool():
                return []
            case int() | float():
                return _number(value, schema, place)
            case str():
                return self._text(value, schema, place)
            case list():
                return self._list(value, schema, place)
            case dict():
                return self._object(value, schema, place)
        return []

    def _choice(self, value: Any, schema: Mapping[str, Any], place: Place) -> list[Fault]:
        options = [[schema["const"]]] if "const" in schema else []
        if isinstance(several := schema.get("enum"), list):
            options.append(several)
        self._spend(sum(map(len, options)) // 20)
        fits = all(any(same(value, one) for one in several) for several in options)
        return [] if fits else [_not(value, schema, place)]

    def _none_of(self, value: Any, several: Sequence[Any], place: Place) -> list[Fault]:
        """What is wrong where none of `several` takes the value: of one that is about it, or of all together."""
        tried: list[list[Fault]] = []
        for one in several:
            if not (faults := self._faults(value, one, place)):
                return []
            tried.append(faults)
        if not tried:
            return []
        near = [faults for faults in tried if any(fault.place != place for fault in faults)]
        if near:
            return min(near, key=len)
        told_of = dict.fromkeys(wanted(one) for one in several[:_NAMES_MAX])
        return [Fault(place, f"expected {' or '.join(told_of)}, not {shown(value)}")]

    def _text(self, value: str, schema: Mapping[str, Any], place: Place) -> list[Fault]:
        found = _bounds(len(value), schema, place, ("minLength", "maxLength"), "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and self._matches(pattern, value) is False:
            found.append(_not(value, schema, place))
        return found

    def _matches(self, pattern: str, text: str) -> bool | None:
        if pattern not in self._compiled:
            self._spend(50 + 2 * len(pattern[:PATTERN_MAX]))  # classes of Unicode take as long
            self._compiled[pattern] = _compiled(pattern)
        compiled = self._compiled[pattern]
        if compiled is None or (not text.isascii() and _CLASS.search(pattern)):
            return None
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return None
        self._spend(1 + len(data) * compiled.programsize // _MATCH_STEP)
        return compiled.search(data) is not None

    def _list(self, value: list[Any], schema: Mapping[str, Any], place: Place) -> list[Fault]:
        found = _bounds(len(value), schema, place, ("minItems", "maxItems"), "items")
        first, others = _items(schema)
        for index, item in enumerate(value):
            one = first[index] if index < len(first) else others
            if one is not None:
                found += self._faults(item, one, (*place, index))
        if schema.get("uniqueItems") is True:
            written = [json.dumps(item, sort_keys=True) for item in value]
            self._spend(len(value) + sum(map(len, written)) // 500)
            if len(set(written)) < len(value):
                found.append(Fault(place, "no item may be there twice"))
        return found

    def _object(self, value: dict[str, Any], schema: Mapping[str, Any], place: Place) -> list[Fault]:
        known = _dict(schema, "properties")
        required = [name for name in _list(schema, "required") if isinstance(name, str)]
        depends = _dict(schema, "dependentRequired")
        self._spend(len(depends) // 20)
        for name, names in depends.items():
            if name in value and isinstance(names, list):
                required += [one for one in names if isinstance(one, str)]
        self._spend(len(required) // 20)
        missing = itertools.islice((name for name in dict.fromkeys(required) if name not in value), FAULTS_MAX)
        found = [Fault(place, f"{_quoted(name)} is missing: {wanted(known.get(name, True))}") for name in missing]
        found += _bounds(len(value), schema, place, ("minProperties", "maxProperties"), "members")
        unknown = []
        for name, item in value.items():
            schemas, is_known = self._of_member(name, schema, known)
            if not is_known:
                unknown.append(name)
            for one in schemas:
                found += self._faults(item, one, (*place, name))
            if "propertyNames" in schema:
                found += self._faults(name, schema["propertyNames"], (*place, name))
        if unknown:
            there = ", ".join(map(_quoted, itertools.islice(known, _NAMES_MAX))) or "none"
            names_told = ", ".join(map(_quoted, unknown[:FAULTS_MAX]))
            found.append(Fault(place, f"{names_told} is not known here; known: {there}"))
        return found

    def _of_member(self, name: str, schema: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[list[Any], bool]:
        """The schemas of a member, and whether there may be one of that name."""
        schemas = [known[name]] if name in known else []
        is_known = name in known
        for pattern, one in _dict(schema, "patternProperties").items():
            self._spend(3)
            fits = self._matches(pattern, name)
            is_known = is_known or fits is not False
            if fits:
                schemas.append(one)
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
    """The types that it names; none where it says nothing of them, or what nobody knows."""
    named = schema.get("type")
    several = named if isinstance(named, list) else [named]
    if len(several) > TYPES_MAX or not all(isinstance(one, str) and one in _NAMES for one in several):
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


def _is_of(value: Any, wanted: frozenset[str]) -> bool:
    own = type_of(value)
    return not wanted or own in wanted or (own == "integer" and "number" in wanted)


def wanted(schema: Any) -> str:
    """What it asks for, in a few words."""
    if not isinstance(schema, dict):
        return "something else" if schema is False else "anything"
    if "const" in schema:
        return shown(schema["const"])
    if options := _list(schema, "enum"):
        more = ", ..." if len(options) > _NAMES_MAX else ""
        return f"one of {', '.join(map(shown, options[:_NAMES_MAX]))}{more}"
    named = [_NAMES[name] for name in sorted(types(schema))] or ["something else"]
    what = " or ".join(named)
    if isinstance(pattern := schema.get("pattern"), str):
        what += f" that matches {pattern[:_SHOWN_MAX]}"
    elif required := [name for name in _list(schema, "required")[:FAULTS_MAX] if isinstance(name, str)]:
        what = f"an object with {', '.join(map(_quoted, required))}"
    elif named == ["something else"] and (several := _list(schema, "anyOf") or _list(schema, "oneOf")):
        what = " or ".join(dict.fromkeys(_NAMES[name] for one in several[:9] for name in sorted(_types_in(one))))
    return what or "something else"


def _types_in(schema: Any) -> frozenset[str]:
    return types(schema) if isinstance(schema, dict) else frozenset()


def shown(value: Any) -> str:
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


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same; true and 1 are not."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


_CLASS = re.compile(r"\\[wWdDsSbB]|\(\?i")
"""What is ASCII to some, and Unicode to others."""
_FOREIGN = re.compile(r"\\(?:\\|[^a-zA-Z]|[dDwWsSbBnrtfvxpP])|(?P<foreign>\\[a-zA-Z])")
"""An escape; a foreign one is something else to RE2 than to others."""


def _compiled(pattern: str) -> rules.Rule | None:
    if len(pattern) > PATTERN_MAX or any(one["foreign"] for one in _FOREIGN.finditer(pattern)):
        return None
    try:
        compiled = rules.unicode_rule(pattern.encode(), is_strange=True)
    except (rules.PatternError, UnicodeEncodeError):
        return None
    return compiled if compiled.programsize <= PROGRAM_MAX else None


def _number(value: float, schema: Mapping[str, Any], place: Place) -> list[Fault]:
    low, high, above, below, step = (
        _limit(schema, name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    )
    wrong = [
        f"at least {shown(low)}" if low is not None and value < low else "",
        f"at most {shown(high)}" if high is not None and value > high else "",
        f"more than {shown(above)}" if above is not None and value <= above else "",
        f"less than {shown(below)}" if below is not None and value >= below else "",
        f"a multiple of {int(step)}" if step is not None and _is_no_multiple(value, step) else "",
    ]
    return [Fault(place, f"expected {what}, not {shown(value)}") for what in wrong if what]


def _is_no_multiple(value: float, step: float) -> bool:
    """Of a whole number that is exact; of others nobody knows how the server rounds."""
    is_exact = 1 <= step <= _EXACT_MAX and abs(value) <= _EXACT_MAX and float(step).is_integer()
    return is_exact and value % step != 0


def _bounds(size: int, schema: Mapping[str, Any], place: Place, names: tuple[str, str], what: str) -> list[Fault]:
    low, high = (_limit(schema, name) for name in names)
    wrong = [
        f"at least {shown(low)}" if low is not None and size < low else "",
        f"at most {shown(high)}" if high is not None and size > high else "",
    ]
    return [Fault(place, f"expected {one} {what}, not {size}") for one in wrong if one]


def _limit(schema: Mapping[str, Any], name: str) -> float | None:
    found = schema.get(name)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def _not(value: Any, schema: Mapping[str, Any], place: Place) -> Fault:
    return Fault(place, f"expected {wanted(schema)}, not {shown(value)}")


def _items(schema: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
    """The schemas of the first items, each its own, and that of the others; None says nothing."""
    items = schema.get("items")
    if isinstance(items, list):  # as older drafts write it
        return items, schema.get("additionalItems")
    return _list(schema, "prefixItems"), items


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    found = schema.get(name)
    return found if isinstance(found, list) else []


def _dict(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = schema.get(name)
    return found if isinstance(found, dict) else {}


def _quoted(name: str) -> str:
    return f"'{name[:_SHOWN_MAX]}'"
