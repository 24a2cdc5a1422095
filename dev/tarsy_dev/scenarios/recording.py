"""Recording: what the API server says of all objects and logs, written as a world of `tarsy.evaluation.worlds`."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from tarsy.evaluation import worlds

from tarsy_dev.scenarios import cluster

_GROUPS = (
    *("", "apps", "autoscaling", "batch", "discovery.k8s.io", "events.k8s.io", "networking.k8s.io", "policy"),
    *("rbac.authorization.k8s.io", "scheduling.k8s.io", "storage.k8s.io"),
)
_NOISE = {"componentstatuses", "podtemplates", "controllerrevisions", "csistoragecapacities", "volumeattributesclasses"}
_COLUMN = ("name", "type", "format", "priority")


def record(api: cluster.Cluster, folder: Path, *, now: datetime) -> None:
    """Write the world of a cluster into `folder`, in the place of an earlier one."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / worlds.OBJECTS).mkdir(parents=True)
    recorded, pods = [], []
    for kind in kinds(api):
        table = api.table(f"{'/api' if not kind.group else '/apis'}/{kind.api_version}/{kind.resource}")
        columns = [{name: column[name] for name in _COLUMN} for column in table["columnDefinitions"]]
        recorded.append(kind.model_copy(update={"columns": columns}))
        rows = [
            {"cells": row["cells"], "object": _plain(row["object"])}
            for row in table.get("rows") or ()
            if not is_noise(row["object"])
        ]
        if rows:
            text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False, indent=1) for row in rows) + "\n]\n"
            (folder / worlds.OBJECTS / kind.file).write_text(text, encoding="utf-8")
        if kind.resource == "pods":
            pods = [row["object"] for row in rows]
    for pod in pods:
        _record_logs(api, pod, folder / worlds.LOGS)
    version = {
        name: value
        for name, value in api.get("/version").items()
        if name in ("major", "minor", "gitVersion", "goVersion", "compiler", "platform")
    }
    index = worlds.Index(recorded_at=now, version=version, kinds=recorded)
    text = json.dumps({"recorded_at": f"{now:%Y-%m-%dT%H:%M:%SZ}", "version": version}, indent=1)[:-2]
    listed = ",\n".join(f"  {kind.model_dump_json()}" for kind in index.kinds)
    (folder / worlds.INDEX).write_text(f'{text},\n "kinds": [\n{listed}\n ]\n}}\n', encoding="utf-8")


def kinds(api: cluster.Cluster) -> list[worlds.Kind]:
    """Return the kinds that are recorded, of all versions of the API server."""
    return [
        worlds.Kind(
            group=group["metadata"].get("name", ""),
            version=version["version"],
            resource=resource["resource"],
            kind=resource["responseKind"]["kind"],
            singular=resource.get("singularResource", ""),
            short_names=tuple(resource.get("shortNames", ())),
            namespaced=resource["scope"] == "Namespaced",
        )
        for path in ("/api", "/apis")
        for group in api.discovery(path)["items"]
        if group["metadata"].get("name", "") in _GROUPS
        for version in group["versions"]
        for resource in version["resources"]
        if {"get", "list"} <= set(resource["verbs"]) and resource["resource"] not in _NOISE
    ]


def is_noise(listed: dict[str, Any]) -> bool:
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


def _plain(listed: dict[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in listed["metadata"].items() if name != "managedFields"}
    annotations = dict(metadata.get("annotations") or {})
    if annotations.pop("kubectl.kubernetes.io/last-applied-configuration", None) is not None:
        metadata["annotations"] = annotations
        if not annotations:
            del metadata["annotations"]
    return {"apiVersion": listed["apiVersion"], "kind": listed["kind"], **listed, "metadata": metadata}


def _record_logs(api: cluster.Cluster, pod: dict[str, Any], folder: Path) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        for is_previous in (False, True):
            query = f"container={container['name']}&previous={str(is_previous).lower()}"
            status, body = api.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}/log?{query}", errors=True)
            path = folder / namespace / name / f"{container['name']}{'.previous' * is_previous}"
            path.parent.mkdir(parents=True, exist_ok=True)
            suffix = ".log" if status < 400 else ".error"
            path.with_name(path.name + suffix).write_text(body, encoding="utf-8")
