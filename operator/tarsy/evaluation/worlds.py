"""Recorded worlds: the objects, events and logs of a cluster, and the answers of its API server to requests that read.

A world is behind the real kubernetes-mcp-server, which reads it as it reads a cluster. So the tools, their schemas and
the form of their results are the real ones, of any version, and every list, selector and log of the world has an
answer, not only what was asked while it was recorded. A tool server of our own would have had to imitate all of that.

    resources.json              kinds of the cluster: names, verbs, columns of their tables; the time of the recording
    objects/RESOURCE.VERSION[.GROUP].json    objects of a kind, each with the cells of its row
    logs/NAMESPACE/POD/CONTAINER[.previous].log      or .error: the API server's answer if there was no log

A world stands still at the time of its recording. Its times are moved to the present when it is opened, so that
an alert of five minutes ago is one of five minutes ago; AGE and the like are as they were recorded.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pydantic
from pydantic import ConfigDict

from tarsy.evaluation import selectors
from tarsy.resources import files

INDEX = "resources.json"
OBJECTS = "objects"
LOGS = "logs"
UNANSWERED = "the server is currently unable to handle the request (unanswered: {})"
"""The message of a miss. It tells a model nothing of a recording, and its marker is found in transcripts."""
MISS = re.compile(r"\(unanswered: ([^()\n]{1,500})\)")
_REVIEWS = ("authorization.k8s.io", "SelfSubjectAccessReview")
_REVIEW = {
    "resource": "selfsubjectaccessreviews",
    "responseKind": {"group": _REVIEWS[0], "version": "v1", "kind": _REVIEWS[1]},
    "scope": "Cluster",
    "singularResource": "selfsubjectaccessreview",
    "verbs": ["create"],
}
"""kubernetes-mcp-server asks whether it may list all namespaces, if the API server has this kind; else it does not."""
_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)")


class _Part(pydantic.BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kind(_Part):
    """One resource of one version of an API group."""

    group: str
    version: str
    resource: str
    """The plural, as in paths."""
    kind: str
    singular: str = ""
    short_names: tuple[str, ...] = ()
    namespaced: bool
    columns: list[dict[str, Any]] = []
    """The columns of its table, without descriptions."""
    is_recorded: bool = True
    """False for a kind of the cluster whose objects were left out: a request for them is a miss."""

    @property
    def file(self) -> str:
        """The name of the file of its objects."""
        return ".".join(filter(None, (self.resource, self.version, self.group))) + ".json"

    @property
    def api_version(self) -> str:
        """Such as `v1` and `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


class Index(_Part):
    """The content of `resources.json`."""

    recorded_at: pydantic.AwareDatetime
    version: dict[str, Any]
    """The API server's answer to `/version`."""
    kinds: list[Kind]
    left_out: tuple[str, ...] = ()
    """The namespaces of the cluster that were not recorded: a request in one of them is a miss."""
    is_of_past: bool = False
    """Recorded after the time that it shows, so what is gone by then is not in it."""


class Row(_Part):
    """An object, and the cells of its row in a table."""

    cells: list[Any]
    object: dict[str, Any]
    is_only_listed: bool = False
    """Of the object nothing is known but its row: to get it is a miss."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The object's metadata."""
        metadata: Mapping[str, Any] = self.object["metadata"]
        return metadata


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The API server's answer to one request."""

    status: int
    body: Any
    """JSON, or the text of a log."""
    is_miss: bool = False

    @property
    def content(self) -> tuple[str, bytes]:
        """Its content type and its bytes."""
        if isinstance(self.body, str):
            return "text/plain", self.body.encode()
        return "application/json", json.dumps(self.body, ensure_ascii=False).encode()


@dataclass(frozen=True, kw_only=True)
class Log:
    """The log of one life of a container, or the API server's answer if it has none."""

    text: str
    error: dict[str, Any] | None


LogKey = tuple[str, str, str, bool]
"""Namespace, pod, container, and whether it is the log of the container's previous life."""


@dataclass(frozen=True, kw_only=True)
class World:
    """A recorded world."""

    index: Index
    rows: Mapping[tuple[str, str, str], Sequence[Row]]
    """By group, version and resource; in the API server's order."""
    logs: Mapping[LogKey, Log]
    shift: timedelta
    """The seconds added to the times of the recording."""
    _kinds: dict[tuple[str, str, str], Kind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._kinds.update({(kind.group, kind.version, kind.resource): kind for kind in self.index.kinds})

    def objects(self) -> list[Mapping[str, Any]]:
        """Return all objects, those with several versions once for each."""
        return [row.object for rows in self.rows.values() for row in rows]

    def answer(self, path: str, query: Mapping[str, str], *, accept: str) -> Answer:
        """Return the answer to a GET of `path`."""
        if path == "/version":
            return Answer(status=200, body=self.index.version)
        if path in ("/api", "/apis"):
            return Answer(status=200, body=self._discovery(is_core=path == "/api"))
        steps = path.strip("/").split("/")
        group, version, rest = ("", steps[1], steps[2:]) if steps[0] == "api" else ("", "", [])
        if steps[0] == "apis" and len(steps) > 2:
            group, version, rest = steps[1], steps[2], steps[3:]
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = self._kinds.get((group, version, rest[0])) if rest else None
        if kind is None or not kind.is_recorded or namespace in self.index.left_out or "watch" in query:
            return _miss(path)
        match rest[1:]:
            case []:
                return self._list(kind, namespace, query, accept=accept)
            case [name]:
                return self._get(kind, namespace, name, accept=accept, path=path)
            case [name, "log"] if (group, kind.resource) == ("", "pods"):
                return self._log(kind, namespace, name, query)
        return _miss(path)

    def _discovery(self, *, is_core: bool) -> dict[str, Any]:
        """Return the aggregated discovery document, as `apidiscovery.k8s.io/v2`."""
        groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
        if not is_core:
            groups[_REVIEWS[0]] = {"v1": [_REVIEW]}
        for kind in self.index.kinds:
            if (not kind.group) is is_core:
                described = {
                    "resource": kind.resource,
                    "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
                    "scope": "Namespaced" if kind.namespaced else "Cluster",
                    "singularResource": kind.singular,
                    "verbs": ["get", "list"],
                    "shortNames": list(kind.short_names),
                }
                groups.setdefault(kind.group, {}).setdefault(kind.version, []).append(described)
        items = [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {"version": version, "resources": resources, "freshness": "Current"}
                    for version, resources in versions.items()
                ],
            }
            for group, versions in groups.items()
        ]
        return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}

    def _list(self, kind: Kind, namespace: str, query: Mapping[str, str], *, accept: str) -> Answer:
        try:
            has_labels = selectors.labels(query.get("labelSelector", ""))
            has_fields = selectors.fields(query.get("fieldSelector", ""), group=kind.group, resource=kind.resource)
        except selectors.SelectorError as error:
            return _failure(400, "BadRequest", str(error))
        rows = [
            row
            for row in self.rows.get((kind.group, kind.version, kind.resource), ())
            if (not namespace or row.metadata.get("namespace") == namespace)
            and has_labels(row.metadata.get("labels") or {})
            and has_fields(row.object)
        ]
        if "as=Table" in accept.replace(" ", ""):
            return Answer(status=200, body=_table(kind, rows))
        body = {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": "1"},
            "items": [row.object for row in rows],
        }
        return Answer(status=200, body=body)

    def _get(self, kind: Kind, namespace: str, name: str, *, accept: str, path: str) -> Answer:
        row = self._row(kind, namespace, name)
        if row is None:
            return _not_found(kind, name)
        if "as=Table" in accept.replace(" ", ""):
            return Answer(status=200, body=_table(kind, [row]))
        return _miss(path) if row.is_only_listed else Answer(status=200, body=row.object)

    def _row(self, kind: Kind, namespace: str, name: str) -> Row | None:
        for row in self.rows.get((kind.group, kind.version, kind.resource), ()):
            if row.metadata["name"] == name and row.metadata.get("namespace", "") == namespace:
                return row
        return None

    def _containers(self, pod: Row) -> tuple[list[str], list[str]]:
        """Return the names of a pod's containers and init containers; of one only listed, those that have a log."""
        if pod.is_only_listed:
            pod_key = (pod.metadata["namespace"], pod.metadata["name"])
            return sorted({key[2] for key in self.logs if key[:2] == pod_key}), []
        spec = pod.object["spec"]
        return [each["name"] for each in spec["containers"]], [
            each["name"] for each in spec.get("initContainers") or ()
        ]

    def _log(self, kind: Kind, namespace: str, name: str, query: Mapping[str, str]) -> Answer:
        row = self._row(kind, namespace, name)
        if row is None:
            return _not_found(kind, name)
        if unknown := query.keys() - {"container", "previous", "tailLines", "limitBytes", "follow"}:
            return _miss(f"/api/v1/namespaces/{namespace}/pods/{name}/log?{'&'.join(sorted(unknown))}")
        own, initial = self._containers(row)
        container = query.get("container", "")
        if not container:
            if len(own) > 1:
                suffix = f" or one of the init containers: [{' '.join(initial)}]" if initial else ""
                message = f"a container name must be specified for pod {name}, choose one of: [{' '.join(own)}]{suffix}"
                return _failure(400, "BadRequest", message)
            container = own[0] if own else ""
        elif container not in (*own, *initial) and not row.is_only_listed:
            return _failure(400, "BadRequest", f"container {container} is not valid for pod {name}")
        is_previous = query.get("previous", "").lower() in ("1", "true")
        log = self.logs.get((namespace, name, container, is_previous))
        if log is None:
            return _miss(f"the {'previous ' * is_previous}log of {namespace}/{name}, container {container}")
        if log.error is not None:
            return Answer(status=int(log.error["code"]), body=log.error)
        lines = log.text.splitlines(keepends=True)
        tail = query.get("tailLines", "")
        text = "".join(lines[max(0, len(lines) - int(tail)) :] if tail.isdecimal() else lines)
        limit = query.get("limitBytes", "")
        return Answer(status=200, body=text[: int(limit)] if limit.isdecimal() else text)


def _table(kind: Kind, rows: Sequence[Row]) -> dict[str, Any]:
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "1"},
        "columnDefinitions": kind.columns,
        "rows": [{"cells": row.cells, "object": {**partial, "metadata": row.metadata}} for row in rows],
    }


def _failure(status: int, reason: str, message: str, **details: Any) -> Answer:
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message}
    return Answer(status=status, body={**body, "reason": reason, **details, "code": status})


def _not_found(kind: Kind, name: str) -> Answer:
    resource = ".".join(filter(None, (kind.resource, kind.group)))
    message = f'{resource} "{name}" not found'
    return _failure(404, "NotFound", message, details={"name": name, "kind": kind.resource})


def _miss(request: str) -> Answer:
    missed = _failure(503, "ServiceUnavailable", UNANSWERED.format(request.replace("(", "").replace(")", "")[:500]))
    return Answer(status=503, body=missed.body, is_miss=True)


def load(folder: Path, *, now: datetime | None = None) -> World:
    """Return the world in `folder`, with its times moved to `now`; raises files.FileError."""
    index: Index = _read(folder / INDEX, Index)
    shift = (now or datetime.now(UTC)) - index.recorded_at
    shift -= timedelta(microseconds=shift.microseconds)
    rows = {}
    for kind in index.kinds:
        path = folder / OBJECTS / kind.file
        if path.exists():
            rows[kind.group, kind.version, kind.resource] = _read(path, _Rows, shift=shift).root
    return World(index=index, rows=rows, logs=_logs(folder / LOGS, shift=shift), shift=shift)


class _Rows(pydantic.RootModel[list[Row]]):
    pass


def _read(path: Path, model: Any, *, shift: timedelta | None = None) -> Any:
    text = _text(path)
    try:
        return model.model_validate_json(moved(text, shift) if shift else text)
    except pydantic.ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        message = f"{files.path_text(first['loc'])}: {first['msg']}: record the world again, or take the edit back"
        raise files.FileError([files.Problem(file=str(path), line=0, message=message)]) from error


def _logs(folder: Path, *, shift: timedelta) -> dict[LogKey, Log]:
    logs = {}
    for path in sorted(folder.glob("*/*/*")):
        kind = path.suffix
        container = path.name.removesuffix(kind)
        key = (path.parts[-3], path.parts[-2], container.removesuffix(".previous"), container.endswith(".previous"))
        text = moved(_text(path), shift)
        try:
            logs[key] = Log(text=text, error={**json.loads(text)} if kind == ".error" else None)
        except (ValueError, TypeError) as error:
            message = "not the API server's answer in JSON: record the world again, or take the edit back"
            raise files.FileError([files.Problem(file=str(path), line=0, message=message)]) from error
    return logs


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        message = f"cannot be read: {reason}: a world has to be recorded, see docs/evaluation.md"
        raise files.FileError([files.Problem(file=str(path), line=0, message=message)]) from error


def write(folder: Path, world: World) -> None:
    """Write a world into `folder`, in the place of an earlier one; its times are written as they are."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / OBJECTS).mkdir(parents=True)
    for kind in world.index.kinds:
        if rows := world.rows.get((kind.group, kind.version, kind.resource)):
            documents = (row.model_dump(exclude_defaults=True) for row in rows)
            text = "[\n" + ",\n".join(json.dumps(each, ensure_ascii=False, indent=1) for each in documents) + "\n]\n"
            (folder / OBJECTS / kind.file).write_text(text, encoding="utf-8")
    for (namespace, pod, container, is_previous), log in world.logs.items():
        name = f"{container}{'.previous' * is_previous}{'.log' if log.error is None else '.error'}"
        path = folder / LOGS / namespace / pod / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(log.text, encoding="utf-8")
    index = json.loads(world.index.model_dump_json(exclude_defaults=True))
    kinds = ",\n".join(f"  {json.dumps(kind, ensure_ascii=False)}" for kind in index.pop("kinds"))
    text = json.dumps(index, ensure_ascii=False, indent=1)[:-2]
    (folder / INDEX).write_text(f'{text},\n "kinds": [\n{kinds}\n ]\n}}\n', encoding="utf-8")


def moved(text: str, shift: timedelta) -> str:
    """Return `text` with every time in RFC 3339 form moved by `shift`, a whole number of seconds."""

    def move(match: re.Match[str]) -> str:
        try:
            at = datetime.fromisoformat(match[0].replace(match[1] or "", "", 1)) + shift
        except (ValueError, OverflowError):
            return match[0]
        zone = "Z" if match[0].endswith("Z") else match[0][-6:]
        return f"{at:%Y-%m-%dT%H:%M:%S}{match[1] or ''}{zone}"

    return _TIME.sub(move, text)
