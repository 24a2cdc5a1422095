"""Where an investigation stands, for people: its phase, and how far it is.

The rule of phases is here twice, in Python for one that was read and in SQL for filters over many; a test compares the
two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Literal, cast, get_args

from tarsy.resources import investigations
from tarsy.store import log
from tarsy.transcript import entries

ENDED: tuple[investigations.Phase, ...] = get_args(investigations.EndedPhase)
"""The phases of those that have ended: how they ended."""
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
    ELSE 'Queued'
  END"""
"""The phase of one that is open, by its row of `work`."""


def phase(
    *, ending: str | None, state: str, cancel: str | None, suspend: bool, unreadable: str | None
) -> investigations.Phase:
    """Where it stands, in one word."""
    if ending in ENDED:
        return cast("investigations.EndedPhase", ending)
    if state == "running":
        return "Cancelling" if cancel else "Running"
    return "Suspended" if suspend or unreadable else "Queued"


def waits_for(current_phase: investigations.Phase, unreadable: str | None, passed_over_since: datetime | None) -> str:
    """Return what an investigation that no worker runs waits for; "" if any worker may claim it, or it is suspended.

    `unreadable` is what of its log could not be read, `passed_over_since` the time since when all workers pass it over.
    """
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
    """Return the message for people: what it waits for, the model requests that are sent again, or how it ended."""
    return waits_for or "; ".join(retrying) or message


GROUNDED: tuple[entries.Grounds, ...] = ("Inspected", "InspectedWithGaps")
"""The grounds of a result that stands on what was looked at."""


def is_grounded(grounds: str | None) -> bool | None:
    """Whether a result stands on what was looked at; None where there is no result that could."""
    return None if grounds is None else grounds in GROUNDED


CUT_OFF = f"""coalesce(stages.cut_off, stages.ended_at IS NOT NULL AND runs.ended_at IS NOT NULL
          AND coalesce(runs.reason, '') NOT IN ({", ".join(f"'{reason}'" for reason in log.STAGE_REASONS)})
          AND stages.message = coalesce(runs.message, ''))"""
"""Whether the end of the run cut a stage off, by the rows of `stages` and `runs`.

A stage that a build before the column ended has null there: it was cut off if the run's end says the same of both.
"""


def progress(ends: Iterable[tuple[str | None, bool]], *, stages: int) -> str:
    """Return the ended stages of all `stages`, such as 1/3; a stage that was skipped or cut off counts as not ended.

    `ends` has, for each stage that has begun or was skipped, its outcome and whether it was cut off (CUT_OFF).
    """
    ended = ("Completed", "CompletedWithErrors", "Failed", "TimedOut")
    return f"{sum(outcome in ended and not cut_off for outcome, cut_off in ends)}/{stages}"
