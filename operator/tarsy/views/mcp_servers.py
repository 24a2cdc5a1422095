"""The MCP servers of all workers: connections, tools, and tools that have changed since they were pinned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states
from tarsy.views import system, system_warnings


class StoppedTool(BaseModel):
    """A tool that differs from its pin; it is neither offered nor called."""

    tool: str
    pinned_hash: Annotated[str, Field(validation_alias="pinned")]
    """The hash that it was pinned at; "" of a tool beyond the number that are pinned at first sight."""
    offered_hash: Annotated[str, Field(validation_alias="offered")]
    """The hash of the description that its server sends."""
    platform_key: Annotated[str, Field(validation_alias="written")] = ""
    """The key of the platform file that pins it, and has to be changed there; "" if none does."""


class ServerPlace(system.ProcessState):
    """The state of an MCP server in one process."""

    problem: str
    """The reason why it cannot be called now, or ""."""
    missing: str
    """The problem with its tools, or ""."""
    stopped: list[StoppedTool] = []
    """Its tools that differ from their pins."""


class Tool(BaseModel):
    """A tool, as its server describes it; long descriptions are cut."""

    name: str
    description: str
    read_only: bool
    """Whether its server declares it read-only."""
    hash: str = ""
    """The hash of its description, as in `tool_hashes` of the platform file."""


class Server(BaseModel):
    """An MCP server of the platform file."""

    name: str
    state: Literal["connected", "connecting", "unreachable"]
    """The worst of its processes' states."""
    since: datetime
    processes: list[ServerPlace]
    tools: list[Tool]
    """The tools that a process listed most recently."""


class Servers(BaseModel):
    """The MCP servers of all workers, by name."""

    items: list[Server]
    total: system.Total


def servers(facts: Iterable[catalogue.AnyReport], tools: Mapping[str, catalogue.AnyReport]) -> Servers:
    """Return the MCP servers of all processes; `tools` are the newest lists of tools by server."""
    items = [_server(name, places, tools.get(name)) for name, places in system.by_name(facts)]
    return Servers(items=items[: system.ITEMS_MAX], total=len(items))


def _server(name: str, facts: Sequence[catalogue.AnyReport], tools: catalogue.AnyReport | None) -> Server:
    worst = system_warnings.worst(facts)
    return Server.model_validate(
        {
            "name": name,
            "state": worst.state,
            "since": worst.since,
            "processes": [{**component_states.encode(fact.detail), **system.process_state(fact)} for fact in facts],
            "tools": component_states.encode(tools.detail)["tools"] if tools else [],
        }
    )
