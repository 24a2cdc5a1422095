"""Recorded worlds after a while: what changes by itself, what a tool says of it, and changes that mean something.

`texts` are the texts of kubernetes-mcp-server, made here, because a property needs thousands of them; a test holds them
to those of the real program.
"""

from __future__ import annotations

import copy
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from tarsy.engine import reading_tools
from tarsy.engine.comparison import results
from tarsy.evaluation import worlds

THEN = datetime(2026, 11, 26, 16, tzinfo=UTC)
SYSTEM = ("kube-system", "kube-public", "kube-node-lease", "default")
"""Namespaces of which an agent reads lists of pods alone."""
CONTROLLED = ("ReplicaSet", "DaemonSet")
EVENTS = "# The following events (YAML format) were found:"
LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_AGES = ("Age", "Last Seen", "First Seen", "Last Schedule")
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True)
class Read:
    """A call of a reading tool."""

    tool: str
    arguments: tuple[tuple[str, str], ...]

    @property
    def form(self) -> results.Form:
        return reading_tools.READING_TOOLS[self.tool].form


def _read(tool: str, **arguments: str) -> Read:
    return Read(tool, tuple((name, value) for name, value in arguments.items() if value))


Texts: TypeAlias = dict[Read, str]


def lists(world: worlds.World) -> Texts:
    """All lists that an agent may read, and what they say."""
    texts = {}
    for kind in world.index.kinds:
        rows = world.rows.get((kind.group, kind.version, kind.resource), ())
        columns = [column["name"] for column in kind.columns]
        if kind.kind == "Pod":
            texts[_read("pods_list")] = _table(kind, columns, rows)
        for namespace in sorted({row.metadata.get("namespace", "") for row in rows}.difference(SYSTEM)):
            here = [row for row in rows if row.metadata.get("namespace", "") == namespace]
            call = _read("resources_list", apiVersion=kind.api_version, kind=kind.kind, namespace=namespace)
            texts[call] = _table(kind, columns, here)
            if (kind.group, kind.kind) == ("", "Event"):
                texts[_read("events_list", namespace=namespace)] = _events(here)
    return texts


def objects(world: worlds.World) -> Texts:
    """All objects and logs that an agent may read, and what they say."""
    texts = {}
    for document in world.objects():
        namespace, kind = document["metadata"].get("namespace", ""), document["kind"]
        if namespace not in SYSTEM and kind not in ("Event", "Secret"):
            named = {"name": document["metadata"]["name"], "namespace": namespace}
            texts[_read("resources_get", apiVersion=document["apiVersion"], kind=kind, **named)] = dumped(document)
    for (namespace, pod, container, is_previous), log in world.logs.items():
        if log.error is None:
            previous = "true" if is_previous else ""
            call = _read("pods_log", name=pod, namespace=namespace, container=container, previous=previous)
            texts[call] = log.text
    return texts


def _table(kind: worlds.Kind, columns: Sequence[str], rows: Sequence[worlds.Row]) -> str:
    header = [*(["NAMESPACE"] if kind.namespaced else []), "APIVERSION", "KIND", *map(str.upper, columns), "LABELS"]
    lines = [header]
    for row in rows:
        labels = ",".join(f"{name}={value}" for name, value in sorted((row.metadata.get("labels") or {}).items()))
        namespace_cell = [row.metadata["namespace"]] if kind.namespaced else []
        lines.append([*namespace_cell, kind.api_version, kind.kind, *map(_cell, row.cells), labels or "<none>"])
    return as_table(lines)


def _cell(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_table(lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cells."""
    widths = [max(map(len, cells)) + 3 for cells in zip(*lines, strict=False)]
    return "".join(
        "".join(cell.ljust(width) for cell, width in zip(line, widths, strict=False)).rstrip() + "\n" for line in lines
    )


def rows_as_text(rows: Sequence[Mapping[str, str]]) -> str:
    return as_table([list(rows[0]), *(list(row.values()) for row in rows)])


def dumped(document: object) -> str:
    return str(yaml.dump(document, Dumper=_Dumper))


def compared(form: results.Form, former: str, now: str) -> list[str]:
    """The differences of one result."""
    return results.differences([results.Reread(form=form, former=former, now=now, has_fingerprints=False)])[0]


def _events(rows: Sequence[worlds.Row]) -> str:
    events = [
        {
            "InvolvedObject": {
                "Kind": event["involvedObject"]["kind"],
                "Name": event["involvedObject"]["name"],
                "apiVersion": event["involvedObject"].get("apiVersion", ""),
            },
            "Message": event["message"],
            "Namespace": event["metadata"]["namespace"],
            "Reason": event["reason"],
            "Timestamp": f"{datetime.fromisoformat(at):%Y-%m-%d %H:%M:%S} +0000 UTC",
            "Type": event["type"],
        }
        for event in (row.object for row in rows)
        for at in [event.get("lastTimestamp") or event["eventTime"]]
    ]
    return f"{EVENTS}\n{dumped(events)}"


def edited(world: worlds.World, change: Callable[[str], str]) -> worlds.World:
    """The world with a change of all its texts."""
    rows = {
        key: [worlds.Row.model_validate_json(change(row.model_dump_json())) for row in members]
        for key, members in world.rows.items()
    }
    logs = {
        (namespace, change(pod), container, is_previous): replace(log, text=change(log.text))
        for (namespace, pod, container, is_previous), log in world.logs.items()
    }
    return replace(world, rows=rows, logs=logs)


def column_names(world: worlds.World, key: tuple[str, str, str]) -> list[str]:
    kinds = {(kind.group, kind.version, kind.resource): kind for kind in world.index.kinds}
    return [column["name"] for column in kinds[key].columns]


def later(folder: Path, *, minutes: int, chance: random.Random) -> worlds.World:
    """The world after a time in which nothing has happened but what happens by itself."""
    former = worlds.load(folder, now=THEN)
    world = worlds.load(folder, now=THEN + timedelta(minutes=minutes))
    rows = {
        key: [
            moved
            for row, earlier in zip(members, former.rows[key], strict=True)
            if (moved := _later(row, earlier, column_names(world, key), minutes=minutes, chance=chance)) is not None
        ]
        for key, members in world.rows.items()
    }
    logs = {key: replace(log, text=_longer(former.logs[key].text, log.text)) for key, log in world.logs.items()}
    return replace(world, rows=rows, logs=logs)


def _longer(former: str, now: str) -> str:
    """The lines of then, and once more with the later time before each."""
    if not former.endswith("\n"):
        return former
    pairs = zip(former.splitlines(keepends=True), now.splitlines(keepends=True), strict=True)
    return former + "".join(after[:20] + before[20:] for before, after in pairs)


def _later(
    row: worlds.Row, earlier: worlds.Row, names: Sequence[str], *, minutes: int, chance: random.Random
) -> worlds.Row | None:
    document = copy.deepcopy(row.object)
    for key in ("deletionTimestamp", "annotations"):
        if key in document["metadata"]:
            document["metadata"][key] = earlier.object["metadata"][key]
    document["metadata"]["resourceVersion"] = str(chance.randrange(1, 10**9))
    name = row.metadata["name"]
    match document["kind"]:
        case "Node":
            document["spec"] = earlier.object["spec"]
        case "Event" if document["type"] == "Normal" and chance.random() < 0.3:
            return None
        case "Event":
            name = f"{name.rpartition('.')[0]}.{chance.randrange(16**15, 16**16):x}"
            document["metadata"] |= {"name": name, "uid": uid(chance)}
            document |= {
                count: document[count] + minutes for count in ("count", "deprecatedCount") if count in document
            }
        case "Pod":
            _restart(document, minutes=minutes, chance=chance)
    cells = [name if cell == row.metadata["name"] else cell for cell in row.cells]
    for index, column in enumerate(names):
        if column in _AGES and cells[index] not in ("<unknown>", "<none>"):
            cells[index] = f"{minutes}m"
        if column == "Restarts" and cells[index] != "0":
            cells[index] = f"{int(str(cells[index]).split()[0]) + minutes} ({minutes}s ago)"
        if column == "Count":
            cells[index] += minutes
    return row.model_copy(update={"cells": cells, "object": document})


def _restart(pod: dict[str, Any], *, minutes: int, chance: random.Random) -> None:
    """Restart the containers that have been restarted before."""
    for status in (*pod["status"].get("containerStatuses", ()), *pod["status"].get("initContainerStatuses", ())):
        if status["restartCount"]:
            status["restartCount"] += minutes
            for state in (status, *status.get("state", {}).values(), *status.get("lastState", {}).values()):
                if "containerID" in state:
                    state["containerID"] = f"containerd://{chance.randrange(16**63, 16**64):x}"


def uid(chance: random.Random) -> str:
    text = f"{chance.randrange(16**31, 16**32):x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def replaced(world: worlds.World, chance: random.Random) -> worlds.World:
    """The world after its controllers have replaced their pods."""
    instead: dict[str, str] = {}
    addresses = Counter(pod["status"].get("podIP") for pod in world.objects() if pod["kind"] == "Pod")
    for pod in world.objects():
        owners = pod["metadata"].get("ownerReferences", ())
        if pod["kind"] == "Pod" and any(owner["kind"] in CONTROLLED for owner in owners):
            name = pod["metadata"]["name"]
            instead[name] = f"{name[:-5]}{''.join(chance.choices(LETTERS, k=5))}"
            instead[pod["metadata"]["uid"]] = uid(chance)
            if addresses[address := pod["status"].get("podIP")] == 1:  # the simulated nodes gave some of them twice
                instead[address] = f"10.99.{chance.randrange(256)}.{chance.randrange(2, 250)}"
            for volume in pod["spec"].get("volumes", ()):
                if volume["name"].startswith("kube-api-access-"):
                    instead[volume["name"]] = f"kube-api-access-{''.join(chance.choices(LETTERS, k=5))}"
    if not instead:
        return world
    token = re.compile(r"[0-9a-z](?:[0-9a-z.-]*[0-9a-z])?")
    return edited(world, lambda text: token.sub(lambda match: instead.get(match[0], match[0]), text))


def differences(then: Mapping[Read, str], now: Mapping[Read, str]) -> dict[Read, list[str]]:
    """Return the differences of the results that were read then; a list that is not there now is empty."""
    empty = {"events": "# No events found"}
    rereads = [
        results.Reread(form=read.form, former=text, now=now.get(read, empty.get(read.form, "")), has_fingerprints=False)
        for read, text in then.items()
    ]
    changed_lines = results.differences(rereads)
    return {read: lines for read, lines in zip(then, changed_lines, strict=True) if lines}
