"""The chain that would take an alert type, and the MCP servers that such an alert may select."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tarsy.config.check import chain_index
from tarsy.config.tool_selection import choices
from tarsy.resources import chains
from tarsy.views import base, system_warnings

SERVERS_MAX = 100
TOOLS_MAX = 1000
"""The maximal number of tools of one server."""


class SelectableServer(base.View):
    """An MCP server that `mcp.servers` of the alert may name."""

    name: str
    is_own: bool
    """Whether an agent of the chain has the server without a selection."""
    tool_names: list[str] | None
    """The tools that an agent gets if the alert selects the server; null if no worker has connected to it yet."""


class ChainMatch(base.View):
    """The chain that would take an alert now."""

    alert_type: str
    """The alert type of the request."""
    investigated_as: str | None
    """The alert type that the investigation would have: the default type if no chain takes the alert's own."""
    chain_name: str | None
    """The chain that takes it, ready or not; null if none does."""
    ready: bool
    """Whether an alert of the type would be investigated."""
    reason: str
    """The reason why it would be refused, in one word, or ""."""
    message: str
    """The reason why it would be refused, with the alert types that chains take, or ""."""
    selectable_servers: list[SelectableServer]
    """The MCP servers that the alert may select; empty if the chain is not ready."""


def chain_match(
    index: chain_index.ChainIndex,
    alert_type: str,
    *,
    default: str | None,
    selectable: Callable[[chains.AgentChain], Iterable[choices.ServerChoice]],
) -> ChainMatch:
    """Return the chain that takes an alert type, or the `default` type."""
    investigated_as = chain_name = None
    servers: list[SelectableServer] = []
    problem = None
    try:
        investigated_as = index.effective_type(alert_type, default=default)
        chain_name = index.chains_by_alert_type[investigated_as].metadata.name
        servers = [
            SelectableServer(
                name=choice.name,
                is_own=choice.is_own,
                tool_names=None if choice.tools is None else list(choice.tools[:TOOLS_MAX]),
            )
            for choice in selectable(index.chain_for(investigated_as))
        ]
    except chain_index.UnservedError as error:
        problem = error.problem
    return ChainMatch(
        alert_type=alert_type,
        investigated_as=investigated_as,
        chain_name=chain_name,
        ready=problem is None,
        reason=problem.reason if problem else "",
        message=problem.message[: system_warnings.MESSAGE_MAX] if problem else "",
        selectable_servers=servers[:SERVERS_MAX],
    )
