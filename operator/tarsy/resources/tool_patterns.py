"""Patterns over `server.tool`: shell-style, over the whole name, case-sensitive; and the patterns that are refused.

A pattern without a server, such as `pods_l*`, matches no tool, so a tool that its author wanted to deny stays allowed.
The same is true of a pattern with an unclosed `[`. Both are refused on entry: by the API server (CEL rules of the
CRDs), lint, the platform file and `POST /alerts`. Objects that were stored before these rules stay readable, but their
chains are not ready (`config.check.chain_index`).

Source of the syntax: Python documentation, "fnmatch - Unix filename pattern matching".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator, Field, JsonValue, ValidationInfo

AS_WRITTEN: Final = "as written"
"""The validation context of new input: only in it models refuse bad patterns, so that stored objects stay readable."""
RESULT_SERVER: Final = "result"
"""The server in the names of TARSy's own tools, which look into results of an investigation; no MCP server has it."""
RESULT_TOOLS: Final = ("result.search", "result.read")
"""They show nothing that the investigation does not have already, so `allow` does not concern them. `deny` does."""

_CLOSED = r"(?s)^([^[]|\[(!.|[^!])[^]]*\])*$"
"""A pattern without an unclosed `[`. A `]` right after `[` or `[!` is one of the characters."""
_UNCLOSED = "a [ is never closed: close it, as in [ab], or write [[] for the character itself"
_ALL = ", and 'kubernetes-server.*' for all tools of a server"
_EXAMPLE = "pods_*"


def misfit(pattern: str) -> str:
    """Return why a pattern over `server.tool` is refused, and what to write instead; "" if it is good.

    A pattern that could match a tool's name is good, even if no tool has such a name now.
    """
    if "." not in pattern and not pattern.startswith("*"):
        return _serverless(f"'{pattern}'", pattern)
    return own_misfit(pattern)


def own_misfit(pattern: str) -> str:
    """Return why a pattern over names of tools, without the server, is refused; "" if it is good."""
    return "" if re.fullmatch(_CLOSED, pattern) else _UNCLOSED


def _serverless(what: str, pattern: str) -> str:
    return f"{what} is not server.tool: write 'kubernetes-server.{pattern}' or '*.{pattern}'{_ALL}"


def _refuse_new(problem_of: Callable[[str], str]) -> AfterValidator:
    """Return the validator that refuses a bad pattern in new input."""

    def validate(pattern: str, validation: ValidationInfo) -> str:
        if validation.context == AS_WRITTEN and (problem := problem_of(pattern)):
            raise ValueError(problem)
        return pattern

    return AfterValidator(validate)


def _in_file(pattern: str) -> str:
    """Refuse a bad pattern without quoting it: errors of the platform file quote no values."""
    if why := misfit(pattern):
        raise ValueError(why if why == _UNCLOSED else _serverless("it", _EXAMPLE))
    return pattern


_STORED = r"[.*?\[]"
"""The condition that patterns in stored snapshots of all versions meet."""
_PLACEHOLDER: Final = "\0"
_RULES: list[JsonValue] = [
    {
        "rule": "self.contains('.') || self.startsWith('*')",
        "message": _serverless("the pattern", _EXAMPLE),
        # The message of `_serverless`, with the pattern inserted.
        "messageExpression": " + self + ".join(
            f'"{piece}"' for piece in _serverless(f"'{_PLACEHOLDER}'", _PLACEHOLDER).split(_PLACEHOLDER)
        ),
    },
    {"rule": "self.matches(r'" + _CLOSED + "')", "message": _UNCLOSED},
]

_Text = Annotated[str, Field(min_length=1, max_length=253)]
Pattern = Annotated[
    _Text,
    _refuse_new(misfit),
    Field(json_schema_extra={"pattern": _STORED, "x-kubernetes-validations": _RULES}),
]
"""A pattern over `server.tool` in a kind."""
Patterns = Annotated[list[Pattern], Field(max_length=50)]
OwnPattern = Annotated[
    _Text, _refuse_new(own_misfit), Field(json_schema_extra={"x-kubernetes-validations": _RULES[1:]})
]
"""A pattern over the names of one server's tools, in a kind."""
FilePatterns = Annotated[list[Annotated[_Text, AfterValidator(_in_file)]], Field(max_length=50)]
"""Patterns over `server.tool` in the platform file."""
