"""Whether a tool is still what it was: what a server says of each is pinned when it is first seen.

Agents trust a tool by what its server says of it, and a server may say something else later, when nobody looks any
more. So a hash of that is kept for all processes and past their ends (`Keep`), and a tool that is not what was pinned
is stopped until a person says that it may be what it is now: in the platform file, or by the API.

What is hashed is what the server said, before it was masked or cut: all that the model is told of a tool, and the hints
by which it is taken for one that only reads. The order of an object's keys does not count.
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
        # One that could not be stored is replaced as a whole: nobody reads it.
        "inputSchema": tool.input_schema if messages.is_plain_json(tool.input_schema) else None,
        "title of hints": hints.title,
        "hints": [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint],
    }
    return f"sha256:{hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()}"


class Keep(Protocol):
    """Where pins are kept."""

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """The hashes at which the tools that were `seen` are pinned: whoever is first pins one at what he has seen.

        What is `confirmed` is pinned at that from now on, whatever it was. A tool that has no hash afterwards is one
        too many. A TemporaryError: it cannot be said now.
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
        problem = self._told(self.pinned, self.offered)
        if self.written:
            return f"it is stopped: {problem}"
        why = "has changed since it was pinned" if self.pinned else "is one more than are pinned at first sight"
        return f"it {why}, and is stopped until somebody confirms it ({problem})"

    @property
    def short(self) -> str:
        """What it was, and what it is now, with the beginnings of both hashes."""
        return self._told(_short(self.pinned), _short(self.offered))

    def _told(self, pinned: str, offered: str) -> str:
        if self.written:
            return tool_filters.differs(self.written, says=pinned, offered=offered)
        return f"pinned {pinned}, now {offered}" if pinned else f"new, {offered}"


class Pins:
    """What the tools of one server are held against."""

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


def told(stopped: Mapping[str, Stopped]) -> str:
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
