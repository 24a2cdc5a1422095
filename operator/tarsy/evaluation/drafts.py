"""Begun scenarios: `scenario.yaml` as far as a recording knows it; the rest is marked to be filled in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tarsy.evaluation import causes, past_results, scenarios, verdicts, worlds

_EVIDENCE_MAX = 6
_QUOTE_MIN = 4
_QUOTED = re.compile(r"`([^`\n]{4,200})`|\"([^\"\n]{4,200})\"|“([^”\n]{4,200})”")
_CODE_BLOCK = re.compile(r"^[ \t]*(```|~~~)[^\n]*\n(.*?)^[ \t]*\1", re.MULTILINE | re.DOTALL)
_SYMPTOMS = {"Pod", "ReplicaSet", "Event", "Endpoints", "EndpointSlice", "Namespace", "PodMetrics", "NodeMetrics"}
"""Kinds that are rarely a cause: others made them, or they only show it."""
_NAMED_MAX = 6
_FIRING = timedelta(minutes=1), timedelta(days=1)
"""The shortest and the longest time that a begun alert has been firing."""


def _blank(what: str) -> str:
    return f"{scenarios.BLANK}: {what}"


def alert_of(
    alert_data: str, *, alert_type: str, labels: Mapping[str, str], starts_at: datetime | None, ended_at: datetime
) -> dict[str, Any]:
    """Return the alert of an investigation that ended at `ended_at`.

    `alert_data` is one alert of Alertmanager as JSON, or a text, which becomes its description.
    """
    own_labels: dict[str, str] = {"alertname": alert_type, **labels}
    annotations: dict[str, str] = {}
    started = starts_at
    try:
        sent = json.loads(alert_data)
        own_labels |= {str(name): str(value) for name, value in sent["labels"].items()}
        annotations = {str(name): str(value) for name, value in (sent.get("annotations") or {}).items()}
        if sent.get("startsAt"):
            started = datetime.fromisoformat(sent["startsAt"])
    except (ValueError, LookupError, TypeError, AttributeError):
        annotations = {"description": alert_data}
    firing = min(max(_FIRING[0], ended_at - started), _FIRING[1]) if started else timedelta(minutes=5)
    return {"labels": own_labels, "annotations": annotations, "firing_for": _duration(firing)}


def _duration(time: timedelta) -> str:
    minutes = int(time.total_seconds()) // 60
    return next(
        (f"{minutes // size}{unit}" for size, unit in ((1440, "d"), (60, "h")) if minutes >= 3 * size), f"{minutes}m"
    )


def blank_alert(namespace: str) -> dict[str, Any]:
    """Return the alert of a scenario that was recorded without one."""
    return {
        "labels": {"alertname": _blank("the name of the rule that would fire"), "namespace": namespace},
        "annotations": {"summary": _blank("what the rule would say: the symptom, and not the cause")},
        "firing_for": "10m",
    }


def content(
    world: worlds.World,
    *,
    title: str,
    alert: Mapping[str, Any],
    calls: Sequence[past_results.PastCall] = (),
    analysis: str = "",
    right: str = "",
) -> dict[str, Any]:
    """Return the content of `scenario.yaml`.

    `calls` are those of an investigation, `analysis` its result, and `right` a text that people say is right about the
    cause; "" if there is none.
    """
    return {
        "title": title,
        "tags": ["recorded"],
        "alert": dict(alert),
        "cause": _cause(world, right or analysis, is_right=bool(right)),
        "evidence": _evidence(calls, analysis, alert)
        or [
            {
                "shows": _blank("what this piece of evidence shows, for reports"),
                "tool": "events_list",
                "arguments": {"namespace": alert["labels"].get("namespace", "default")},
                "matches": _blank("a regular expression that matches the call's result, and not the alert"),
            }
        ],
        "forbidden_claims": [],
    }


def _cause(world: worlds.World, text: str, *, is_right: bool) -> dict[str, Any]:
    """Return the cause that a text names, if it is right and names one; else what has to be filled in."""
    concluded = verdicts.conclusion(text)
    claimed = verdicts.claimed_classes(concluded)
    listed = f"one of {', '.join(causes.CLASSES)}"
    claim_note = f" The investigation claimed {', '.join(claimed)}." if claimed and not is_right else ""
    cause_class = claimed[0] if is_right and len(claimed) == 1 else _blank(listed + claim_note)
    if cause_class == "nothing":
        return {"class": cause_class}
    entities = sorted(
        {
            (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"])
            for each in world.objects()
            if each["kind"] not in _SYMPTOMS and verdicts.names(concluded, each["metadata"]["name"])
        }
    )
    if is_right and len(entities) == 1:
        ((kind, namespace, name),) = entities
        return {"class": cause_class, "kind": kind, **({"namespace": namespace} if namespace else {}), "name": name}
    named = ", ".join("/".join(filter(None, entity)) for entity in entities[:_NAMED_MAX])
    hint = f" Named were {named}." if named else ""
    return {
        "class": cause_class,
        "kind": _blank("the kind of the one object that has to be changed; leave kind and name out for class nothing"),
        "name": _blank(f"its name; with a line namespace: if it has one.{hint}"),
    }


def _evidence(calls: Iterable[past_results.PastCall], analysis: str, alert: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the calls that an analysis refers to, each with the longest text that it quotes of the result.

    Without references all calls count, and without quotes each is marked to be filled in.
    """
    of_cluster = [call for call in calls if call.is_of_cluster]
    cited = [call for call in of_cluster if any(each in analysis for each in call.references)] or of_cluster
    quotes = {line.strip()[:200] for block in _CODE_BLOCK.finditer(analysis) for line in block[2].splitlines()}
    quotes |= {next(filter(None, match.groups())) for match in _QUOTED.finditer(analysis)}
    alert_json = json.dumps(alert, ensure_ascii=False)
    pieces: dict[str, dict[str, Any]] = {}
    for call in cited:
        own = [each for each in quotes if len(each) >= _QUOTE_MIN and each in call.result and each not in alert_json]
        quote = max(own, key=lambda each: (len(each), each), default="")
        piece = {
            "shows": quote or _blank("what this call shows, for reports; or delete the piece"),
            "tool": call.tool,
            "arguments": dict(call.arguments),
            "matches": re.escape(quote).replace("\\ ", " ")
            if quote
            else _blank("a regular expression that matches the call's result, and not the alert"),
        }
        pieces.setdefault(json.dumps([call.tool, piece["arguments"]], sort_keys=True), piece)
    quoted = [piece for piece in pieces.values() if not piece["matches"].startswith(scenarios.BLANK)]
    return (quoted or list(pieces.values()))[:_EVIDENCE_MAX]
