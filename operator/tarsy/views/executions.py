"""Executions: the work of one agent, a synthesis, a summary or an answer, with its settings and tools."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from tarsy.config import resolve
from tarsy.resources import chains
from tarsy.store.reads import transcript_pages
from tarsy.transcript import entries, messages
from tarsy.views import base


class Native(base.View):
    """The native tools of a provider."""

    offered: list[chains.NativeTool]
    left_out: list[chains.NativeTool]
    """Requested, but not offered, because the provider does not accept them together with tools of MCP servers."""
    mixes: bool
    """Whether the provider accepts both together."""


class Fallback(base.View):
    """A provider that is asked if those before it give no answer."""

    provider: str
    native: Native


class Agent(base.View):
    """The settings of an execution, resolved at its start; instructions are masked."""

    name: str
    provider: str
    strategy: chains.IterationStrategy
    max_iterations: int
    servers: list[str]
    custom_instructions: str
    server_instructions: list[tuple[str, str]]
    """(server, instructions) of each server that has instructions."""
    problems: list[str]
    """The problems at its start, a sentence each, such as unreachable servers."""
    native: Native
    fallbacks: list[Fallback]
    """In the order in which they are asked."""


class OfferedTool(base.View):
    """A tool as the model received it."""

    name: str
    """`server.tool`."""
    description: str
    parameters: dict[str, Any]
    """A JSON Schema of the arguments."""
    idempotent: bool
    """Whether it is read-only or idempotent, so that a call in flight at a crash may be sent once more."""


class _Execution(base.View):
    id: str
    run: int
    stage: str
    """The name of its stage; "" if it belongs to none."""
    kind: str
    """agent, synthesis, summary or chat."""
    index: int
    """Its position in the stage, from 0."""
    name: str
    """The name among its siblings; other answers call it `execution_name`."""
    provider: str
    """The provider of the latest request: its agent's, or a fallback."""
    started_at: datetime
    ended_at: datetime | None = None
    outcome: str | None = None
    error: str = ""
    ungrounded: bool = False
    """Whether it concluded without any inspection although it had tools."""


class Execution(_Execution):
    """The work of one agent, a synthesis, a summary or an answer, in numbers; the export has its settings."""

    strategy: str
    """The strategy; "" if it ended before it could begin."""
    iterations: int
    """The number of its model calls."""
    tool_calls: int
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    cost: base.Cost | None
    """A decimal number as text; None if no model call had a price."""


class WholeExecution(_Execution):
    """An execution with its settings; the lists of calls have its calls, by its id."""

    agent: Agent | None
    """None if it ended before it could begin."""
    tools: list[OfferedTool]


def execution(numbered: transcript_pages.NumberedEntry, changes: Changes, *, mask: base.Mask) -> WholeExecution | None:
    """Return the execution that an entry starts; None if the entry starts none."""
    logged, entry = numbered.logged, numbered.logged.entry
    if not isinstance(entry, entries.ExecutionStarted):
        return None
    fields: dict[str, Any] = {
        "id": logged.execution,
        "run": logged.run,
        "stage": logged.stage,
        "kind": entry.kind,
        "index": entry.index,
        "name": entry.name,
        "provider": entry.agent.provider if entry.agent else "",
        "started_at": logged.at,
        "agent": agent(entry.agent, mask=mask),
        "tools": [offered_tool(tool) for tool in entry.tools],
    }
    return WholeExecution(**fields | changes.fields(logged.execution))


def agent(settings: resolve.ResolvedAgent | None, *, mask: base.Mask) -> Agent | None:
    """Return an execution's settings, masked."""
    return Agent.model_validate(base.masked(base.plain_json(settings), mask)) if settings else None


def offered_tool(tool: messages.ToolSpec) -> OfferedTool:
    """Return a tool as the model received it."""
    return OfferedTool.model_validate(base.plain_json(tool))


class Changes:
    """Changes of executions after their starts: fallbacks to other providers, and ends."""

    def __init__(self) -> None:
        self._by_execution: dict[str, dict[str, Any]] = {}

    def add(self, page: Iterable[transcript_pages.NumberedEntry]) -> None:
        """Add the changes that these entries record."""
        for numbered in page:
            fields = self._by_execution.setdefault(numbered.logged.execution, {})
            match numbered.logged.entry:
                case entries.FellBack(provider=provider):
                    fields["provider"] = provider
                case entries.ExecutionEnded() as entry:
                    fields["ended_at"] = numbered.logged.at
                    fields |= {"outcome": entry.outcome, "error": entry.error, "ungrounded": entry.ungrounded}

    def fields(self, execution: str) -> dict[str, Any]:
        """Return the changed fields of an execution."""
        return self._by_execution.get(execution, {})
