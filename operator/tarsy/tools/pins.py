"""Pins: the hash of a tool's description, taken when the tool is first seen, and the comparison with it (drift).

Agents trust a tool's description, and a server may change it after it was reviewed. So a hash of the description is
stored permanently, for all processes (`PinStore`). A tool that differs from its pin is stopped until an admin accepts
the change: in the platform file, or by the API.

The hash covers the server's own text, before masking and cutting: everything that the model reads of a tool, and the
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
"""Names of stopped tools in a short text; the warnings have all."""
_SHORT_HASH = 12
"""Digits of a hash in a short text; the warnings have all."""


def digest(tool: types.Tool) -> str:
    """The hash of a tool's description: `sha256:` and 64 hex digits."""
    hints = tool.annotations or types.ToolAnnotations()
    description = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        # A schema that could not be stored is not used.
        "inputSchema": tool.input_schema if messages.is_plain_json(tool.input_schema) else None,
        "title of hints": hints.title,
        "hints": [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint],
    }
    return f"sha256:{hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()}"


class PinStore(Protocol):
    """A store of pins."""

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """Pin the tools in `seen` that have no pin at their hash; return the pins of all tools in `seen`.

        A `confirmed` hash replaces the pin. A tool that has no pin afterwards is beyond the limit of pins. Raises
        TemporaryError if the pins cannot be read now.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """A tool that differs from its pin, and so is not called."""

    tool: str
    pinned: str
    """The pinned hash; "" if the tool is beyond the limit of pins of a server."""
    offered: str
    """The hash of the server's present description."""
    written: str = ""
    """The setting of the platform file that pins the tool, so that only it can change the pin; "" if there is none."""

    @property
    def reason(self) -> str:
        """The reason why the tool is not called, with both hashes."""
        problem = self._drift_text(self.pinned, self.offered)
        if self.written:
            return f"it is stopped: {problem}"
        cause = "has changed since it was pinned" if self.pinned else "is one more than are pinned at first sight"
        return f"it {cause}, and is stopped until an admin accepts it ({problem})"

    @property
    def short(self) -> str:
        """The drift in short: the beginnings of the pinned and the offered hash."""
        return self._drift_text(_short(self.pinned), _short(self.offered))

    def _drift_text(self, pinned: str, offered: str) -> str:
        if self.written:
            return tool_filters.differs(self.written, says=pinned, offered=offered)
        return f"pinned {pinned}, now {offered}" if pinned else f"new, {offered}"


class ServerPins:
    """The pins of one server's tools."""

    def __init__(self, server: str, *, store: PinStore, configured: Mapping[str, str]) -> None:
        """`configured` are the hashes in the platform file, by tool; they override the store's."""
        self._server = server
        self._store = store
        self._configured = configured

    async def stopped(self, seen: Mapping[str, str]) -> Mapping[str, Stopped]:
        """The tools that differ from their pins; `seen` has the hashes of all tools. New tools are pinned.

        Raises TemporaryError if the pins cannot be read now.
        """
        others = {tool: offered for tool, offered in seen.items() if tool not in self._configured}
        confirmed = {tool: offered for tool, offered in seen.items() if offered == self._configured.get(tool)}
        pinned = {**await self._store.pinned(self._server, seen=others, confirmed=confirmed), **self._configured}
        stopped = {}
        for tool, offered in seen.items():
            if offered != pinned.get(tool):
                setting = f"mcp_servers.{self._server}.tool_hashes.{tool}" if tool in self._configured else ""
                stopped[tool] = Stopped(tool=tool, pinned=pinned.get(tool, ""), offered=offered, written=setting)
        return stopped


def stopped_text(stopped: Mapping[str, Stopped]) -> str:
    """The problem of a server whose tools are stopped; "" without such tools.

    Only the text after the first colon is the server's: see `ports.Toolbox.problems`.
    """
    if not stopped:
        return ""
    count, is_configured = len(stopped), any(tool.written for tool in stopped.values())
    they, them, are, have = ("it", "it", "is", "has") if count == 1 else ("they", "them", "are", "have")
    expected = f"what {they} {have} to be" if is_configured else "what was pinned"
    until = "" if is_configured else f" until an admin accepts {them}"
    tools = "1 tool that is" if count == 1 else f"{count} tools that are"
    problem = f"has {tools} stopped{until}, because {they} {are} not {expected}"
    named = list(stopped.values())[:NAMED_MAX]
    more = f", and {len(stopped) - NAMED_MAX} more" if len(stopped) > NAMED_MAX else ""
    return f"{problem}: {', '.join(tool.tool for tool in named)}{more} ({'; '.join(tool.short for tool in named)})"


def _short(digest: str) -> str:
    kind, colon, digits = digest.partition(":")
    return f"{kind}{colon}{digits[:_SHORT_HASH]}"


class MemoryPins:
    """Pins in memory: for tests, and for a command that connects once and calls nothing."""

    def __init__(self) -> None:
        self.pins: dict[tuple[str, str], str] = {}

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """See `PinStore`."""
        self.pins |= {(server, tool): offered for tool, offered in confirmed.items()}
        return {tool: self.pins.setdefault((server, tool), offered) for tool, offered in seen.items()}
