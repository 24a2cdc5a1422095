"""Pins: the hash of a tool's description, taken when the tool is first seen, and the search for drift.

Agents trust a tool by its server's description, and a server may change that later, when it is no longer reviewed. So a
hash of the description is kept for all processes and past their ends (`Keep`). A tool that differs from its pin is
stopped until a person accepts the change: in the platform file, or by the API.

The hash covers the server's own words, before masking and cutting: everything that the model reads of a tool, and the
hints by which it counts as read-only. The order of an object's keys does not count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mcp import types

from tarsy.config.model import tool_filters
from tarsy.transcript import messages

NAMED_MAX = 3
"""Tools that are told where there is little room; the warnings tell all."""
_SHOWN = 12
"""Digits of a hash that are told there; the warnings have all."""


def digest(tool: types.Tool) -> str:
    """The hash of what a server says of a tool, as `sha256:` and 64 hex digits."""
    hints = tool.annotations or types.ToolAnnotations()
    description = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        # One that could not be stored is replaced as a whole: it is not read again.
        "inputSchema": tool.input_schema if messages.is_plain_json(tool.input_schema) else None,
        "title of hints": hints.title,
        "hints": [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint],
    }
    return f"sha256:{hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()}"


class Keep(Protocol):
    """Where pins are kept."""

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """Return the pins of the tools that were `seen`.

        A tool without a pin is pinned at the hash that was seen first.

        A `confirmed` hash replaces the pin from now on. A tool without a hash afterwards is beyond the limit. Raises
        TemporaryError if the pins cannot be read now.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A tool that is not what was pinned."""

    tool: str
    pinned: str
    """Its hash; "" where it is one more than are pinned of a server."""
    offered: str
    """The hash of what the server says of it now."""
    written: str = ""
    """The key of the platform file that says what it has to be, and where alone that is changed; "" where none does."""

    @property
    def why(self) -> str:
        """Why it is not called, with both hashes."""
        problem = self._drift_text(self.pinned, self.offered)
        if self.written:
            return f"it is stopped: {problem}"
        why = "has changed since it was pinned" if self.pinned else "is one more than are pinned at first sight"
        return f"it {why}, and is stopped until somebody confirms it ({problem})"

    @property
    def short(self) -> str:
        """The drift in short: the beginnings of the pinned and the offered hash."""
        return self._drift_text(_short(self.pinned), _short(self.offered))

    def _drift_text(self, pinned: str, offered: str) -> str:
        if self.written:
            return tool_filters.differs(self.written, says=pinned, offered=offered)
        return f"pinned {pinned}, now {offered}" if pinned else f"new, {offered}"


class Pins:
    """The pins of one server's tools."""

    def __init__(self, server: str, *, keep: Keep, written: Mapping[str, str]) -> None:
        """`written` are the hashes of the platform file, by tool: of a tool that is there nothing else counts."""
        self._server = server
        self._keep = keep
        self._written = written

    async def stopped(self, seen: Mapping[str, str]) -> Mapping[str, Stopped]:
        """Those of the tools, given with their hashes, that are to be stopped; new ones are pinned.

        A TemporaryError: it cannot be said now.
        """
        others = {tool: offered for tool, offered in seen.items() if tool not in self._written}
        confirmed = {tool: offered for tool, offered in seen.items() if offered == self._written.get(tool)}
        pinned = {**await self._keep.pinned(self._server, seen=others, confirmed=confirmed), **self._written}
        return {
            tool: Stopped(tool=tool, pinned=pinned.get(tool, ""), offered=offered, written=self._key(tool))
            for tool, offered in seen.items()
            if offered != pinned.get(tool)
        }

    def _key(self, tool: str) -> str:
        return f"mcp_servers.{self._server}.tool_hashes.{tool}" if tool in self._written else ""


def stopped_text(stopped: Mapping[str, Stopped]) -> str:
    """That tools are stopped, as what is missing of a server's tools; "" where none is.

    Behind the first colon stand the names of others: see `ports.Toolbox.problems`.
    """
    if not stopped:
        return ""
    are_to_be = any(tool.written for tool in stopped.values())
    if len(stopped) == 1:
        why = "because it is not what it has to be" if are_to_be else "because it is not what was pinned"
        until = "" if are_to_be else " until somebody confirms it"
        what = f"has 1 tool that is stopped{until}, {why}"
    else:
        why = "because they are not what they have to be" if are_to_be else "because they are not what was pinned"
        until = "" if are_to_be else " until somebody confirms them"
        what = f"has {len(stopped)} tools that are stopped{until}, {why}"
    named = list(stopped.values())[:NAMED_MAX]
    more = f", and {len(stopped) - NAMED_MAX} more" if len(stopped) > NAMED_MAX else ""
    return f"{what}: {', '.join(tool.tool for tool in named)}{more} ({'; '.join(tool.short for tool in named)})"


def _short(digest: str) -> str:
    kind, colon, digits = digest.partition(":")
    return f"{kind}{colon}{digits[:_SHOWN]}"


class Memory:
    """Pins that are kept in memory: for tests, and for who connects once and calls nothing."""

    def __init__(self) -> None:
        self.pins: dict[tuple[str, str], str] = {}

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """See `Keep`."""
        self.pins |= {(server, tool): offered for tool, offered in confirmed.items()}
        return {tool: self.pins.setdefault((server, tool), offered) for tool, offered in seen.items()}
