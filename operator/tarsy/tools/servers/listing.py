"""The tools of an MCP server: listed within bounds, masked, and selected for an execution."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import mcp
from mcp import types

from tarsy.config.model import platforms, tool_filters
from tarsy.masking import masker
from tarsy.telemetry import component_states
from tarsy.tools import pins
from tarsy.tools.transports import wire
from tarsy.transcript import messages, ports

PAGES_MAX = 100
"""The maximal pages of one list: enough for the maximal number of tools with ten on each page."""
BYTES_MAX = 16 * 1024 * 1024
"""Bytes of all messages of one list."""
SHOWN_DESCRIPTION_MAX = 500
"""Characters of a tool's description that the API and the pages show."""
DESCRIPTION_MAX = 8 * 1024
"""Characters of a tool's description that models read."""
SCHEMA_MAX = 64 * 1024
"""Characters of a tool's schema."""
_USABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
"""The form of a function's name for Gemini, which refuses a whole request with any other name."""


class TooLongError(ValueError):
    """A list of tools exceeds a bound, which the message names."""


@dataclass
class ToolList:
    """The usable tools of one server."""

    server: str
    tools: list[types.Tool] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """The names of unusable tools, as text for a log."""
    is_full: bool = False
    """Whether there are more tools than the maximum."""
    hashes: dict[str, str] = field(default_factory=dict)
    """The hashes of the server's descriptions, by tool."""
    stopped: Mapping[str, pins.Stopped] = field(default_factory=dict)
    """The tools that differ from their pins, by name."""

    @property
    def problem(self) -> str:
        """The problem with the tools, or ""; only the text after a colon is the server's."""
        name_problem = f"has {len(self.left_out)} tools that are left out, because of their names"
        if len(self.left_out) == 1:
            name_problem = "has 1 tool that is left out, because of its name"
        parts = (
            name_problem if self.left_out else "",
            f"offers too many tools, those after the first {wire.TOOLS_MAX} are left out" if self.is_full else "",
            pins.stopped_text(self.stopped),
        )
        return "; ".join(filter(None, parts))

    def stop(self, stopped: Mapping[str, pins.Stopped]) -> None:
        """Remove these tools."""
        self.stopped = stopped
        self.tools = [tool for tool in self.tools if tool.name not in stopped]

    def add(self, tools: Iterable[types.Tool]) -> None:
        """Add the usable tools among `tools`, each cut to its bounds."""
        names = {tool.name for tool in self.tools}
        for tool in tools:
            if len(self.tools) + len(self.left_out) == wire.TOOLS_MAX:
                self.is_full = True
                return
            is_usable = tool.name and _USABLE_NAME.fullmatch(f"{self.server}__{tool.name}")
            if is_usable and tool.name not in names:
                self.tools.append(_cut(tool))
                self.hashes[tool.name] = pins.digest(tool)
                names.add(tool.name)
            else:
                self.left_out.append(ascii(tool.name[:64]))


async def list_tools(server: str, client: mcp.Client, *, mask: Callable[[str], str]) -> ToolList:
    """List the tools of a server, masked, with hashes of the unmasked descriptions.

    Raises TooLongError if the list exceeds a bound; another attempt would cost as much again.
    """
    listed = ToolList(server)
    cursor: str | None = None
    size = 0
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        size += (page.meta or {}).get(wire.LIST_BYTES, 0)
        if size > BYTES_MAX:
            raise TooLongError(f"its list of tools has more than {BYTES_MAX // 2**20} MiB")
        listed.add(page.tools)
        cursor = page.next_cursor
        if not cursor or listed.is_full:
            break
    else:
        raise TooLongError(f"its list of tools has more than {PAGES_MAX} pages")
    tools = listed.tools
    listed.tools = await asyncio.to_thread(lambda: [masked_tool(tool, mask) for tool in tools])
    return listed


def tools_fact(
    server: str, listed: ToolList, *, before: component_states.ComponentState | None
) -> component_states.ComponentState:
    """The fact that describes the tools of a server; it is `before` if they have not changed."""
    tools = tuple(
        component_states.OfferedTool(
            name=tool.name,
            description=(tool.description or "")[:SHOWN_DESCRIPTION_MAX],
            read_only=is_read_only(tool),
            hash=listed.hashes[tool.name],
        )
        for tool in listed.tools
    )
    if before is not None and before.detail == component_states.Tools(tools=tools):
        return before
    return component_states.ComponentState(
        kind="tools", name=server, state="listed", since=datetime.now(UTC), detail=component_states.Tools(tools=tools)
    )


def _cut(tool: types.Tool) -> types.Tool:
    """The used fields of a tool, within their bounds."""
    text = tool.description or tool.title or ""
    if len(text) > DESCRIPTION_MAX:
        text = f"{text[:DESCRIPTION_MAX]} [cut]"
    # A schema that cannot be stored, is too long or is nested too deep is of no use for a model.
    is_usable = messages.is_plain_json(tool.input_schema) and len(json.dumps(tool.input_schema)) <= SCHEMA_MAX
    schema = tool.input_schema if is_usable else {"type": "object"}
    return types.Tool(name=tool.name, description=text, input_schema=schema, annotations=tool.annotations)


def masked_tool(tool: types.Tool, mask: Callable[[str], str]) -> types.Tool:
    """A tool with masked description and schema, in which a server may have put a secret.

    A schema that masking makes unreadable becomes one for any object.
    """
    serialized = json.dumps([tool.description, tool.input_schema], ensure_ascii=False)
    masked = masker.or_withheld(mask, serialized)
    if masked == serialized:
        return tool
    try:
        description, schema = json.loads(masked)
    except (ValueError, RecursionError):
        description, schema = masker.or_withheld(mask, tool.description or ""), None
    if not isinstance(description, str) or not isinstance(schema, dict):
        description, schema = str(description), {"type": "object"}
    return tool.model_copy(update={"description": description, "input_schema": schema})


@dataclass(frozen=True)
class ToolSelection:
    """The tools that one execution gets: allowed by the platform file and by the execution's own settings."""

    servers: Mapping[str, platforms.MCPServer]
    is_allowed: ports.ToolPredicate

    def has(self, server: str, tool: types.Tool) -> bool:
        """Whether the execution gets this tool of that server; it gets no tool of an unknown server."""
        settings = self.servers.get(server)
        described = tool_filters.Tool(name=tool.name, read_only=is_read_only(tool))
        return (
            settings is not None
            and tool_filters.is_offered(described, settings)
            and self.is_allowed(f"{server}.{tool.name}")
        )


def is_read_only(tool: types.Tool) -> bool:
    """Whether the server marks the tool as read-only; any other tool counts as writing."""
    return tool.annotations is not None and tool.annotations.read_only_hint is True
