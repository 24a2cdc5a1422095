"""The shape of a timeline event."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from tarsy.transcript import entries

Type = Literal[
    "llm_thinking",
    "llm_response",
    "llm_tool_call",
    "mcp_tool_call",
    "tool_result",
    "mcp_tool_summary",
    "final_analysis",
    "executive_summary",
    "user_question",
    "mcp_selection",
    "runbook",
    "recheck",
    "code_execution",
    "google_search_result",
    "url_context_result",
    "web_search_result",
    "provider_fallback",
    "native_tools_left_out",
    "alerts_joined",
    "context_compacted",
    "model_retry",
    "error",
    "resumed",
]
Status = Literal["streaming", "completed", "failed", "cancelled", "timed_out"]

_CLOSED_AS: dict[entries.Outcome, Status] = {"TimedOut": "timed_out", "Cancelled": "cancelled"}


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, in its state after entry `seq`."""

    id: str
    """Unique in the investigation."""
    seq: int
    """The number of the entry that changed it last."""
    created_seq: int
    """The number of the entry that created it."""
    type: Type
    status: Status
    stage: str
    """"" if it belongs to no stage."""
    execution: str
    """"" if it belongs to no execution."""
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True)
class ExecutionTraits:
    """The kind and the strategy of an execution: they decide the types of its events."""

    kind: str
    strategy: str


AGENT = ExecutionTraits(kind="agent", strategy="native-thinking")
"""The traits of an execution whose start cannot be read."""


@dataclass(frozen=True)
class Context:
    """The logged entry whose events are computed: it gives them ids and times."""

    logged: entries.Logged
    execution: ExecutionTraits

    def event(self, key: str, type: Type, status: Status, content: str, metadata: dict[str, Any]) -> Event:  # noqa: A002 - its name
        """Return an event of this entry; `key` is the end of its id."""
        logged = self.logged
        return Event(
            id=f"{logged.execution or f'run-{logged.run}'}.{key}",
            seq=logged.seq,
            created_seq=logged.seq,
            type=type,
            status=status,
            stage=logged.stage,
            execution=logged.execution,
            content=content,
            metadata=metadata,
            created_at=logged.at,
            updated_at=logged.at,
        )


def closed_as(outcome: entries.Outcome) -> Status:
    """Return the status of an event that still streams when its execution ends with `outcome`."""
    return _CLOSED_AS.get(outcome, "failed")


def call_id(execution: str, call: str) -> str:
    """Return the id of a tool call's event."""
    return f"{execution}.{call}.call"


def summary_id(execution: str, call: str) -> str:
    """Return the id of the event of the summary of a tool call's result."""
    return f"{execution}.{call}.summary"
