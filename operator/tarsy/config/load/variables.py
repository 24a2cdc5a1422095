"""Variables of the environment in the strings of a file: `{{.VAR}}`.

`${VAR}` stays text: shells, queries and instructions are full of it. A `{{.VAR}}` for another program, such as a
template of Docker's, is quoted as in Go's templates: `{{"{{.Names}}"}}`.
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


def filled(node: Any, environment: Mapping[str, str]) -> Any:
    """`node` with its variables put in; a missing one stays as it is written (see `missing`)."""
    if isinstance(node, str):
        return _VARIABLE.sub(lambda match: match[1] or environment.get(match[2], match[0]), node)
    if isinstance(node, dict):
        return {key: filled(value, environment) for key, value in node.items()}
    if isinstance(node, list):
        return [filled(value, environment) for value in node]
    return node


def places(node: Any, at: Place = ()) -> Iterator[tuple[Place, str]]:
    """The places of the strings that name variables, with what is written there; of keys, the place is the key's."""
    if isinstance(node, str):
        if named(node):
            yield at, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from places(value, (*at, key))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from places(value, (*at, index))


def problems(document: files.Document, environment: Mapping[str, str]) -> Iterator[files.Problem]:
    """Yield the problems of variables: unset ones, and those in keys."""
    for at, text in places(document.data):
        for name in dict.fromkeys(named(text)):
            if name not in environment:
                message = f"{files.path_text(at)}: the variable {name} is not set: set it in the environment"
                yield document.problem(at, message)
    for at in _keys(document.data):
        yield document.problem(at, f"{files.path_text(at[:-1])}: a key that names a variable: only values may")


def _keys(node: Any, at: Place = ()) -> Iterator[Place]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            if isinstance(key, str) and named(key):
                yield (*at, key)
            yield from _keys(value, (*at, key))
