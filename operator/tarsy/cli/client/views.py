"""Views of investigations. One that was read from an object has the names of the API's fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tarsy.cli.client import times

ENDED = ("Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut")
EXIT_CODES = {"Completed": 0, "CompletedWithErrors": 0, "Failed": 1, "Cancelled": 3, "TimedOut": 4}


def from_object(document: dict[str, Any]) -> dict[str, Any]:
    """Return the view of an object. Fields that only the API has are missing."""
    metadata, spec, status = document["metadata"], document.get("spec") or {}, document.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}
    usage = status.get("usage") or {}
    finished = conditions.get("Finished") or {}
    accepted = conditions.get("Accepted") or {}
    refusal = accepted.get("message") if accepted.get("status") == "False" else ""
    grounded = (conditions.get("Grounded") or {}).get("status")
    return {
        "id": metadata["uid"],
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "alert_type": spec.get("alertType") or "",
        "alert_data": spec.get("alertData") or "",
        "severity": spec.get("severity"),
        "author": status.get("author") or spec.get("author") or "",
        "chain_name": (status.get("chain") or {}).get("name"),
        "phase": status.get("phase") or "Pending",
        "progress": status.get("progress") or "",
        "current_stage": status.get("currentStage"),
        "admitted_at": metadata["creationTimestamp"],
        "started_at": status.get("startTime"),
        "ended_at": status.get("completionTime"),
        "seconds": _seconds(status),
        "total_tokens": usage.get("totalTokens") or 0,
        "tool_calls": usage.get("toolCalls") or 0,
        "llm_calls": usage.get("llmCalls") or 0,
        "cost": usage.get("cost"),
        "attempts": status.get("attempts") or 0,
        "duplicates": status.get("duplicates") or 0,
        "alert_count": (status.get("alerts") or {}).get("total"),
        "summary": status.get("summary") or "",
        "headline": status.get("headline") or "",
        "message": status.get("message") or finished.get("message") or refusal or "",
        "reason": finished.get("reason") or "",
        "final_analysis": status.get("finalAnalysis") or "",
        "grounded": {"True": True, "False": False}.get(str(grounded)),
        "grounds": (conditions.get("Grounded") or {}).get("reason"),
        "gaps": status.get("gaps") or [],
        "stage_progress": [_stage(stage) for stage in status.get("stages") or ()],
        "target": status.get("target") or "",
    }


def _stage(stage: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": stage["name"],
        "phase": stage.get("phase") or "Pending",
        "agents": stage.get("agents") or "",
        "started_at": stage.get("startTime"),
        "seconds": _seconds(stage),
        "iterations": stage.get("iterations") or 0,
        "tool_calls": stage.get("toolCalls") or 0,
        "total_tokens": stage.get("tokens") or 0,
        "message": stage.get("message") or "",
    }


def _seconds(timed: Mapping[str, Any]) -> float | None:
    """Return the seconds from start to end of an investigation or a stage; None if it has not ended."""
    if not timed.get("completionTime"):
        return None
    return times.since(timed.get("startTime"), until=timed["completionTime"])


def has_ended(view: dict[str, Any]) -> bool:
    """Return whether the investigation has ended."""
    return view["phase"] in ENDED


def headline(view: dict[str, Any]) -> str:
    """Return the summary, or the message if there is none, in one line."""
    return str(view.get("headline") or view["summary"] or view["message"] or "")


def grounded(view: dict[str, Any]) -> str:
    """Return the cell of the column GROUNDED."""
    return {True: "True", False: "False"}.get(view["grounded"], "")


def gap(gap: dict[str, Any]) -> str:
    """Return a gap as text: the tool, and the reason why it could not be used."""
    return str(gap["reason"] if gap["tool"] in ("", "-") else f"{gap['tool']}: {gap['reason']}")


def feedback(person: dict[str, Any]) -> str:
    """Return the feedback of a person in one line."""
    verdict = f"{person['verdict']}, says {person['author']}"
    return ": ".join(filter(None, (verdict, person["cause"], person["note"])))


def age(view: dict[str, Any]) -> str:
    """Return the time since the admission."""
    return times.duration_text(times.since(view["admitted_at"]))


def duration(view: dict[str, Any]) -> str:
    """Return the time from start to end, or to now."""
    return times.duration_text(view["seconds"] if view["seconds"] is not None else times.since(view["started_at"]))
