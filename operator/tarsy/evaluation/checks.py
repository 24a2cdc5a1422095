"""Checks of a scenario: what its world lacks, and whether an alert alone gives the answer away."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from tarsy.evaluation import scenarios, verdicts, worlds
from tarsy.resources import files

Call = Callable[[str, Mapping[str, Any]], Awaitable[str]]
"""Calls a tool of the world's MCP server, with these arguments; returns the result as an agent gets it."""
_LABELLED = {"namespace": "Namespace", "pod": "Pod", "deployment": "Deployment", "node": "Node", "job_name": "Job"}
"""Labels of alerts, and the kind of the object that they name."""
_NAMES_MAX = 8


def alert_json(scenario: scenarios.Scenario, *, now: datetime | None = None) -> dict[str, Any]:
    """Return the alert, as Alertmanager sends it at `now`."""
    alert = scenario.document.alert
    started = (now or datetime.now(UTC)) - alert.firing_for
    return {
        "status": "firing",
        "labels": alert.labels,
        "annotations": alert.annotations,
        "startsAt": f"{started:%Y-%m-%dT%H:%M:%S.000Z}",
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": "",
    }


def static_problems(scenario: scenarios.Scenario, world: worlds.World) -> Iterator[files.Problem]:
    """Yield what can be found without a tool."""
    document, path = scenario.document, str(scenario.folder / scenarios.FILE)

    def problem(message: str) -> files.Problem:
        return files.Problem(file=path, line=0, message=message)

    objects = world.objects()
    cause = document.cause
    if cause.cause_class != "nothing" and not _exists(objects, cause.kind, cause.namespace, cause.name):
        yield problem(f"cause: {_missing(objects, cause.kind, cause.namespace, cause.name)}")
    alert = json.dumps(alert_json(scenario), ensure_ascii=False)
    if cause.cause_class != "nothing" and verdicts.judge(alert, cause, objects).is_right:
        words = "the alert alone names the entity and the class, so it is solved without a tool: word the alert as a"
        yield problem(f"alert: {words} rule would, which knows symptoms only")
    for index, evidence in enumerate(document.evidence):
        if verdicts.matches(evidence.matches, alert):
            yield problem(f"evidence.{index}.matches: the alert matches it, so no tool has to be called: be stricter")
    namespace = document.alert.labels.get("namespace", "")
    for label, kind in _LABELLED.items():
        name = document.alert.labels.get(label, "")
        within = "" if kind in ("Namespace", "Node") else namespace
        if name and not _exists(objects, kind, within, name):
            yield problem(f"alert.labels.{label}: {_missing(objects, kind, within, name)}")
    readable = alert + "".join(str(each["metadata"]) for each in objects)
    if re.search(rf"(?<![a-z0-9]){re.escape(scenario.name)}(?![a-z0-9])", readable):
        yield problem(f"the alert or an object has the scenario's name, {scenario.name}: rename its directory")
    everything = json.dumps(objects, ensure_ascii=False) + "".join(log.text for log in world.logs.values())
    for index, secret in enumerate(document.secrets):
        if not has_secret(everything, secret):
            yield problem(f"secrets.{index}: no object and no log of the world has this value: correct it")
    if not world.index.is_of_past:
        yield from (problem(message) for message in _lacking_logs(world))


def _exists(objects: Iterable[Mapping[str, Any]], kind: str, namespace: str, name: str) -> bool:
    return any(
        each["kind"] == kind and each["metadata"].get("namespace", "") == namespace and each["metadata"]["name"] == name
        for each in objects
    )


def _missing(objects: Iterable[Mapping[str, Any]], kind: str, namespace: str, name: str) -> str:
    named = sorted({each["metadata"]["name"] for each in objects
                    if each["kind"] == kind and each["metadata"].get("namespace", "") == namespace})  # fmt: skip
    more = f" and {len(named) - _NAMES_MAX} more" if len(named) > _NAMES_MAX else ""
    where = f" in namespace {namespace}" if namespace else ""
    return f"the world has no {kind} {name}{where}. Available: {', '.join(named[:_NAMES_MAX]) or 'none'}{more}"


def has_secret(text: str, secret: str) -> bool:
    """Return whether a text has a secret, in clear or as Secrets hold it."""
    return secret in text or base64.b64encode(secret.encode()).decode() in text


def _lacking_logs(world: worlds.World) -> Iterator[str]:
    for pod in world.objects():
        if pod["kind"] != "Pod" or "spec" not in pod:
            continue
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
            for is_previous in (False, True):
                if (namespace, name, container["name"], is_previous) not in world.logs:
                    which = f"the {'previous ' * is_previous}log of container {container['name']}"
                    yield f"world: {which} of pod {namespace}/{name} was not recorded: to ask for it is a miss"


def resolved(arguments: Mapping[str, Any], world: worlds.World) -> dict[str, Any]:
    """Return the arguments of a call, with the first object's name for one that ends in `*`.

    Names that a controller makes differ from recording to recording.
    """
    name = str(arguments.get("name", ""))
    if not name.endswith("*"):
        return dict(arguments)
    kind = arguments.get("kind", "Pod")
    namespace = arguments.get("namespace", "")
    named = sorted(
        each["metadata"]["name"]
        for each in world.objects()
        if each["kind"] == kind
        and each["metadata"].get("namespace", "") == namespace
        and each["metadata"]["name"].startswith(name[:-1])
    )
    return {**arguments, "name": named[0] if named else name}


async def tool_problems(scenario: scenarios.Scenario, world: worlds.World, call: Call) -> list[files.Problem]:
    """Return what the calls of the evidence do not show, and what they show of secrets."""
    problems = []
    for index, evidence in enumerate(scenario.document.evidence):
        arguments = resolved(evidence.arguments, world)
        result = await call(evidence.tool, arguments)
        call_text = f"evidence.{index}: {evidence.tool} {json.dumps(arguments)}"
        if not verdicts.matches(evidence.matches, result):
            begin = " ".join(result.split())[:200] or "nothing"
            problems.append(f"{call_text}: its result does not match {evidence.matches!r}. It begins: {begin}")
        problems += [
            f"secrets.{number}: {call_text} shows it: mask it in the platform file, or take it out of the world"
            for number, secret in enumerate(scenario.document.secrets)
            if has_secret(result, secret)
        ]
    path = str(scenario.folder / scenarios.FILE)
    return [files.Problem(file=path, line=0, message=message) for message in problems]
