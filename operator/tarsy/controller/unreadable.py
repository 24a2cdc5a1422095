"""Conditions of objects whose spec this version cannot read."""

from __future__ import annotations

from datetime import datetime

from tarsy.kube import objects
from tarsy.resources import base

REASON = "Unreadable"
"""The reason of all these conditions."""


def condition(unreadable_object: objects.Unreadable, kind: str, *, true: bool, now: datetime) -> base.Condition:
    """Return the condition of type `kind` that says why this generation of the object cannot be read."""
    return base.Condition(
        type=kind,
        status="True" if true else "False",
        reason=REASON,
        message=unreadable_object.message[: base.MESSAGE_MAX],
        last_transition_time=now.replace(microsecond=0),
        observed_generation=unreadable_object.metadata.generation,
    )


def messages(unreadable_object: objects.Unreadable) -> set[str]:
    """Return the messages with which the object's status tells already that this generation cannot be read."""
    return {
        condition.get("message", "")
        for condition in unreadable_object.status.get("conditions") or ()
        if condition.get("reason") == REASON
        and condition.get("observedGeneration") == unreadable_object.metadata.generation
    }
