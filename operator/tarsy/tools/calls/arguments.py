"""The way from a model's text to the arguments of a tool, or to the reason why it gets none.

Arguments are data: they are sent as JSON and never become part of a command line of ours. A server that we started may
still build a command line from them, in which `--server=...` for a name, or `../..`, is taken for something else
(mcp-server-kubernetes, issue 328). So such a value is refused there, unless the schema asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import unquote

from tarsy import rawjson
from tarsy.tools.calls import schemas
from tarsy.transcript import messages, tool_arguments

VALUES_MAX = 10_000
"""JSON values in them: so many are looked at in a tenth of a second."""
TOLD_MAX = 20
"""Parameters that are named."""

_PLAINLY = "write numbers with a few digits, texts in quotes, and few levels"
_TOO_DEEP = f"they are nested deeper than {tool_arguments.DEEPEST} levels"

Said: TypeAlias = Sequence[Mapping[str, Any]]
"""The subschemas for one value (`schemas.Schema.subschemas`)."""


class UnfitError(ValueError):
    """No tool can be called so; the message is for the model: what is wrong, where, and what would be right."""


def resolve(text: str, parameters: Mapping[str, Any], *, is_child: bool) -> dict[str, Any]:
    """The arguments in `text` for a tool of that schema; an UnfitError says why there are none.

    JSON, else YAML, else pairs, else the only text that the tool takes; of the types that it names, where only one
    thing can be meant. `is_child`: of a server that we started.
    """
    try:
        return _resolve(text, parameters, is_child=is_child)
    except UnfitError:
        raise
    except (ArithmeticError, ValueError, RecursionError) as error:  # of unforeseen numbers and levels
        raise UnfitError(f"they hold what no tool can take; {_PLAINLY}") from error


def _resolve(text: str, parameters: Mapping[str, Any], *, is_child: bool) -> dict[str, Any]:
    if rawjson.has_more_values(text.encode("utf-8", "replace"), VALUES_MAX):
        raise UnfitError(f"they have more than {VALUES_MAX} values")
    schema = schemas.Schema(parameters)
    fitted = messages.storable_json(_fitted(_read(text, schema), schema.of_all(), schema))
    wrong = schema.faults(fitted)
    if is_child and not wrong:
        wrong = list(_strange(fitted, schema.of_all(), schema, ()))[: schemas.FAULTS_MAX]
    if wrong:
        raise UnfitError("; ".join(map(str, wrong)))
    arguments: dict[str, Any] = fitted
    return arguments


def _read(text: str, schema: schemas.Schema) -> dict[str, Any]:
    parameters = tool_arguments.parse(text)
    if parameters is None:
        return _of_text(text.strip(), schema)
    raw = parameters.get(tool_arguments.RAW)
    if (
        parameters.keys() == {tool_arguments.RAW}
        and isinstance(raw, str)
        and tool_arguments.RAW not in (there := _parameters(schema))
    ):
        return _of_text(raw, schema) if there else parameters  # unreadable while its tool was not known
    return parameters


def _of_text(text: str, schema: schemas.Schema) -> dict[str, Any]:
    """The arguments, where the text is no object: what the tool's only text is to be."""
    try:
        loaded = tool_arguments.loads(text)
    except (ValueError, RecursionError) as error:
        if text.startswith('{"'):  # it is meant to be JSON
            line = str(error).partition("\n")[0][:200]
            raise UnfitError(f"they are not JSON ({line}); {_expected(schema)}") from error
        loaded = text
    if isinstance(loaded, str) and loaded != text and (parameters := tool_arguments.parse(loaded)) is not None:
        return parameters
    if isinstance(loaded, dict):
        raise UnfitError(_TOO_DEEP)
    if isinstance(loaded, list):
        raise UnfitError(f"they are a list; {_expected(schema)}")
    texts = [name for name, parts in _parameters(schema).items() if "string" in _types(parts)]
    if len(texts) != 1:
        raise UnfitError(f"they are neither JSON nor YAML nor pairs (name=value); {_expected(schema)}")
    return {texts[0]: loaded if isinstance(loaded, str) else text}


def _parameters(schema: schemas.Schema) -> dict[str, Said]:
    """Return the subschemas of each named parameter."""
    parts = schema.of_all()
    names = {name: None for part in parts if isinstance(part.get("properties"), dict) for name in part["properties"]}
    return {name: schema.subschemas(schema.below(parts, name)) for name in names}


def _expected(schema: schemas.Schema) -> str:
    """Return the description of the tool's parameters."""
    required = {name for part in schema.of_all() for name in _strings(part.get("required"))}
    named = [
        f"{name[:100]} ({schemas.wanted(parts[0] if parts else {})}{', required' if name in required else ''})"
        for name, parts in _parameters(schema).items()
    ]
    more = ", ..." if len(named) > TOLD_MAX else ""
    return f"expected an object with {', '.join(named[:TOLD_MAX])}{more}" if named else "expected an object"


def _strings(value: Any) -> Iterator[str]:
    return (text for text in value if isinstance(text, str)) if isinstance(value, list) else iter(())


def _types(parts: Said) -> frozenset[str]:
    """The types that a value may have, as far as that is said."""
    return frozenset[str]().union(*map(schemas.types, parts))


# --- types ------------------------------------------------------------------------------------------------------------

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][-+]?[0-9]{1,2})?")
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NOTHING = frozenset({"null", "none", "~", ""})


def _fitted(value: Any, parts: Said, schema: schemas.Schema, *, deepest: int = tool_arguments.DEEPEST) -> Any:
    """`value` with the types that its schema names, where only one thing can be meant; an UnfitError if it is too deep.

    Nothing for what need not be there is left out: that is what models mean by it, and few servers take it.
    """
    value = _converted(value, _types(parts))
    if isinstance(value, dict | list) and not deepest:
        raise UnfitError(_TOO_DEEP)
    match value:
        case dict():
            required = {name for part in parts for name in _strings(part.get("required"))}
            fitted = {}
            for name, member in value.items():
                below = schema.subschemas(schema.below(parts, name))
                types = _types(below)
                if name not in required and _says_nothing(member, types):
                    continue
                fitted[name] = _fitted(member, below, schema, deepest=deepest - 1)
            return fitted
        case list():
            below_of = (schema.subschemas(schema.below(parts, index)) for index in range(len(value)))
            return [
                _fitted(member, below, schema, deepest=deepest - 1)
                for member, below in zip(value, below_of, strict=True)
            ]
        case _:
            return value


def _says_nothing(value: Any, types: frozenset[str]) -> bool:
    nothing = {None: "null", "": "string"}.get(value) if isinstance(value, str | None) else None
    return nothing is not None and bool(types) and not types & {nothing, "null"}


def _converted(value: Any, types: frozenset[str]) -> Any:
    """As one of `types`, if it is none of them and only one thing can be meant."""
    own = schemas.type_of(value)
    if not types or own in types or (own == "integer" and "number" in types):
        return int(value) if isinstance(value, float) and own == "integer" and "number" not in types else value
    match value:
        case bool() if "string" in types:
            return json.dumps(value)
        case int() | float() if "string" in types:
            return repr(value)
        case str():
            return _meant(value.strip(), types, value)
        case _:
            return value


def _meant(text: str, types: frozenset[str], otherwise: str) -> Any:
    """A text that is to be something else."""
    if types & {"integer", "number"} and _INTEGER.fullmatch(text):
        return int(text)
    if "number" in types and _NUMBER.fullmatch(text):
        return float(text)
    if "boolean" in types and text.lower() in _TRUTHS:
        return _TRUTHS[text.lower()]
    if "null" in types and text.lower() in _NOTHING:
        return None
    if types & {"array", "object"} and text[:1] in ("[", "{") and len(text) <= tool_arguments.LONGEST:
        try:
            loaded = tool_arguments.loads(text)
        except (ValueError, RecursionError):
            return otherwise
        if schemas.type_of(loaded) in types:
            return loaded
    return otherwise


# --- options ----------------------------------------------------------------------------------------------------------

_STEPS_OUT = re.compile(r"(?<![\w.])\.\.(?=$|[/\\])")
_BEGINS_WITH_DASH = re.compile(r"\^[(?:\[+]*\\?-")
"""A pattern whose texts may well begin so."""


def _strange(value: Any, parts: Said, schema: schemas.Schema, location: schemas.Place) -> Iterator[schemas.Fault]:
    """Values that a command line would take for something else than a value."""
    match value:
        case dict():
            for name, member in value.items():
                below = schema.subschemas(schema.below(parts, name))
                is_known = any(
                    name in properties for part in parts if isinstance(properties := part.get("properties"), dict)
                )
                if not is_known and (why := _why_strange(name, (), schema)):
                    yield schemas.Fault(location, f"{schemas.excerpt(name)} {why}")
                yield from _strange(member, below, schema, (*location, name))
        case list():
            for index, member in enumerate(value):
                yield from _strange(member, schema.subschemas(schema.below(parts, index)), schema, (*location, index))
        case str() if why := _why_strange(value, parts, schema):
            yield schemas.Fault(location, f"{schemas.excerpt(value)} {why}")


def _why_strange(value: str, parts: Said, schema: schemas.Schema) -> str:
    """Why a text is not passed on; "" where it is."""
    text = value.strip()
    if len(text.split(maxsplit=1)) != 1:
        return ""  # prose, YAML, a query
    if text.startswith("-") and not _NUMBER.fullmatch(text):
        why = "begins with a dash, as options of programs do: give the value alone"
    elif _STEPS_OUT.search(text) or _STEPS_OUT.search(unquote(text)):
        why = "steps out of where it begins by '..': give a path without that"
    else:
        return ""
    return "" if any(_asks_for(part, value, schema) for part in parts) else why


def _asks_for(part: Mapping[str, Any], value: str, schema: schemas.Schema) -> bool:
    """Whether `part`, part of `schema`, has a text like that in mind, and not just any."""
    named = [*_strings(part.get("enum")), part.get("const"), part.get("default"), *_strings(part.get("examples"))]
    pattern = part.get("pattern")
    if value in named or not isinstance(pattern, str):
        return value in named
    in_mind = _BEGINS_WITH_DASH.match(pattern) if value.strip().startswith("-") else r"\.\." in pattern
    return bool(in_mind) and schema.matches(pattern, value) is True
