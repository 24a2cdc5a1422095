"""The rules of tool selection, as pure functions: lint, alerts, messages and tool calls use the same ones.

Every level can only remove tools: the platform file by server; the platform file and the chain by agent, stage and
agent of the stage; and the alert. A tool that is not marked as read-only counts as writing, because some writing tools
have no annotation at all. A writing tool is offered only if the platform file names it, even if a chain allows it.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tarsy.config.model import platforms
from tarsy.resources import chains, investigations, tool_patterns
from tarsy.telemetry import component_states

_WILDCARD = re.compile(r"[*?\[]")
NAMES_MAX = 20
"""The maximum of names in a message."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as its server describes it."""

    name: str
    """The name without that of the server."""
    read_only: bool
    """Whether the server marks it as read-only."""
    stopped: bool = False
    """Whether it differs from its pin, and must be accepted by an operator."""


Catalogue: TypeAlias = Mapping[str, Sequence[Tool]]
"""The known tools by server; a server that was never connected is absent."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter of tools: shell-style patterns over `server.tool`, case-sensitive; deny wins over allow."""

    allow: tuple[str, ...] | None = None
    """None is all."""
    deny: tuple[str, ...] = ()

    def admits(self, name: str) -> bool:
        """Return whether the filter admits the tool of this name (`server.tool`)."""
        is_allowed = self.allow is None or name in tool_patterns.RESULT_TOOLS or _matches(name, self.allow)
        return is_allowed and not _matches(name, self.deny)


def tools_from_detail(detail: component_states.Tools) -> list[Tool]:
    """Return the tools of a server from the component state in which a process reports them."""
    return [Tool(name=tool.name, read_only=tool.read_only) for tool in detail.tools]


def filters(*choices: chains.Tools | platforms.Tools | None) -> tuple[Filter, ...]:
    """Return the filters of those `choices` that exclude anything."""
    return tuple(
        Filter(allow=None if choice.allow is None else tuple(choice.allow), deny=tuple(choice.deny or ()))
        for choice in choices
        if choice is not None and (choice.allow is not None or choice.deny)
    )


def alert_filters(mcp: investigations.MCP | None) -> tuple[Filter, ...]:
    """Return the filters that an alert adds."""
    if mcp is None:
        return ()
    narrowed: tuple[Filter, ...] = ()
    if any(server.tools is not None for server in mcp.servers or ()):
        allow = tuple(f"{server.name}.{pattern}" for server in mcp.servers or () for pattern in server.tools or ["*"])
        narrowed = (Filter(allow=allow),)
    return (*narrowed, *filters(mcp.tools))


def is_offered(tool: Tool, server: platforms.MCPServer) -> bool:
    """Return whether agents may get this tool of that server at all."""
    return not (tool.stopped or _is_excluded(tool, server) or _is_withheld(tool, server))


def exclusion(tool: Tool, settings: platforms.MCPServer, *, server: str) -> str:
    """Return why no agent gets this tool of that server; "" if agents may get it."""
    if tool.stopped:
        return "is stopped until an admin accepts it, because it is not what was pinned"
    if _is_excluded(tool, settings):
        return f"is left out by mcp_servers.{server}.tools"
    if _is_withheld(tool, settings):
        return f"may write, and mcp_servers.{server}.write_tools does not name it"
    return ""


def writing(tools: Iterable[Tool], server: platforms.MCPServer) -> list[str]:
    """Return the tools that are not offered because they may write, and the platform file does not name them."""
    return [tool.name for tool in tools if not _is_excluded(tool, server) and _is_withheld(tool, server)]


def excluded(tools: Iterable[Tool], server: platforms.MCPServer) -> list[str]:
    """Return the names of the tools that `mcp_servers.SERVER.tools` excludes."""
    return [tool.name for tool in tools if _is_excluded(tool, server)]


def unknown(names: Collection[str], server: platforms.MCPServer) -> Iterator[tuple[str, list[str]]]:
    """Yield (key, missing names): names in the platform file that are not among the `names` of a server's tools."""
    configured = {
        "tool_hashes": list(server.tool_hashes),
        "write_tools": [pattern for pattern in server.write_tools if not set(pattern) & set("*?[")],
    }
    for key, patterns in configured.items():
        if missing := [name for name in patterns if name not in names]:
            yield key, missing


def matches(pattern: str, tools: Collection[str], unknown: Iterable[str]) -> bool:
    """Return whether a pattern matches one of `tools` (`server.tool`), or may match a tool of the `unknown` servers."""
    return any(_matches(name, [pattern]) for name in tools) or any(may_fit(pattern, server) for server in unknown)


def may_fit(pattern: str, server: str) -> bool:
    """Return whether a pattern over `server.tool` could match any tool's name of that server."""
    literal, prefix = _WILDCARD.split(pattern, maxsplit=1)[0], f"{server}."
    return literal.startswith(prefix) or prefix.startswith(literal)


def unmatched(
    mcp: investigations.MCP | None, servers: Collection[str], names: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the patterns of an alert, as (server, pattern), that match no tool of these names (`server.tool`)."""
    for server in mcp.servers or () if mcp else ():
        for pattern in server.tools or () if server.name in servers else ():
            if not any(_matches(name, [f"{server.name}.{pattern}"]) for name in names):
                yield server.name, pattern


def listed(names: Sequence[str]) -> str:
    """Return names as text, at most NAMES_MAX of them."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def differs(key: str, *, says: str, offered: str) -> str:
    """Return the message that a tool differs from the platform file at `key`, which only an edit there resolves."""
    return f"{key} says {says}, the server offers {offered}: change it there"


def _is_excluded(tool: Tool, server: platforms.MCPServer) -> bool:
    selection = server.tools
    return (selection.allow is not None and not _matches(tool.name, selection.allow)) or _matches(
        tool.name, selection.deny
    )


def _is_withheld(tool: Tool, server: platforms.MCPServer) -> bool:
    return not tool.read_only and not _matches(tool.name, server.write_tools)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
