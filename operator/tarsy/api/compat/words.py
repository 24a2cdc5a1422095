"""Phases in the words of earlier clients, and times as they write them: one table, for everything in this room.

investigation          session       processing        stage                  stage, for them
Queued, Suspended      pending       queued            Pending                pending
Running                in_progress   processing        Running                active
Cancelling             cancelling    processing
Completed              completed     completed         Completed              completed
CompletedWithErrors    completed     completed         CompletedWithErrors    completed, has_errors
Failed                 failed        failed            Failed                 failed, has_errors
Cancelled              cancelled     failed            Cancelled              failed, has_errors
TimedOut               timed_out     failed            TimedOut               failed, has_errors
Skipped                skipped

execution, for them: Running is `active`, Completed `completed`, Failed `failed`, TimedOut `timed_out`, Cancelled
`cancelled`. Source: ExecutionStatus of the founding documents; their stages have no word for the last two.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple, cast

from tarsy.resources import investigations
from tarsy.transcript import entries

Session = Literal["pending", "in_progress", "cancelling", "completed", "failed", "cancelled", "timed_out"]
Processing = Literal["queued", "processing", "completed", "failed"]
Stage = Literal["pending", "active", "completed", "failed", "skipped"]
Execution = Literal["pending", "active", "completed", "failed", "timed_out", "cancelled"]
"""`pending` is the founding documents'; an execution here has a row once it is active."""

LATEST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Words(NamedTuple):
    """The names of an investigation's state in some phase."""

    session: Session
    processing: Processing


class StageWords(NamedTuple):
    """The names of a stage's state in some phase."""

    status: Stage
    has_errors: bool


INVESTIGATIONS: Mapping[investigations.Phase, Words] = {
    "Queued": Words("pending", "queued"),
    "Running": Words("in_progress", "processing"),
    "Suspended": Words("pending", "queued"),
    "Cancelling": Words("cancelling", "processing"),
    "Completed": Words("completed", "completed"),
    "CompletedWithErrors": Words("completed", "completed"),
    "Failed": Words("failed", "failed"),
    "Cancelled": Words("cancelled", "failed"),
    "TimedOut": Words("timed_out", "failed"),
}
STAGES: Mapping[investigations.StagePhase, StageWords] = {
    "Pending": StageWords("pending", has_errors=False),
    "Running": StageWords("active", has_errors=False),
    "Completed": StageWords("completed", has_errors=False),
    "CompletedWithErrors": StageWords("completed", has_errors=True),
    "Failed": StageWords("failed", has_errors=True),
    "TimedOut": StageWords("failed", has_errors=True),
    "Cancelled": StageWords("failed", has_errors=True),
    "Skipped": StageWords("skipped", has_errors=False),
}

EXECUTIONS: Mapping[entries.Outcome | None, Execution] = {
    None: "active",
    "Completed": "completed",
    "Failed": "failed",
    "TimedOut": "timed_out",
    "Cancelled": "cancelled",
}
"""The words for the outcome of an execution; None: it runs."""


def of_outcome(outcome: str | None) -> StageWords:
    """The words for a stage, or an execution, that has started or was skipped; None: it has not ended."""
    return STAGES[cast("investigations.StagePhase", outcome or "Running")]


def of_stage(name: str, outcomes: Mapping[str, str | None], *, ended: bool) -> StageWords:
    """The words for a stage of a chain, given the outcomes of those that have started or were skipped.

    `ended`: the investigation has; what it did not come to was cancelled then, as its status in the cluster says.
    """
    if name in outcomes:
        return of_outcome(outcomes[name])
    return STAGES["Cancelled" if ended else "Pending"]


def phases(session: Session) -> tuple[investigations.Phase, ...]:
    """The phases that are called so."""
    return tuple(phase for phase, words in INVESTIGATIONS.items() if words.session == session)


def us(moment: datetime) -> int:
    """Microseconds since 1970 UTC."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(us: int) -> datetime:
    """The time that is so many microseconds after 1970 UTC, up to LATEST_US."""
    return _EPOCH + timedelta(microseconds=us)


def ms(start: datetime | None, end: datetime | None) -> int | None:
    """Milliseconds from start to end, never negative; None where there is none of the two."""
    if start is None or end is None:
        return None
    return max(0, (end - start) // timedelta(milliseconds=1))
