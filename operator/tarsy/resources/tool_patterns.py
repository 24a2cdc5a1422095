"""Patterns over `server.tool`: shell-style, over the whole name, case counting; and those that are refused.

A pattern without a server, such as `pods_l*`, matches no tool, and leaves open what its author meant to deny. So does
one with a `[` that is never closed. Both are refused where they are written: by the API server (CEL rules of the CRDs),
by lint, by the platform file and by `POST /alerts`. Objects that were stored before these rules stay readable; their
chains are not ready (`config.check.chain_index`).

Source of the syntax: Python documentation, "fnmatch - Unix filename pattern matching".
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo

AS_WRITTEN: Final = "as written"
"""The validation context of what is written now. Models refuse misfits in it alone: stored objects stay readable."""

_CLOSED = r"(?s)^([^[]|\[(!.|[^!])[^]]*\])*$"
"""A pattern whose every `[` is closed. A `]` that stands first is one of the characters, also behind `!`."""
_UNCLOSED = "a [ is never closed: close it, as in [ab], or write [[] for the character itself"
_ALL = ", and 'kubernetes-server.*' for all tools of a server"
_EXAMPLE = "pods_*"


def misfit(pattern: str) -> str:
    """Return why a pattern over `server.tool` is refused, with the remedy; "" for a good one.

    A pattern that could match a tool is good, whatever tools there are now: tools come and go.
    """
    if "." not in pattern and not pattern.startswith("*"):
        return _serverless(f"'{pattern}'", pattern)
    return own_misfit(pattern)


def own_misfit(pattern: str) -> str:
    """Return why a pattern over tools' own names is refused, with the remedy; "" for a good one."""
    return "" if re.fullmatch(_CLOSED, pattern) else _UNCLOSED


def _serverless(what: str, pattern: str) -> str:
    return f"{what} is not server.tool: write 'kubernetes-server.{pattern}' or '*.{pattern}'{_ALL}"


def _as_written(pattern: str, validation: ValidationInfo) -> str:
    if validation.context == AS_WRITTEN and (why := misfit(pattern)):
        raise ValueError(why)
    return pattern


def _own_as_written(pattern: str, validation: ValidationInfo) -> str:
    if validation.context == AS_WRITTEN and (why := own_misfit(pattern)):
        raise ValueError(why)
    return pattern


def _in_file(pattern: str) -> str:
    """Refuse a misfit without showing it: errors of the platform file show no values."""
    if why := misfit(pattern):
        raise ValueError(why if why == _UNCLOSED else _serverless("it", _EXAMPLE))
    return pattern


_STORED = r"[.*?\[]"
"""The stored form of all patterns, of every version that has written a snapshot."""
_HERE: Final = "\0"
_RULES: list[JsonValue] = [
    {
        "rule": "self.contains('.') || self.startsWith('*')",
        "message": _serverless("the pattern", _EXAMPLE),
        # The same as `_serverless` says, with the pattern put in.
        "messageExpression": " + self + ".join(f'"{piece}"' for piece in _serverless(f"'{_HERE}'", _HERE).split(_HERE)),
    },
    {"rule": "self.matches(r'" + _CLOSED + "')", "message": _UNCLOSED},
]

_Text = Annotated[str, Field(min_length=1, max_length=253)]
Pattern = Annotated[
    _Text,
    AfterValidator(_as_written),
    Field(json_schema_extra={"pattern": _STORED, "x-kubernetes-validations": _RULES}),
]
"""A pattern over `server.tool` in a kind."""
Patterns = Annotated[list[Pattern], Field(max_length=50)]
OwnPattern = Annotated[
    _Text, AfterValidator(_own_as_written), Field(json_schema_extra={"x-kubernetes-validations": _RULES[1:]})
]
"""A pattern over the names that tools have at their server, in a kind."""
FilePatterns = Annotated[list[Annotated[_Text, AfterValidator(_in_file)]], Field(max_length=50)]
"""Patterns over `server.tool` in the platform file."""
