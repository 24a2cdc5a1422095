"""Where an investigation stands, for people: its phase, and how far it is.

The rule of phases is here twice, in Python for one that was read and in SQL for filters over many; a test compares the
two.
"""

from __future__ import annotations

from typing import get_args

from tarsy.resources import investigation
from tarsy.transcript import entries

ENDED: tuple[investigation.Phase, ...] = get_args(entries.Ending)
"""The phases of those that have ended: how they ended."""
OPEN: tuple[investigation.Phase, ...] = tuple(one for one in get_args(investigation.Phase) if one not in ENDED)

OPEN_PHASE = """CASE
    WHEN state = 'running' THEN CASE WHEN cancel IS NULL THEN 'Running' ELSE 'Cancelling' END
    WHEN suspend OR coalesce(unreadable, '') <> '' THEN 'Suspended'
    ELSE 'Queued'
  END"""
"""The phase of one that is open, by its row of `work`."""


def phase(
    *, ending: str | None, state: str, cancel: str | None, suspend: bool, unreadable: str | None
) -> investigation.Phase:
    """Where it stands, in one word."""
    match ending, state:
        case ("Completed" | "CompletedWithErrors" | "Failed" | "Cancelled" | "TimedOut") as ended, _:
            return ended
        case _, "running":
            return "Cancelling" if cancel else "Running"
        case _:
            return "Suspended" if suspend or unreadable else "Queued"


def waits_for(found: investigation.Phase, unreadable: str | None) -> str:
    """What a program needs that is to go on with it, where it stands still because of its log; else ""."""
    if found != "Suspended" or not unreadable:
        return ""
    return f"waits for a version of TARSy that can read its log: {unreadable}"


def ended_by_itself(outcome: str | None, *, says_the_same: bool, reason: str | None) -> bool:
    """Whether a stage ran to an end of its own: what ended the investigation first says the same of both.

    `reason` is why the investigation has ended, None where it has not; `says_the_same` is whether the messages of the
    two are one.
    """
    cut_off = reason not in (None, "StagesCompleted", "StagesFailed") and says_the_same
    return outcome in ("Completed", "CompletedWithErrors", "Failed", "TimedOut") and not cut_off
