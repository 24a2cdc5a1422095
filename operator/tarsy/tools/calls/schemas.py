"""JSON Schemas of tools: the check of arguments against them, and the subschemas for one of their values.

A schema comes from a server: it may be wrong, recursive, or written to keep us busy. So the work is counted in steps,
RE2 matches the patterns, and references outside of the schema are not followed. Unknown parts restrict nothing.

Each fault that is found here violates the schema. The keywords that are not checked (`not`, `if`, a second match in
`oneOf`, `format`, ...) could only add faults, and are left to the server.

Source: JSON Schema 2020-12, "Core" and "Validation"; older drafts where they differ.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from tarsy.masking import rules
from tarsy.tools.calls.faults import (
    FAULTS_MAX,
    NAMES_MAX,
    Fault,
    Location,
    allowed_types,
    excerpt,
    expectation,
    members,
    quoted,
    type_of,
    unexpected,
)

STEPS_MAX = 10_000
"""Checked pairs of a value and a schema, and other work of the same duration: about a tenth of a second in all."""
ALTERNATIVES_MAX = 64
"""Subschemas for one value."""
REFERENCE_MAX = 256
"""Characters of a reference."""
PATTERN_MAX = 1024
"""Characters of a pattern."""
PROGRAM_MAX = 300
"""RE2's instructions for a pattern; the name of a Kubernetes label takes 251."""
_MATCH_STEP = 2000
"""Bytes times instructions of a match that count as a step: RE2 takes up to 6 ns for each."""
_EXACT_MAX = 2**53
"""The limit up to which a float can represent every integer."""


class _OutOfStepsError(Exception):
    """The work takes more steps than allowed."""


class Schema:
    """The schema of a tool, for one call, with one limit of steps for all checks."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._left = STEPS_MAX
        self._compiled: dict[str, rules.Rule | None] = {}
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        self._is_older = isinstance(dialect, str) and _OLDER.search(dialect) is not None

    def faults(self, value: Any) -> list[Fault]:
        """The first faults of `value`; none if the check takes too many steps."""
        try:
            return self._faults(value, self._root, ())[:FAULTS_MAX]
        except (_OutOfStepsError, RecursionError):
            return []

    def of_root(self) -> list[Mapping[str, Any]]:
        """The subschemas for the arguments as a whole."""
        return self.subschemas([self._root])

    def subschemas(self, schemas: Iterable[Any]) -> list[Mapping[str, Any]]:
        """The subschemas for a value with `schemas`: these, the targets of their references, and their alternatives.

        Return none once the steps are used up.
        """
        subschemas: dict[int, Mapping[str, Any]] = {}
        waiting = [*schemas][:ALTERNATIVES_MAX]
        for schema in waiting:  # the loop appends to it
            if not isinstance(schema, dict) or id(schema) in subschemas or len(subschemas) == ALTERNATIVES_MAX:
                continue
            self._left -= 1
            if self._left < 0:
                return []
            subschemas[id(schema)] = schema
            if "$ref" in schema:
                waiting.append(self._target(schema["$ref"]))
            for several in ("allOf", "anyOf", "oneOf"):
                waiting += members(schema, several)[:ALTERNATIVES_MAX]
        return list(subschemas.values())

    def below(self, subschemas: Iterable[Mapping[str, Any]], step: str | int) -> list[Any]:
        """The schemas for a member or an item of a value with these `subschemas`."""
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
        """Whether a pattern matches in `text`.

        Return None if RE2 may differ from the server's engine, or once the steps are used up.
        """
        try:
            return self._matches(pattern, text)
        except _OutOfStepsError:
            return None

    def _spend(self, steps: int = 1) -> None:
        self._left -= steps
        if self._left < 0:
            raise _OutOfStepsError

    def _target(self, reference: Any) -> Any:
        """The target of a reference within the schema; True, which allows every value, for any other reference."""
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

    def _faults(self, value: Any, schema: Any, location: Location) -> list[Fault]:
        self._spend()
        if schema is False:
            return [Fault(location, "no value is allowed here")]
        if not isinstance(schema, dict):
            return []
        faults: list[Fault] = []
        if "$ref" in schema:
            faults += self._faults(value, self._target(schema["$ref"]), location)
            if self._is_older:  # the keywords beside it do not count
                return faults
        accepted, own = allowed_types(schema), type_of(value)
        if accepted and own not in accepted and not (own == "integer" and "number" in accepted):
            return [*faults, Fault(location, f"expected {expectation(schema)}, not {excerpt(value)}")]
        faults += self._option_faults(value, schema, location)
        faults += self._type_faults(value, schema, location)
        for subschema in members(schema, "allOf"):
            faults += self._faults(value, subschema, location)
        for keyword in ("anyOf", "oneOf"):
            faults += self._alternative_faults(value, members(schema, keyword), location)
        return faults

    def _type_faults(self, value: Any, schema: Mapping[str, Any], location: Location) -> list[Fault]:
        match value:
            case bool():
                return []
            case int() | float():
                return _number_faults(value, schema, location)
            case str():
                return self._string_faults(value, schema, location)
            case list():
                return self._list_faults(value, schema, location)
            case dict():
                return self._object_faults(value, schema, location)
        return []

    def _option_faults(self, value: Any, schema: Mapping[str, Any], location: Location) -> list[Fault]:
        options = [[schema["const"]]] if "const" in schema else []
        if isinstance(several := schema.get("enum"), list):
            options.append(several)
        self._spend(sum(map(len, options)) // 20)
        fits = all(any(same(value, option) for option in several) for several in options)
        return [] if fits else [unexpected(value, schema, location)]

    def _alternative_faults(self, value: Any, options: Sequence[Any], location: Location) -> list[Fault]:
        """The faults of a value that none of `options` accepts: those of the closest option, or one for all."""
        tried: list[list[Fault]] = []
        for option in options:
            if not (faults := self._faults(value, option, location)):
                return []
            tried.append(faults)
        if not tried:
            return []
        near = [faults for faults in tried if any(fault.location != location for fault in faults)]
        if near:
            return min(near, key=len)
        expectations = dict.fromkeys(expectation(option) for option in options[:NAMES_MAX])
        return [Fault(location, f"expected {' or '.join(expectations)}, not {excerpt(value)}")]

    def _string_faults(self, value: str, schema: Mapping[str, Any], location: Location) -> list[Fault]:
        faults = _size_faults(len(value), schema, location, ("minLength", "maxLength"), "characters")
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and self._matches(pattern, value) is False:
            faults.append(unexpected(value, schema, location))
        return faults

    def _matches(self, pattern: str, text: str) -> bool | None:
        if pattern not in self._compiled:
            self._spend(50 + 2 * len(pattern[:PATTERN_MAX]))  # Unicode classes take that long
            self._compiled[pattern] = _compiled(pattern)
        compiled = self._compiled[pattern]
        if compiled is None or (not text.isascii() and _CLASS.search(pattern)):
            return None
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            return None
        self._spend(1 + len(encoded) * rules.program_size(compiled) // _MATCH_STEP)
        return compiled.search(encoded) is not None

    def _list_faults(self, value: list[Any], schema: Mapping[str, Any], location: Location) -> list[Fault]:
        faults = _size_faults(len(value), schema, location, ("minItems", "maxItems"), "items")
        first, others = _items(schema)
        for index, member in enumerate(value):
            subschema = first[index] if index < len(first) else others
            if subschema is not None:
                faults += self._faults(member, subschema, (*location, index))
        if schema.get("uniqueItems") is True:
            written = [json.dumps(member, sort_keys=True) for member in value]
            self._spend(len(value) + sum(map(len, written)) // 500)
            if len(set(written)) < len(value):
                faults.append(Fault(location, "no item may appear twice"))
        return faults

    def _object_faults(self, value: dict[str, Any], schema: Mapping[str, Any], location: Location) -> list[Fault]:
        properties = _dict(schema, "properties")
        required = [name for name in members(schema, "required") if isinstance(name, str)]
        depends = _dict(schema, "dependentRequired")
        self._spend(len(depends) // 20)
        for name, names in depends.items():
            if name in value and isinstance(names, list):
                required += [other for other in names if isinstance(other, str)]
        self._spend(len(required) // 20)
        missing = itertools.islice((name for name in dict.fromkeys(required) if name not in value), FAULTS_MAX)
        faults = [
            Fault(location, f"{quoted(name)} is missing: {expectation(properties.get(name, True))}") for name in missing
        ]
        faults += _size_faults(len(value), schema, location, ("minProperties", "maxProperties"), "members")
        unknown = []
        for name, member in value.items():
            schemas, is_known = self._member_schemas(name, schema, properties)
            if not is_known:
                unknown.append(name)
            for subschema in schemas:
                faults += self._faults(member, subschema, (*location, name))
            if "propertyNames" in schema:
                faults += self._faults(name, schema["propertyNames"], (*location, name))
        if unknown:
            known_names = ", ".join(map(quoted, itertools.islice(properties, NAMES_MAX))) or "none"
            unknown_names = ", ".join(map(quoted, unknown[:FAULTS_MAX]))
            faults.append(Fault(location, f"{unknown_names} is unknown here; known: {known_names}"))
        return faults

    def _member_schemas(
        self, name: str, schema: Mapping[str, Any], properties: Mapping[str, Any]
    ) -> tuple[list[Any], bool]:
        """The schemas of a member, and whether the schema allows its name."""
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


def same(value: Any, other: Any) -> bool:
    """Whether two JSON values are the same; true and 1 are different."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


_CLASS = re.compile(r"\\[wWdDsSbB]|\(\?i")
"""Classes that mean ASCII in some engines, and Unicode in others."""
_FOREIGN = re.compile(r"\\(?:\\|[^a-zA-Z]|[dDwWsSbBnrtfvxpP])|(?P<foreign>\\[a-zA-Z])")
"""An escape; a `foreign` one has different meanings in RE2 and in other engines."""


def _compiled(pattern: str) -> rules.Rule | None:
    if len(pattern) > PATTERN_MAX or any(match["foreign"] for match in _FOREIGN.finditer(pattern)):
        return None
    try:
        compiled = rules.unicode_rule(pattern.encode(), is_strange=True)
    except (rules.PatternError, UnicodeEncodeError):
        return None
    return compiled if rules.program_size(compiled) <= PROGRAM_MAX else None


def _number_faults(value: float, schema: Mapping[str, Any], location: Location) -> list[Fault]:
    low, high, above, below, step = (
        _bound(schema, name) for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    )
    is_exact = step is not None and 1 <= step <= _EXACT_MAX and abs(value) <= _EXACT_MAX and float(step).is_integer()
    wrong = [
        f"at least {excerpt(low)}" if low is not None and value < low else "",
        f"at most {excerpt(high)}" if high is not None and value > high else "",
        f"more than {excerpt(above)}" if above is not None and value <= above else "",
        f"less than {excerpt(below)}" if below is not None and value >= below else "",
        # of fractions the server's rounding is unknown
        f"a multiple of {int(step)}" if step is not None and is_exact and value % step else "",
    ]
    return [Fault(location, f"expected {what}, not {excerpt(value)}") for what in wrong if what]


def _size_faults(
    size: int, schema: Mapping[str, Any], location: Location, names: tuple[str, str], what: str
) -> list[Fault]:
    low, high = (_bound(schema, name) for name in names)
    wrong = [
        f"at least {excerpt(low)}" if low is not None and size < low else "",
        f"at most {excerpt(high)}" if high is not None and size > high else "",
    ]
    return [Fault(location, f"expected {bound} {what}, not {size}") for bound in wrong if bound]


def _bound(schema: Mapping[str, Any], name: str) -> float | None:
    limit = schema.get(name)
    return limit if isinstance(limit, int | float) and not isinstance(limit, bool) else None


def _items(schema: Mapping[str, Any]) -> tuple[Sequence[Any], Any]:
    """The schemas of the first items, and the schema of all others, which may be None."""
    items = schema.get("items")
    if isinstance(items, list):  # in older drafts
        return items, schema.get("additionalItems")
    return members(schema, "prefixItems"), items


def _dict(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, dict) else {}
