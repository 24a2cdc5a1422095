"""Phases and outcomes as statuses of earlier clients, by one table; and times in their units.

investigation          session       processing        stage                  status of the stage
Queued, Waiting,       pending       queued            Pending                pending
Suspended
Running                in_progress   processing        Running                active
Cancelling             cancelling    processing
Completed              completed     completed         Completed              completed
CompletedWithErrors    completed     completed         CompletedWithErrors    completed, has_errors
Failed                 failed        failed            Failed                 failed, has_errors
Cancelled              cancelled     failed            Cancelled              failed, has_errors
TimedOut               timed_out     failed            TimedOut               failed, has_errors
Skipped                skipped

Executions: Running is `active`, Completed `completed`, Failed `failed`, TimedOut `timed_out`, Cancelled `cancelled`.
Source: ExecutionStatus of the founding documents; their stages have no word for the last two.
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
"""The founding documents' statuses; `pending` never occurs, because an execution is active from its first row on."""

LATEST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InvestigationStatus(NamedTuple):
    """The statuses of an investigation in some phase."""

    session: Session
    processing: Processing


class StageStatus(NamedTuple):
    """The status of a stage in some phase."""

    status: Stage
    has_errors: bool


INVESTIGATIONS: Mapping[investigations.Phase, InvestigationStatus] = {
    "Queued": InvestigationStatus("pending", "queued"),
    "Running": InvestigationStatus("in_progress", "processing"),
    "Waiting": InvestigationStatus("pending", "queued"),
    "Suspended": InvestigationStatus("pending", "queued"),
    "Cancelling": InvestigationStatus("cancelling", "processing"),
    "Completed": InvestigationStatus("completed", "completed"),
    "CompletedWithErrors": InvestigationStatus("completed", "completed"),
    "Failed": InvestigationStatus("failed", "failed"),
    "Cancelled": InvestigationStatus("cancelled", "failed"),
    "TimedOut": InvestigationStatus("timed_out", "failed"),
}
STAGES: Mapping[investigations.StagePhase, StageStatus] = {
    "Pending": StageStatus("pending", has_errors=False),
    "Running": StageStatus("active", has_errors=False),
    "Completed": StageStatus("completed", has_errors=False),
    "CompletedWithErrors": StageStatus("completed", has_errors=True),
    "Failed": StageStatus("failed", has_errors=True),
    "TimedOut": StageStatus("failed", has_errors=True),
    "Cancelled": StageStatus("failed", has_errors=True),
    "Skipped": StageStatus("skipped", has_errors=False),
}
EXECUTIONS: Mapping[entries.Outcome | None, Execution] = {
    None: "active",
    "Completed": "completed",
    "Failed": "failed",
    "TimedOut": "timed_out",
    "Cancelled": "cancelled",
}
"""The status of an execution by its outcome; None: it runs."""


def stage_status(name: str, outcomes: Mapping[str, str | None], *, ended: bool) -> StageStatus:
    """Return the status of a stage.

    `outcomes` has the stages that have started or were skipped; the outcome of a running stage is None. If the
    investigation has `ended`, the other stages count as cancelled, as in its status in the cluster.
    """
    if name in outcomes:
        return STAGES[cast("investigations.StagePhase", outcomes[name] or "Running")]
    return STAGES["Cancelled" if ended else "Pending"]


def phases(session: Session) -> tuple[investigations.Phase, ...]:
    """Return the phases that have this session status."""
    return tuple(phase for phase, status in INVESTIGATIONS.items() if status.session == session)


def error_message(phase: investigations.Phase, message: str) -> str | None:
    """Return the message of an investigation that failed or was stopped; None for any other."""
    return message or None if INVESTIGATIONS[phase].processing == "failed" else None


def to_us(moment: datetime) -> int:
    """Return a time as microseconds since 1970 UTC."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_us(microseconds: int) -> datetime:
    """Return the time that is so many microseconds after 1970 UTC, up to LATEST_US."""
    return _EPOCH + timedelta(microseconds=microseconds)


def elapsed_ms(start: datetime | None, end: datetime | None) -> int | None:
    """Return the milliseconds from `start` to `end`, never negative; None if one of them is unknown."""
    if start is None or end is None:
        return None
    return max(0, (end - start) // timedelta(milliseconds=1))
