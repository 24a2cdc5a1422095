"""Events of a timeline as lines of text, each with its stage and agent; on a terminal also while they are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from tarsy.cli.client import terminal, times

Event = dict[str, Any]
FAILED = ("failed", "timed_out", "cancelled")
THINKING = ("llm_thinking",)
TOOLS = ("tool_result", "mcp_tool_summary", "code_execution")
REPEATED = ("llm_tool_call",)
"""Events that repeat others: each tool call also has an `mcp_tool_call`."""
TEXTS = ("llm_response", "final_analysis", "executive_summary", "llm_thinking", "tool_result", "mcp_tool_summary")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A filter of events."""

    stage: str | None = None
    agent: str | None = None
    failed: bool = False
    thinking: bool = False
    tools: bool = False
    since: datetime | None = None

    def has(self, event: Event, execution: Mapping[str, Any] | None) -> bool:
        """Return whether the filter admits an event of this execution."""
        kind = event["type"]
        if kind in REPEATED or (kind in THINKING and not self.thinking) or (kind in TOOLS and not self.tools):
            return self.failed and kind in TOOLS and event["status"] in FAILED
        if self.stage and event["stage"] != self.stage:
            return False
        if self.agent and (execution is None or execution["name"] != self.agent):
            return False
        if self.since and times.parse(event["created_at"]) < self.since:
            return False
        has_failed = execution is not None and execution["outcome"] not in (None, "Completed")
        return not self.failed or event["status"] in FAILED or has_failed


class Printer:
    """Prints complete events and, if it streams, texts while the model writes them."""

    def __init__(
        self, selection: Selection, executions: Callable[[], Iterable[dict[str, Any]]], *, streams: bool
    ) -> None:
        """`executions` reads the executions; it is called again when an event has an unknown one."""
        self._selection = selection
        self._read = executions
        self._executions: dict[str, dict[str, Any]] = {}
        self._streams = streams
        self._growing: dict[str, tuple[Event, str]] = {}
        self._current = ""
        self._printed: set[str] = set()

    def event(self, event: Event) -> None:
        """Print a complete event once, or begin the text of one that is being written."""
        identity = event["id"]
        if event["status"] == "streaming":
            if self._streams and event["type"] in TEXTS and identity not in self._growing and self.is_wanted(event):
                self._growing[identity] = (event, "")
                self._grow(identity, event["content"])
            return
        if identity in self._printed:
            return
        self._printed.add(identity)
        started = self._growing.pop(identity, None)
        if started and event["content"].startswith(started[1]):
            self._growing[identity] = (event, started[1])
            self._grow(identity, event["content"][len(started[1]) :])
            del self._growing[identity]
            self._end_line()
        elif event["metadata"].get("discarded"):
            self._end_line()
        elif self.is_wanted(event):
            self._end_line()
            for line in event_text(event).split("\n"):
                click.echo(self._prefix(event) + line)

    def chunk(self, identity: str, offset: int, delta: str) -> None:
        """Print an addition to a text. If `offset` is before its end, the text begins again from there."""
        if identity not in self._growing:
            return
        event, text = self._growing[identity]
        if offset < len(text):
            self._end_line()
            text = text[:offset]
            self._growing[identity] = (event, text)
        self._grow(identity, delta)

    def is_wanted(self, event: Event) -> bool:
        """Return whether an event is printed."""
        return self._selection.has(event, self._execution(event["execution"]))

    def close(self) -> None:
        """End the current line."""
        self._end_line()

    def _grow(self, identity: str, delta: str) -> None:
        event, text = self._growing[identity]
        self._growing[identity] = (event, text + delta)
        if not delta:
            return
        if self._current != identity:
            self._end_line()
            click.echo(self._prefix(event), nl=False)
            self._current = identity
        click.echo(terminal.clean(delta).replace("\n", "\n" + self._prefix(event)), nl=False)

    def _end_line(self) -> None:
        if self._current:
            click.echo()
        self._current = ""

    def _prefix(self, event: Event) -> str:
        execution = self._execution(event["execution"])
        source = "/".join(part for part in (event["stage"], execution["name"] if execution else "") if part)
        if execution and execution["run"] > 0:
            source = f"question {execution['run']}"
        return f"[{terminal.clean_line(source)}] " if source else ""

    def _execution(self, identity: str) -> dict[str, Any] | None:
        if identity and identity not in self._executions:
            self._executions = {execution["id"]: execution for execution in self._read()}
            self._executions.setdefault(identity, {"id": identity, "name": "", "run": 0, "outcome": None})
        return self._executions.get(identity)


def event_text(event: Event) -> str:
    """Return the text of an event."""
    metadata = event["metadata"]
    head = {"final_analysis": "", "llm_response": "", "executive_summary": "Summary: ", "llm_thinking": "Thinks: "}.get(
        event["type"], f"{event['type']}: "
    )
    tool = f"{metadata['server_name']}.{metadata['tool_name']}" if "tool_name" in metadata else ""
    if event["type"] == "mcp_tool_call":
        head = f"Calls {tool} {metadata.get('arguments') or ''}"
    elif event["type"] == "tool_result":
        head = f"{tool} answers: "
    state = f" ({event['status']})" if event["status"] in FAILED else ""
    deleted = f"\n({metadata['full_result_deleted']})" if "full_result_deleted" in metadata else ""
    return terminal.clean((head + event["content"]).rstrip() + state + deleted)
