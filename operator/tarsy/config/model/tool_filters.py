"""The tools that an agent is offered: pure, so that chains, alerts and people hear the same rules that calls obey.

Every level can only take tools away: the platform file by server; the platform file and the chain by agent, stage and
agent of the stage; and the alert. A tool that is not marked as read-only counts as writing, because some writing tools
carry no hint at all. It is offered only if the platform file names it, whatever a chain allows.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tarsy.config.model import platforms
from tarsy.resources import chains, investigations
from tarsy.telemetry import component_states

_WILDCARD = re.compile(r"[*?\[]")
NAMES_MAX = 20
"""Names that are told where there are many."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as its server describes it."""

    name: str
    """Without the server's."""
    read_only: bool
    """Whether it says that it only reads."""
    stopped: bool = False
    """Whether it differs from its pin, and waits for a person to accept it."""


Catalogue: TypeAlias = Mapping[str, Sequence[Tool]]
"""The tools of the servers, by name; a server without any connection so far is absent."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Some tools of all: shell-style patterns over `server.tool`, case counting; deny wins over allow."""

    allow: tuple[str, ...] | None = None
    """None is all."""
    deny: tuple[str, ...] = ()

    def admits(self, name: str) -> bool:
        """Whether the tool of this name (`server.tool`) is one of them."""
        return (self.allow is None or _matches(name, self.allow)) and not _matches(name, self.deny)


def tools_from_detail(detail: component_states.Tools) -> list[Tool]:
    """The tools of a server, by what a process says of it (its `standing.Fact` of kind tools)."""
    return [Tool(name=tool.name, read_only=tool.read_only) for tool in detail.tools]


def filters(*choices: chains.Tools | platforms.Tools | None) -> tuple[Filter, ...]:
    """Those choices that leave anything out."""
    return tuple(
        Filter(allow=None if choice.allow is None else tuple(choice.allow), deny=tuple(choice.deny or ()))
        for choice in choices
        if choice is not None and (choice.allow is not None or choice.deny)
    )


def of_alert(mcp: investigations.MCP | None) -> tuple[Filter, ...]:
    """Return the filters that an alert adds."""
    if mcp is None:
        return ()
    narrowed: tuple[Filter, ...] = ()
    if any(server.tools is not None for server in mcp.servers or ()):
        allow = tuple(f"{server.name}.{pattern}" for server in mcp.servers or () for pattern in server.tools or ["*"])
        narrowed = (Filter(allow=allow),)
    return (*narrowed, *filters(mcp.tools))


def is_offered(tool: Tool, server: platforms.MCPServer) -> bool:
    """Whether the platform file lets anybody have this tool of that server."""
    return not (tool.stopped or _is_left_out(tool, server) or _is_withheld(tool, server))


def kept_back(tool: Tool, settings: platforms.MCPServer, *, server: str) -> str:
    """Return the reason why this tool of that server is offered to no agent; "" if it may be offered."""
    if tool.stopped:
        return "is stopped until somebody confirms it, because it is not what was pinned"
    if _is_left_out(tool, settings):
        return f"is left out by mcp_servers.{server}.tools"
    if _is_withheld(tool, settings):
        return f"may write, and mcp_servers.{server}.write_tools does not name it"
    return ""


def writing(tools: Iterable[Tool], server: platforms.MCPServer) -> list[str]:
    """Return the tools that are not offered because they may write, and the platform file does not name them."""
    return [tool.name for tool in tools if not _is_left_out(tool, server) and _is_withheld(tool, server)]


def left_out(tools: Iterable[Tool], server: platforms.MCPServer) -> list[str]:
    """The tools that the platform file leaves out by name."""
    return [tool.name for tool in tools if _is_left_out(tool, server)]


def unknown(names: Collection[str], server: platforms.MCPServer) -> Iterator[tuple[str, list[str]]]:
    """Names that the platform file writes out, as (key, names), and that no tool of a server with these `names` has."""
    written = {
        "tool_hashes": list(server.tool_hashes),
        "write_tools": [pattern for pattern in server.write_tools if not set(pattern) & set("*?[")],
    }
    for key, patterns in written.items():
        if missing := [name for name in patterns if name not in names]:
            yield key, missing


def matches(pattern: str, tools: Collection[str], unknown: Iterable[str]) -> bool:
    """Whether a pattern matches one of these (`server.tool`), or may match one of servers whose tools are not known."""
    return any(_matches(name, [pattern]) for name in tools) or any(may_fit(pattern, server) for server in unknown)


def may_fit(pattern: str, server: str) -> bool:
    """Whether a pattern over `server.tool` could match a tool of that server, whatever its tools are called."""
    begins, own = _WILDCARD.split(pattern, maxsplit=1)[0], f"{server}."
    return begins.startswith(own) or own.startswith(begins)


def unmatched(
    mcp: investigations.MCP | None, servers: Collection[str], names: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the patterns of an alert, as (server, pattern), that match no tool of these names (`server.tool`)."""
    for server in mcp.servers or () if mcp else ():
        for pattern in server.tools or () if server.name in servers else ():
            if not any(_matches(name, [f"{server.name}.{pattern}"]) for name in names):
                yield server.name, pattern


def listed(names: Sequence[str]) -> str:
    """Some names for people, the first of many."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def differs(key: str, *, says: str, offered: str) -> str:
    """Return the message that a tool differs from the platform file at `key`, which only an edit there resolves."""
    return f"{key} says {says}, the server offers {offered}: change it there"


def _is_left_out(tool: Tool, server: platforms.MCPServer) -> bool:
    choice = server.tools
    return (choice.allow is not None and not _matches(tool.name, choice.allow)) or _matches(tool.name, choice.deny)


def _is_withheld(tool: Tool, server: platforms.MCPServer) -> bool:
    return not tool.read_only and not _matches(tool.name, server.write_tools)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
