"""What comes next in a conversation: a pure function of its log.

The same function decides for a new execution and for one that is taken over, so resuming needs no code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tarsy.transcript import messages

BEYOND_LIMIT = 2
"""Calls that a model gets to conclude once its iterations are used up. One that never concludes would otherwise be
asked for ever."""
REJECTED_IN_A_ROW = 3
"""Rejected answers in a row that end it: what is wrong is not one answer's bad luck any more."""


@dataclass(frozen=True)
class Ask:
    """Ask the model; `final`: without tools, for its conclusion."""

    final: bool


@dataclass(frozen=True)
class Run:
    """Run these tool calls, which have no results yet."""

    calls: tuple[messages.ToolCall, ...]


@dataclass(frozen=True)
class Done:
    """The analysis is there."""

    text: str


@dataclass(frozen=True)
class GiveUp:
    """There will be no analysis; `text` says why."""

    text: str


Step: TypeAlias = Ask | Run | Done | GiveUp


def next_step(log: messages.Log, *, limit: int) -> Step:
    """Decide by the log alone; `limit` is how often the model may be asked before it must conclude."""
    turns = messages.answers(log)
    match turns[-2:]:
        case [*_, messages.Failure(kind="fatal", text=text)]:
            return GiveUp(text)
        case [messages.Failure(kind="timeout", text=text), messages.Failure(kind="timeout")]:
            return GiveUp(f"two timeouts in a row: {text}")
        case [*_, messages.Failure(kind="rejected", text=text)] if _rejected(turns[-REJECTED_IN_A_ROW:]):
            return GiveUp(f"{REJECTED_IN_A_ROW} rejected answers in a row: {text}")
        case [*_, messages.Message() as answer]:
            done = {entry.call_id for entry in log if isinstance(entry, messages.Message)}
            if pending := tuple(call for call in answer.calls if call.id not in done):
                return Run(pending)
            if not answer.calls:
                return Done(answer.text)
    if len(turns) >= limit + BEYOND_LIMIT:
        last = turns[-1]
        why = f": {last.text}" if isinstance(last, messages.Failure) else ""
        return GiveUp(f"no conclusion after {len(turns)} model calls{why}")
    return Ask(final=len(turns) >= limit)


def _rejected(last: list[messages.Message | messages.Failure]) -> bool:
    rejections = [turn for turn in last if isinstance(turn, messages.Failure) and turn.kind == "rejected"]
    return len(rejections) == REJECTED_IN_A_ROW
