"""The rules for the phase, the progress and the message of an investigation.

The rule of the phase is written twice: in Python for one row, and in SQL for filters. A test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, cast, get_args

from tarsy.resources import investigations
from tarsy.store import log
from tarsy.transcript import entries

ENDED: tuple[investigations.Phase, ...] = get_args(investigations.EndedPhase)
"""The phases of ended investigations."""
OPEN: tuple[investigations.Phase, ...] = get_args(investigations.OpenPhase)

Cancellation = Literal["user", "deleted", "resolved"]
"""The reasons for which an investigation is cancelled."""
CANCELLED_REASONS: dict[Cancellation, str] = {
    "user": "CancelledByUser",
    "deleted": "ObjectDeleted",
    "resolved": "AlertResolved",
}

OPEN_PHASE = """CASE
    WHEN state = 'running' THEN CASE WHEN cancel IS NULL THEN 'Running' ELSE 'Cancelling' END
    WHEN suspend OR coalesce(unreadable, '') <> '' THEN 'Suspended'
    WHEN state = 'parked' THEN 'Waiting'
    ELSE 'Queued'
  END"""
"""The expression for the phase of an open investigation, by its row of `work`."""


def phase(
    *, ending: str | None, state: str, cancel: str | None, suspend: bool, unreadable: str | None
) -> investigations.Phase:
    """Return the phase, by columns of `runs` and `work`."""
    if ending in ENDED:
        return cast("investigations.EndedPhase", ending)
    if state == "running":
        return "Cancelling" if cancel else "Running"
    if suspend or unreadable:
        return "Suspended"
    return "Waiting" if state == "parked" else "Queued"


def waits_for(
    current_phase: investigations.Phase,
    unreadable: str | None,
    passed_over_since: datetime | None,
    wait_message: str | None,
    wake_at: datetime | None,
) -> str:
    """Return a sentence about what an investigation waits for that no worker can run; "" for any other.

    `unreadable` is the part of its log that could not be read. Since `passed_over_since`, all workers pass it over.
    `wait_message` is what a parked one waits for, `wake_at` the time at which it tries again.
    """
    if current_phase == "Waiting":
        again = "" if wake_at is None else f"; it goes on at {wake_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        return f"waits: {wait_message or ''}{again}"
    if current_phase == "Suspended" and unreadable:
        return f"waits for a version of TARSy that can read its log: {unreadable}"
    if current_phase in ("Queued", "Running") and passed_over_since is not None:
        since = passed_over_since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return (
            f"waits for a worker that can run its chain: all workers have passed it over since {since}; "
            "the chain's conditions say why"
        )
    return ""


def shown_message(waits_for: str, retrying: Sequence[str], message: str) -> str:
    """Return the message to show: what the investigation waits for, the retried requests, or the reason of its end."""
    return waits_for or "; ".join(retrying) or message


def stage_phase(outcome: str | None, *, has_begun: bool, has_ended: bool) -> investigations.StagePhase:
    """Return the phase of a stage with this outcome; `has_ended` is about its investigation.

    `has_begun` is also true of a stage that was skipped.
    """
    if not has_begun:
        return "Cancelled" if has_ended else "Pending"
    return "Running" if outcome is None else _STAGE_PHASES[outcome]


_STAGE_PHASES: dict[str, investigations.StagePhase] = {
    "Completed": "Completed",
    "CompletedWithErrors": "CompletedWithErrors",
    "Failed": "Failed",
    "TimedOut": "TimedOut",
    "Cancelled": "Cancelled",
    "Skipped": "Skipped",
}


GROUNDED: tuple[entries.Grounds, ...] = ("Inspected", "InspectedWithGaps")
"""The grounds of a result that is based on what agents inspected."""


def is_grounded(grounds: str | None) -> bool | None:
    """Whether a result is based on what agents inspected; None if there is no result."""
    return None if grounds is None else grounds in GROUNDED


CUT_OFF = f"""coalesce(stages.cut_off, stages.ended_at IS NOT NULL AND runs.ended_at IS NOT NULL
          AND coalesce(runs.reason, '') NOT IN ({", ".join(f"'{reason}'" for reason in log.STAGE_REASONS)})
          AND stages.message = coalesce(runs.message, ''))"""
"""The expression for whether the end of the run ended a stage, by the rows of `stages` and `runs`.

The column is null for stages that an earlier build ended: those were cut off if stage and run have the same message.
"""


def progress(ends: Iterable[tuple[str | None, bool]], *, stages: int) -> str:
    """Return the share of ended stages, such as 1/3; a stage that was skipped or cut off counts as not ended.

    `ends` has, for each stage that has begun or was skipped, its outcome and whether it was cut off (CUT_OFF).
    """
    ended = ("Completed", "CompletedWithErrors", "Failed", "TimedOut")
    return f"{sum(outcome in ended and not cut_off for outcome, cut_off in ends)}/{stages}"
