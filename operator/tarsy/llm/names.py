"""Tools' names on the wire: `server__tool` for `server.tool`, for no provider takes a dot."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

_TAKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""The form of a function's name for OpenAI and Anthropic; a request with any other name is refused whole."""
_REFUSED = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


def wire(name: str) -> str:
    """A tool's name as it is sent."""
    return name.replace(".", "__", 1)


def inner(sent: str) -> str:
    """The name behind what was sent, of a tool that was not declared: only what is sent back as the same."""
    name = sent.replace("__", ".", 1)
    return name if wire(name) == sent else sent


def wire_name(sent: str) -> str:
    """A name that every provider takes: `sent`, if it is one; else what is left of it, with digits that tell it apart.

    Always the same of the same name, so that calls of long ago need no table.
    """
    if _TAKEN.fullmatch(sent):
        return sent
    digest = hashlib.sha256(sent.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{_REFUSED.sub('_', sent)[: 64 - _DIGITS - 1]}_{digest}"


def table(names: Iterable[str]) -> Mapping[str, str]:
    """Return the original of each name that is sent."""
    return {wire_name(wire(name)): name for name in names}
