"""Conditions of objects whose spec this version cannot read."""

from __future__ import annotations

from datetime import datetime

from tarsy.kube import objects
from tarsy.resources import base

REASON = "Unreadable"
"""The reason of all these conditions."""


def condition(unreadable: objects.Unreadable, kind: str, *, true: bool, now: datetime) -> base.Condition:
    """Return the condition of type `kind` with the message of the unreadable object."""
    return base.Condition(
        type=kind,
        status="True" if true else "False",
        reason=REASON,
        message=unreadable.message[: base.MESSAGE_MAX],
        last_transition_time=now.replace(microsecond=0),
        observed_generation=unreadable.metadata.generation,
    )


def reported_messages(unreadable: objects.Unreadable) -> set[str]:
    """Return the messages of the conditions that report this generation of the object as unreadable."""
    return {
        condition.get("message", "")
        for condition in unreadable.status.get("conditions") or ()
        if condition.get("reason") == REASON and condition.get("observedGeneration") == unreadable.metadata.generation
    }
