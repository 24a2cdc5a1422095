"""The arguments of a tool call: parsed from the model's text, converted to the types of the tool's schema, and checked.

Arguments are sent as JSON and never become part of a command line of ours. But a server that we started may build a
command line from them, in which `--server=...` in place of a name, or `../..`, has another meaning
(mcp-server-kubernetes, issue 328). So such a value is refused there, unless the schema allows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

from tarsy import rawjson
from tarsy.tools.calls import schemas
from tarsy.tools.calls.faults import FAULTS_MAX, Fault, Location, allowed_types, excerpt, expectation, type_of
from tarsy.transcript import messages, tool_arguments

VALUES_MAX = 10_000
"""The maximal number of JSON values in the arguments; they can be checked in a tenth of a second."""
PARAMETERS_NAMED = 20
"""The maximal number of parameters that an error names."""

_PLAINLY = "write numbers with a few digits, texts in quotes, and few levels"
_TOO_DEEP = f"they are nested deeper than {tool_arguments.DEPTH_MAX} levels"

Subschemas: TypeAlias = Sequence[Mapping[str, Any]]
"""The subschemas for one value (`schemas.Schema.subschemas`)."""


class UnfitError(ValueError):
    """Unusable arguments; the message tells the model what is wrong, where, and what is expected."""


def resolve(text: str, parameters: Mapping[str, Any], *, is_child: bool) -> dict[str, Any]:
    """The arguments in `text` for a tool with the schema `parameters`. Raises UnfitError if they are unusable.

    The text is JSON, else YAML, else pairs, else the value of the tool's only text parameter. Values are converted to
    the types of the schema if their meaning is clear. `is_child` means a server that we started.
    """
    try:
        return _resolve(text, parameters, is_child=is_child)
    except UnfitError:
        raise
    except (ArithmeticError, ValueError, RecursionError) as error:  # from unexpected numbers and levels
        raise UnfitError(f"they hold what no tool can take; {_PLAINLY}") from error


def _resolve(text: str, parameters: Mapping[str, Any], *, is_child: bool) -> dict[str, Any]:
    if rawjson.has_more_values(text.encode("utf-8", "replace"), VALUES_MAX):
        raise UnfitError(f"they have more than {VALUES_MAX} values")
    schema = schemas.Schema(parameters)
    arguments: dict[str, Any] = messages.storable_json(_converted(_parsed(text, schema), schema.of_root(), schema))
    faults = schema.faults(arguments)
    if is_child and not faults:
        faults = list(_command_line_faults(arguments, schema.of_root(), schema, ()))[:FAULTS_MAX]
    if faults:
        raise UnfitError("; ".join(map(str, faults)))
    return arguments


def _parsed(text: str, schema: schemas.Schema) -> dict[str, Any]:
    parameters = tool_arguments.parse(text)
    if parameters is None:
        return _from_text(text.strip(), schema)
    raw = parameters.get(tool_arguments.RAW)
    if parameters.keys() == {tool_arguments.RAW} and isinstance(raw, str):  # perhaps read before its tool was known
        names = _parameters(schema)
        if names and tool_arguments.RAW not in names:
            return _from_text(raw, schema)
    return parameters


def _from_text(text: str, schema: schemas.Schema) -> dict[str, Any]:
    """The arguments for a text that is no object: the value of the tool's only text parameter."""
    try:
        loaded = tool_arguments.loads(text)
    except (ValueError, RecursionError) as error:
        if text.startswith('{"'):  # the start of JSON
            line = str(error).partition("\n")[0][:200]
            raise UnfitError(f"they are not JSON ({line}); {_expected(schema)}") from error
        loaded = text
    if isinstance(loaded, str) and loaded != text and (parameters := tool_arguments.parse(loaded)) is not None:
        return parameters
    if isinstance(loaded, dict):
        raise UnfitError(_TOO_DEEP)
    if isinstance(loaded, list):
        raise UnfitError(f"they are a list; {_expected(schema)}")
    texts = [name for name, subschemas in _parameters(schema).items() if "string" in _types(subschemas)]
    if len(texts) != 1:
        raise UnfitError(f"they are neither JSON nor YAML nor pairs (name=value); {_expected(schema)}")
    return {texts[0]: loaded if isinstance(loaded, str) else text}


def _parameters(schema: schemas.Schema) -> dict[str, Subschemas]:
    """The subschemas of each named parameter."""
    root = schema.of_root()
    names = {name: None for part in root if isinstance(part.get("properties"), dict) for name in part["properties"]}
    return {name: schema.subschemas(schema.below(root, name)) for name in names}


def _expected(schema: schemas.Schema) -> str:
    """A description of the tool's parameters."""
    required = {name for part in schema.of_root() for name in _strings(part.get("required"))}
    named = []
    for name, subschemas in _parameters(schema).items():
        value = expectation(subschemas[0] if subschemas else {})
        named.append(f"{name[:100]} ({value}{', required' if name in required else ''})")
    more = ", ..." if len(named) > PARAMETERS_NAMED else ""
    return f"expected an object with {', '.join(named[:PARAMETERS_NAMED])}{more}" if named else "expected an object"


def _strings(value: Any) -> Iterator[str]:
    return (text for text in value if isinstance(text, str)) if isinstance(value, list) else iter(())


def _types(subschemas: Subschemas) -> frozenset[str]:
    """The types that a value may have; empty if the schema names none."""
    return frozenset[str]().union(*map(allowed_types, subschemas))


# --- types ------------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOTHING = frozenset({"null", "none", "~", ""})


def _converted(
    value: Any, subschemas: Subschemas, schema: schemas.Schema, *, deepest: int = tool_arguments.DEPTH_MAX
) -> Any:
    """`value` with the types of its schema, if its meaning is clear. Raises UnfitError if it is nested too deep.

    An empty value for an optional member is left out, because models mean that by it and few servers accept it.
    """
    value = _with_type(value, _types(subschemas))
    if isinstance(value, dict | list) and not deepest:
        raise UnfitError(_TOO_DEEP)
    match value:
        case dict():
            required = {name for part in subschemas for name in _strings(part.get("required"))}
            converted = {}
            for name, member in value.items():
                below = schema.subschemas(schema.below(subschemas, name))
                if name in required or not _is_empty_by_mistake(member, _types(below)):
                    converted[name] = _converted(member, below, schema, deepest=deepest - 1)
            return converted
        case list():
            below_each = (schema.subschemas(schema.below(subschemas, index)) for index in range(len(value)))
            return [
                _converted(member, below, schema, deepest=deepest - 1)
                for member, below in zip(value, below_each, strict=True)
            ]
        case _:
            return value


def _is_empty_by_mistake(value: Any, types: frozenset[str]) -> bool:
    """Whether `value` is null or empty, and the schema allows neither."""
    kind = {None: "null", "": "string"}.get(value) if isinstance(value, str | None) else None
    return kind is not None and bool(types) and not types & {kind, "null"}


def _with_type(value: Any, types: frozenset[str]) -> Any:
    """`value` converted to one of `types`, if it has none of them and its meaning is clear."""
    own = type_of(value)
    if not types or own in types or (own == "integer" and "number" in types):
        return int(value) if isinstance(value, float) and own == "integer" and "number" not in types else value
    match value:
        case bool() if "string" in types:
            return json.dumps(value)
        case int() | float() if "string" in types:
            return repr(value)
        case str():
            return _from_string(value.strip(), types, value)
        case _:
            return value


def _from_string(text: str, types: frozenset[str], otherwise: str) -> Any:
    """The value of one of `types` that a text stands for, or `otherwise`."""
    if types & {"integer", "number"} and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in types and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if "null" in types and text.lower() in _NOTHING:
        return None
    if types & {"array", "object"} and text[:1] in ("[", "{") and len(text) <= tool_arguments.LENGTH_MAX:
        try:
            loaded = tool_arguments.loads(text)
        except (ValueError, RecursionError):
            return otherwise
        if type_of(loaded) in types:
            return loaded
    return otherwise


# --- command lines ----------------------------------------------------------------------------------------------------

_STEPS_OUT = re.compile(r"(?<![\w.])\.\.(?=$|[/\\])")
_BEGINS_WITH_DASH = re.compile(r"\^[(?:\[+]*\\?-")
"""A pattern whose texts may begin with a dash."""


def _command_line_faults(
    value: Any, subschemas: Subschemas, schema: schemas.Schema, location: Location
) -> Iterator[Fault]:
    """Yield the values that would have another meaning in a command line."""
    match value:
        case dict():
            for name, member in value.items():
                below = schema.subschemas(schema.below(subschemas, name))
                is_known = any(
                    name in properties for part in subschemas if isinstance(properties := part.get("properties"), dict)
                )
                if not is_known and (problem := _command_line_problem(name, (), schema)):
                    yield Fault(location, f"{excerpt(name)} {problem}")
                yield from _command_line_faults(member, below, schema, (*location, name))
        case list():
            for index, member in enumerate(value):
                below = schema.subschemas(schema.below(subschemas, index))
                yield from _command_line_faults(member, below, schema, (*location, index))
        case str() if problem := _command_line_problem(value, subschemas, schema):
            yield Fault(location, f"{excerpt(value)} {problem}")


def _command_line_problem(value: str, subschemas: Subschemas, schema: schemas.Schema) -> str:
    """The reason why a text is refused; "" if it is accepted."""
    text = value.strip()
    if len(text.split(maxsplit=1)) != 1:
        return ""  # prose, YAML, a query
    if text.startswith("-") and not _NUMBER.fullmatch(text):
        problem = "begins with a dash, as options of programs do: give the value alone"
    elif _STEPS_OUT.search(text) or _STEPS_OUT.search(unquote(text)):
        problem = "steps out of where it begins by '..': give a path without that"
    else:
        return ""
    return "" if any(_allows(part, value, schema) for part in subschemas) else problem


def _allows(part: Mapping[str, Any], value: str, schema: schemas.Schema) -> bool:
    """Whether `part` of `schema` allows this kind of text explicitly, and not just any text."""
    named = [*_strings(part.get("enum")), part.get("const"), part.get("default"), *_strings(part.get("examples"))]
    pattern = part.get("pattern")
    if value in named or not isinstance(pattern, str):
        return value in named
    is_meant = _BEGINS_WITH_DASH.match(pattern) if value.strip().startswith("-") else r"\.\." in pattern
    return bool(is_meant) and schema.matches(pattern, value) is True
