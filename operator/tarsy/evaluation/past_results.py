"""A recorded world as it was: the results of a past investigation's calls, over what the cluster has now.

What an investigation saw wins over what the cluster says today, and what it saw and is gone comes back: pods that were
replaced, logs of their containers, events that expired. Objects that were created since are taken away. The results are
those of kubernetes-mcp-server; results of other servers, and what cannot be parsed, change nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import yaml

from tarsy.evaluation import recording, scenarios, worlds

_CELL = re.compile(r"\S+(?: \S+)*")
_EVENT_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(?:\.\d+)? \+0000 UTC")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Names of objects. Source: Kubernetes documentation, "Object Names and IDs", DNS subdomain names."""
_UNKNOWN = "<unknown>"
_LONG_AGO = "1970-01-01T00:00:00Z"
_CONTAINER = "main"
"""The container of a pod of which only a log is known."""

_Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True)
class PastCall:
    """A call of a past investigation that has a result."""

    tool: str
    """Without its server."""
    arguments: Mapping[str, Any]
    result: str
    """Whole, if it is still there; masked."""
    references: tuple[str, ...]
    """As analyses refer to it."""

    @property
    def is_of_cluster(self) -> bool:
        """Whether it is a call of a tool that a world has."""
        return self.tool in scenarios.TOOLS


def namespaces(calls: Iterable[PastCall]) -> set[str]:
    """Return the namespaces that calls name."""
    named = (str(call.arguments.get("namespace") or "") for call in calls if call.is_of_cluster)
    return {name for name in named if name}


def applied(
    world: worlds.World, calls: Iterable[PastCall], *, ended_at: datetime, mask: recording.Mask
) -> worlds.World:
    """Return the world as it was at `ended_at`, with the results of `calls`. `world` is the cluster as it is now."""
    past = _Past(world, ended_at, mask)
    for call in sorted(calls, key=lambda call: call.tool == "pods_log"):  # the containers of pods are known by then
        if call.is_of_cluster:
            past.add(call)
    index = world.index.model_copy(update={"recorded_at": ended_at, "is_of_past": True})
    rows = {key: list(own.values()) for key, own in past.rows.items() if own}
    return dataclasses.replace(world, index=index, rows=rows, logs=past.logs)


class _Past:
    """A world while results are added to it."""

    def __init__(self, world: worlds.World, ended_at: datetime, mask: recording.Mask) -> None:
        self._mask = mask
        self._kinds = {(kind.api_version, kind.kind): kind for kind in world.index.kinds if kind.is_recorded}
        self.rows: dict[_Key, dict[tuple[str, str], worlds.Row]] = {
            key: {
                _place(row.object): row
                for row in rows
                if datetime.fromisoformat(row.metadata.get("creationTimestamp") or _LONG_AGO) <= ended_at
            }
            for key, rows in world.rows.items()
        }
        self._pods = self.rows.setdefault(("", "v1", "pods"), {})
        self.logs = {key: log for key, log in world.logs.items() if key[:2] in self._pods}

    def add(self, call: PastCall) -> None:
        """Add what a result shows."""
        if call.tool == "pods_log":
            self._add_log(call)
        elif call.tool == "events_list":
            self._add_events(call.result)
        elif call.tool in ("pods_get", "resources_get"):
            result_object = _parsed(call.result)
            if isinstance(result_object, dict):
                self._add_object(result_object)
        else:
            for cells in _table(call.result):
                self._add_row(cells)

    def _add_object(self, parsed: dict[str, Any]) -> None:
        kind = self._kinds.get((str(parsed.get("apiVersion")), str(parsed.get("kind"))))
        if kind is None or not isinstance(parsed.get("metadata"), dict) or not parsed["metadata"].get("name"):
            return
        own = self.rows.setdefault((kind.group, kind.version, kind.resource), {})
        former = own.get(_place(parsed))
        if former is not None and kind.kind == "Secret":
            return  # what the cluster has may have fingerprints, which the result has not
        cells = former.cells if former else _cells(kind, {"NAME": parsed["metadata"]["name"]})
        row = worlds.Row(cells=cells, object=recording.plain(parsed))
        own[_place(parsed)] = recording.masked(row, self._mask)

    def _add_row(self, cells: Mapping[str, str]) -> None:
        """Add a row of a table: its cells are of that time."""
        kind = self._kinds.get((cells.get("APIVERSION", ""), cells.get("KIND", "")))
        if kind is None or not cells.get("NAME"):
            return
        metadata: dict[str, Any] = {"name": cells["NAME"]}
        if kind.namespaced:
            metadata["namespace"] = cells.get("NAMESPACE", "")
        if labels := dict(pair.split("=", 1) for pair in cells.get("LABELS", "").split(",") if "=" in pair):
            metadata["labels"] = labels
        listed = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        own = self.rows.setdefault((kind.group, kind.version, kind.resource), {})
        former = own.get(_place(listed))
        row = worlds.Row(
            cells=_cells(kind, cells, former.cells if former else ()),
            object=former.object if former else listed,
            is_only_listed=former.is_only_listed if former else True,
        )
        own[_place(listed)] = recording.masked(row, self._mask)

    def _add_log(self, call: PastCall) -> None:
        name, namespace = str(call.arguments.get("name") or ""), str(call.arguments.get("namespace") or "")
        if not call.result:
            return
        if not namespace:
            named = [pod_key for pod_key in self._pods if pod_key[1] == name]
            if len(named) != 1:
                return
            ((namespace, _),) = named
        pod = self._pods.get((namespace, name))
        spec = pod.object.get("spec") or {} if pod else {}
        containers = [each["name"] for each in spec.get("containers") or ()]
        container = str(call.arguments.get("container") or (containers[0] if len(containers) == 1 else _CONTAINER))
        key = (namespace, name, container, bool(call.arguments.get("previous")))
        kind = self._kinds.get(("v1", "Pod"))
        if kind is None or not all(map(_NAME.fullmatch, key[:3])):  # they become names of files, and a model wrote them
            return
        if pod is None:
            placeholder = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}}
            cells = _cells(kind, {"NAME": name})
            self._pods[namespace, name] = worlds.Row(cells=cells, object=placeholder, is_only_listed=True)
        now = self.logs.get(key)
        if now is not None and now.error is None and (at := now.text.rfind(call.result.strip("\n"))) >= 0:
            text = now.text[: at + len(call.result.strip("\n"))] + "\n"  # the log goes further back, and has gone on
        else:
            text = call.result.rstrip("\n") + "\n"
        self.logs[key] = worlds.Log(text=self._mask(text), error=None)

    def _add_events(self, result: str) -> None:
        kind = self._kinds.get(("v1", "Event"))
        events = _parsed(result)
        if kind is None or not isinstance(events, list):
            return
        own = self.rows.setdefault(("", "v1", "events"), {})
        keys = {_event_key(row.object) for row in own.values()}
        for each in events:
            event = _event(each) if isinstance(each, dict) else None
            if event is None or _event_key(event) in keys:
                continue
            keys.add(_event_key(event))
            involved = event["involvedObject"]
            cells = {
                "LAST SEEN": _UNKNOWN,
                "TYPE": event["type"],
                "REASON": event["reason"],
                "OBJECT": f"{involved['kind'].lower()}/{involved['name']}",
                "MESSAGE": event["message"],
                "NAME": event["metadata"]["name"],
            }
            row = worlds.Row(cells=_cells(kind, cells), object=event)
            own[_place(event)] = recording.masked(row, self._mask)


def _place(kubernetes_object: Mapping[str, Any]) -> tuple[str, str]:
    metadata = kubernetes_object["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _cells(kind: worlds.Kind, texts: Mapping[str, str], former: Iterable[Any] = ()) -> list[Any]:
    """Return the cells of a row: those of `texts`, by the upper-case names of columns, else the former ones."""
    names = [str(column["name"]).upper() for column in kind.columns] or ["NAME"]
    before = list(former) or [_UNKNOWN] * len(names)
    return [texts.get(name, cell) for name, cell in zip(names, before, strict=True)]


def _parsed(result: str) -> Any:
    """Return the content of a result in YAML, which may have a repetition in JSON below it; None if it is no YAML."""
    text, _, repeated = result.rstrip("\n").rpartition("\n\n")
    parsers: list[tuple[Callable[[str], Any], str]] = [(json.loads, repeated), (yaml.safe_load, text)]
    for parse, part in [*parsers, (yaml.safe_load, result)]:
        try:
            parsed = parse(part)
        except (ValueError, RecursionError, yaml.YAMLError):
            continue
        if isinstance(parsed, dict | list):
            return _plain_times(parsed)
    return None


def _plain_times(value: Any) -> Any:
    """Return YAML's content with times as texts, which they are in JSON."""
    if isinstance(value, dict):
        return {str(key): _plain_times(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain_times(each) for each in value]
    return f"{value:%Y-%m-%dT%H:%M:%SZ}" if isinstance(value, datetime) else value


def _table(result: str) -> Iterator[Mapping[str, str]]:
    """Yield the rows of a table, each by the names of its columns. The columns begin where their names do."""
    lines = result.splitlines()
    if not lines or "NAME" not in lines[0].split():
        return
    columns = [(match[0], match.start()) for match in _CELL.finditer(lines[0])]
    ends = [start for _, start in columns[1:]] + [None]
    for line in lines[1:]:
        if not line.strip() or line.startswith("{"):
            return
        yield {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}


def _event(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the object of an event of the tool events_list."""
    involved = fields.get("InvolvedObject")
    if not isinstance(involved, dict):
        return None
    texts = {name: str(fields.get(name) or "") for name in ("Namespace", "Reason", "Message", "Type", "Timestamp")}
    about = {"kind": str(involved.get("Kind") or ""), "name": str(involved.get("Name") or "")}
    digest = hashlib.sha256(json.dumps([about, texts], sort_keys=True).encode()).hexdigest()[:16]
    event: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{about['name']}.{digest}", "namespace": texts["Namespace"] or "default"},
        "involvedObject": {
            **about,
            "apiVersion": str(involved.get("apiVersion") or ""),
            "namespace": texts["Namespace"],
        },
        "reason": texts["Reason"],
        "message": texts["Message"],
        "type": texts["Type"],
    }
    if match := _EVENT_TIME.fullmatch(texts["Timestamp"]):
        at = f"{match[1]}T{match[2]}Z"
        event |= {"firstTimestamp": at, "lastTimestamp": at}
        event["metadata"]["creationTimestamp"] = at
    return event


def _event_key(event: Mapping[str, Any]) -> tuple[str, ...]:
    involved = event.get("involvedObject") or {}
    texts = (involved.get("kind"), involved.get("name"), event.get("reason"), event.get("message"))
    return tuple(str(text or "") for text in texts)
