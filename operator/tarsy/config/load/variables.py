"""`{{.VAR}}` in the strings of a file: what the process's environment says under that name.

`${VAR}` stays text: shells, queries and instructions are full of it. What is `{{.VAR}}` to somebody else, such as a
template of Docker's, is written as Go's templates quote it: `{{"{{.Names}}"}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tarsy.resources import files

_VARIABLE = re.compile(r'\{\{"(\{\{[^"{}]*\}\})"\}\}|\{\{\s*\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}')

Place = tuple[int | str, ...]


def named(text: str) -> list[str]:
    """The variables that `text` names, in order."""
    return [match[2] for match in _VARIABLE.finditer(text) if match[2]]


def filled(data: Any, environment: Mapping[str, str]) -> Any:
    """`data` with its variables put in; a missing one stays as it is written (see `missing`)."""
    if isinstance(data, str):
        return _VARIABLE.sub(lambda match: match[1] or environment.get(match[2], match[0]), data)
    if isinstance(data, dict):
        return {key: filled(value, environment) for key, value in data.items()}
    if isinstance(data, list):
        return [filled(value, environment) for value in data]
    return data


def places(data: Any, at: Place = ()) -> Iterator[tuple[Place, str]]:
    """The places of the strings that name variables, with what is written there; of keys, the place is the key's."""
    if isinstance(data, str):
        if named(data):
            yield at, data
    elif isinstance(data, dict):
        for key, value in data.items():
            yield from places(value, (*at, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from places(value, (*at, index))


def problems(document: files.Document, environment: Mapping[str, str]) -> Iterator[files.Problem]:
    """What cannot be put in: variables that are not set, and those in keys."""
    for at, text in places(document.data):
        for name in dict.fromkeys(named(text)):
            if name not in environment:
                message = f"{files.told(at)}: the variable {name} is not set: set it in the environment"
                yield document.problem(at, message)
    for at in _keys(document.data):
        yield document.problem(at, f"{files.told(at[:-1])}: a key that names a variable: only values may")


def _keys(data: Any, at: Place = ()) -> Iterator[Place]:
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            if isinstance(key, str) and named(key):
                yield (*at, key)
            yield from _keys(value, (*at, key))
