"""Recording: what an API server says of all objects and logs, masked, as a world.

Nothing that this module returns has the value of a Secret. TARSy's own objects are left out: they have the analyses of
investigations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib import parse

from tarsy.evaluation import worlds

Read = Callable[[str, str], tuple[int, str]]
"""Returns the status and the body of a GET of a path, with this header Accept."""
Mask = Callable[[str], str]

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
LOG_LINES = 10_000
"""The last lines of a log that are recorded."""
_PAGE = 500
_INVISIBLE = {"tarsy.dev", "internal.apiserver.k8s.io", "flowcontrol.apiserver.k8s.io"}
"""Groups that a world does not have: TARSy's own, and those of the API server's inner life."""
_LEFT_OUT = {"apiextensions.k8s.io", "apiregistration.k8s.io", "coordination.k8s.io", "storagemigration.k8s.io"}
"""Groups whose objects are many, or change all the time, and say little of a fault."""
_NOISE = {"componentstatuses", "podtemplates", "controllerrevisions", "csistoragecapacities", "volumeattributesclasses"}
_COLUMN = ("name", "type", "format", "priority")
_MASKED = "[MASKED:"


class RecordingError(Exception):
    """The cluster cannot be recorded; the message says why."""


def record(read: Read, *, now: datetime, namespaces: Collection[str] | None, mask: Mask | None) -> worlds.World:
    """Return the world of a cluster: all kinds without a namespace, and these namespaces; None for all.

    Kinds that `read` may not list are in it as left out. `mask` is None for a cluster whose secrets are made up. Raises
    RecordingError.
    """
    kinds, rows = [], {}
    for kind in recorded_kinds(read):
        listed = None if kind.group in _LEFT_OUT else _listed(read, kind, namespaces if kind.namespaced else None)
        if listed is None:
            kinds.append(kind.model_copy(update={"is_recorded": False}))
            continue
        columns, of_kind = listed
        kinds.append(kind.model_copy(update={"columns": columns}))
        if own := [row for row in of_kind if not is_noise(row.object)]:
            rows[kind.group, kind.version, kind.resource] = [masked(row, mask) if mask else row for row in own]
    if namespaces is None:
        left_out = []
    else:
        left_out = [row.metadata["name"] for row in rows.get(("", "v1", "namespaces"), ())
                    if row.metadata["name"] not in namespaces]  # fmt: skip
    version = {
        name: value
        for name, value in _json(read, "/version").items()
        if name in ("major", "minor", "gitVersion", "goVersion", "compiler", "platform")
    }
    index = worlds.Index(recorded_at=now, version=version, kinds=kinds, left_out=tuple(left_out))
    logs = {key: log for pod in rows.get(("", "v1", "pods"), ()) for key, log in _logs(read, pod.object, mask)}
    return worlds.World(index=index, rows=rows, logs=logs, shift=now - now)


def recorded_kinds(read: Read) -> list[worlds.Kind]:
    """Return the kinds of the API server that can be listed, in all versions, without their columns."""
    return [
        worlds.Kind(
            group=name,
            version=version["version"],
            resource=resource["resource"],
            kind=resource["responseKind"]["kind"],
            singular=resource.get("singularResource", ""),
            short_names=tuple(resource.get("shortNames", ())),
            namespaced=resource["scope"] == "Namespaced",
        )
        for path in ("/api", "/apis")
        for group in _json(read, path, DISCOVERY)["items"]
        if (name := (group.get("metadata") or {}).get("name", "")) not in _INVISIBLE
        for version in group["versions"]
        for resource in version.get("resources", ())
        if {"get", "list"} <= set(resource["verbs"]) and resource["resource"] not in _NOISE
    ]


def is_noise(listed: Mapping[str, Any]) -> bool:
    """Return whether an object is one that every cluster has, and that says nothing of this one."""
    metadata = listed["metadata"]
    labels = metadata.get("labels") or {}
    return (
        "kubernetes.io/bootstrapping" in labels
        or metadata["name"].startswith("system:")
        or metadata["name"]
        in ("extension-apiserver-authentication", "kube-apiserver-legacy-service-account-token-tracking")
        or (listed["kind"] == "ServiceAccount" and metadata["name"].endswith("-controller"))
        or metadata.get("namespace") == "kube-node-lease"
    )


def masked(row: worlds.Row, mask: Mask) -> worlds.Row:
    """Return a row without secrets. One that cannot be masked in time keeps the names of its object alone."""
    names = [row.object["apiVersion"], row.object["kind"], row.metadata["name"]]
    try:
        content = json.loads(mask(json.dumps(row.object, ensure_ascii=False)))
        cells = json.loads(mask(json.dumps(row.cells, ensure_ascii=False)))
        is_whole = [content["apiVersion"], content["kind"], content["metadata"]["name"]] == names
    except (ValueError, LookupError, TypeError):
        is_whole = False
    if not is_whole or len(cells) != len(row.cells):
        metadata = {name: row.metadata[name] for name in ("name", "namespace") if name in row.metadata}
        content = {"apiVersion": names[0], "kind": names[1], "metadata": metadata}
        return worlds.Row(cells=names[2:], object=content, is_only_listed=True)
    if names[:2] == ["v1", "Secret"]:
        for field in ("data", "stringData"):
            for key, value in (content.get(field) or {}).items():
                if value and not str(value).startswith(_MASKED):
                    content[field][key] = f"{_MASKED}secret]"
    return row.model_copy(update={"object": content, "cells": cells})


def plain(listed: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object without what only repeats the rest of it."""
    metadata = {name: value for name, value in listed["metadata"].items() if name != "managedFields"}
    annotations = dict(metadata.get("annotations") or {})
    if annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None) is not None:
        metadata["annotations"] = annotations
        if not annotations:
            del metadata["annotations"]
    return {**listed, "metadata": metadata}


def _json(read: Read, path: str, accept: str = JSON) -> Any:
    status, body = read(path, accept)
    if status >= 400:
        raise RecordingError(f"the API server refuses {path} with {status}: {_message(body)}")
    return json.loads(body)


def _message(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, LookupError, TypeError):
        return body[:200]


_Listed = tuple[list[dict[str, Any]], list[worlds.Row]]


def _listed(read: Read, kind: worlds.Kind, namespaces: Collection[str] | None) -> _Listed | None:
    """Return the columns and the rows of a kind; None if the API server has none or refuses to list them."""
    base = f"{'/apis' if kind.group else '/api'}/{kind.api_version}"
    paths = [base] if namespaces is None else [f"{base}/namespaces/{parse.quote(each)}" for each in sorted(namespaces)]
    columns: list[dict[str, Any]] = []
    rows: list[worlds.Row] = []
    for path in paths:
        following = ""
        while True:
            query = f"includeObject=Object&limit={_PAGE}{following and f'&continue={parse.quote(following)}'}"
            status, body = read(f"{path}/{kind.resource}?{query}", TABLE)
            if status >= 400:
                return None
            table = json.loads(body)
            columns, listed = _table(kind, table)
            rows += listed
            following = (table.get("metadata") or {}).get("continue") or ""
            if not following:
                break
    return columns, rows


def _table(kind: worlds.Kind, table: Mapping[str, Any]) -> _Listed:
    """Return the columns and rows of a table, or of a list by an API server that has no tables."""
    if table.get("kind") == "Table":
        columns = [{name: column[name] for name in _COLUMN} for column in table["columnDefinitions"]]
        pairs = [(row["cells"], row["object"]) for row in table.get("rows") or ()]
    else:
        columns = [{"name": "Name", "type": "string", "format": "name", "priority": 0}]
        pairs = [([each["metadata"]["name"]], each) for each in table.get("items") or ()]
    typed = {"apiVersion": kind.api_version, "kind": kind.kind}
    return columns, [worlds.Row(cells=cells, object=plain({**typed, **listed})) for cells, listed in pairs]


def _logs(read: Read, pod: Mapping[str, Any], mask: Mask | None) -> Iterator[tuple[worlds.LogKey, worlds.Log]]:
    """Yield the logs of a pod's containers, of this life and of the previous one."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    spec: Mapping[str, Sequence[Mapping[str, Any]]] = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for is_previous in (False, True):
            query = f"container={container['name']}&previous={str(is_previous).lower()}&tailLines={LOG_LINES}"
            status, body = read(f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}", "*/*")
            error = None
            if status >= 400:
                try:
                    error = json.loads(body)
                except ValueError:
                    continue  # a proxy's answer: to ask for this log is a miss
            text = mask(body) if mask else body
            yield (namespace, name, container["name"], is_previous), worlds.Log(text=text, error=error)
