"""Component states: what a process reports of its parts, each with a state, its time and details.

Modules of all rooms report them; `store.fleet.reporter` stores them, and the API shows them. They must have no secrets,
and are masked before they are stored in any case. Details are stored as JSON, in one shape for each kind. A field that
an earlier version of the process does not report has a default; a field of a later version is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter

Kind = Literal["process", "configuration", "server", "tools", "provider", "passed", "watch", "owners"]


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process."""

    roles: tuple[str, ...] = ()
    version: str = ""
    build: str = ""
    """The versions of the log that it can read (`record.build`)."""
    slots: int = 0
    """The investigations that it can run at once; 0 if it is no worker."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """A problem of a configuration."""

    message: str
    since: str
    """A time (RFC 3339)."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration in force."""

    written: Any = None
    """The platform file, redacted, as JSON."""
    problems: tuple[Remark, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StoppedTool:
    """A tool whose description differs from the pinned one (`tools.pins`)."""

    tool: str
    pinned: str
    offered: str
    written: str = ""


@dataclass(frozen=True, kw_only=True)
class Server:
    """An MCP server."""

    problem: str = ""
    missing: str = ""
    tools: int = 0
    """The number of tools that it offers."""
    stopped: tuple[StoppedTool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """A tool as its MCP server describes it."""

    name: str
    description: str = ""
    read_only: bool = False
    """Whether its server declares it read-only."""
    hash: str = ""


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The tools of an MCP server."""

    tools: tuple[OfferedTool, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The last failure of a provider."""

    kind: str = ""
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An LLM provider: its settings, redacted, and why it cannot be used."""

    type: str = ""
    model: str = ""
    base_url: str | None = None
    price: Any = None
    limits: Any = None
    named: bool = False
    """Whether the configuration names it."""
    problem: str = ""
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class UnrunnableAgent:
    """An agent of a chain that a worker cannot run (`store.fleet.passed_over`)."""

    stage: int
    index: int
    reason: str
    """The reason of an investigation that ends because no worker can run this agent."""
    problem: str
    """The missing part, with the stage."""
    only_to_start: bool = False
    """See `claim_filter.UnrunnableAgent`."""


@dataclass(frozen=True, kw_only=True)
class Passed:
    """A snapshot of a chain that a worker passes over."""

    agents: tuple[UnrunnableAgent, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Watch:
    """A watch of the cluster, without details."""


@dataclass(frozen=True, kw_only=True)
class Owners:
    """A kind of owners of alerts that this process may not get, without details."""


Detail = Process | Configuration | Server | Tools | Provider | Passed | Watch | Owners

_ADAPTERS: Mapping[Kind, TypeAdapter[Any]] = {
    "process": TypeAdapter(Process),
    "configuration": TypeAdapter(Configuration),
    "server": TypeAdapter(Server),
    "tools": TypeAdapter(Tools),
    "provider": TypeAdapter(Provider),
    "passed": TypeAdapter(Passed),
    "watch": TypeAdapter(Watch),
    "owners": TypeAdapter(Owners),
}


def encode(detail: Detail) -> dict[str, Any]:
    """Return the detail as JSON."""
    return asdict(detail)


def decode(kind: Kind, stored: Mapping[str, Any]) -> Any:
    """Return the detail of a component state of this kind, from JSON."""
    return _ADAPTERS[kind].validate_python(stored)


@dataclass(frozen=True, kw_only=True)
class ComponentState:
    """The state of one component."""

    kind: Kind
    name: str
    """The name of the component; unique in its kind."""
    state: str
    since: datetime
    """The time at which the state began."""
    detail: Detail
    """The details, in the shape of this kind."""


class StateTracker:
    """The present state of a component, and its time."""

    def __init__(self, state: str) -> None:
        self.state = state
        self.since = datetime.now(UTC)

    def change(self, state: str) -> bool:
        """Change to `state`; return whether that is another state."""
        changed = state != self.state
        if changed:
            self.state, self.since = state, datetime.now(UTC)
        return changed
