"""`python -m tarsy_dev.scenarios [NAME...]`: record the worlds of these scenarios, by default of all seeds."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from tarsy.evaluation import recording, worlds

from tarsy_dev import children, controlplane, tools
from tarsy_dev.scenarios import cluster, kubelets, seeds

SEEDS = tools.ROOT / "dev" / "scenarios"
SCENARIOS = tools.ROOT / "scenarios"
BASE = SEEDS / "base.yaml"
_QUIET = 2.5
"""Seconds without a change after which controllers are done; a seed may say more (`settle: 20`)."""
_CONTROLLERS = ("horizontal-pod-autoscaler-controller", "persistentvolume-binder-controller")
"""Controllers that a recording needs beside those of a control plane."""


def main() -> None:
    """Record, and print the name of each world."""
    parser = argparse.ArgumentParser(prog="python -m tarsy_dev.scenarios", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    for path in [SEEDS / f"{name}.yaml" for name in names] or sorted(SEEDS.glob("*.yaml")):
        if path != BASE:
            record(path, SCENARIOS / path.stem / "world")
            print(path.stem, flush=True)


def record(path: Path, folder: Path) -> None:
    """Make the world of a seed on a control plane of its own, and write it into `folder`."""
    seed = seeds.read(path, base=BASE)
    with (
        tempfile.TemporaryDirectory(prefix="tarsy-scenario-") as files,
        controlplane.ControlPlane(folder=Path(files), controllers=_CONTROLLERS) as plane,
    ):
        plane.kill("kwok")
        plane.kubectl("delete", "node", controlplane.NODE)
        pki = Path(files) / "pki"
        api = cluster.Cluster(url=plane.url, pki=pki, etcd=plane.etcd_url)
        (port,) = children.free_ports(1)
        now = datetime.now(UTC).replace(microsecond=0)
        nodes = kubelets.Kubelets(api, seed, now=now, port=port)
        nodes.add_nodes()
        with kubelets.serving(nodes, port=port, pki=pki):
            for manifest in (*seed.manifests, {"settle": True}):
                if "settle" in manifest:
                    _settle(api, nodes, seconds=_QUIET if manifest["settle"] is True else manifest["settle"])
                elif "delete" in manifest:
                    plane.kubectl("delete", *manifest["delete"].split(), "--wait=false")
                else:
                    owned = seeds.timed(_owned(plane, manifest), now)
                    plane.kubectl("apply", "-f", "-", input=yaml.safe_dump(owned))
            plane.kill("kube-controller-manager")
            plane.kill("kube-scheduler")
            _finish(api, seed, now)
            worlds.write(folder, recording.record(api.read, now=now, namespaces=None, mask=None))


def _owned(plane: controlplane.ControlPlane, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the uids of its owners."""
    for owner in manifest["metadata"].get("ownerReferences", ()):
        named = (owner["kind"], owner["name"], "-o=jsonpath={.metadata.uid}")
        owner["uid"] = plane.kubectl("get", *named, namespace=manifest["metadata"]["namespace"])
    return manifest


def _settle(api: cluster.Cluster, nodes: kubelets.Kubelets, *, seconds: float) -> None:
    """Wait until nothing changes any more."""
    watched = ("/api/v1/pods", "/apis/apps/v1/deployments", "/apis/discovery.k8s.io/v1/endpointslices",
               "/api/v1/resourcequotas", "/apis/batch/v1/jobs", "/apis/policy/v1/poddisruptionbudgets")  # fmt: skip
    versions: Callable[[], list[str]] = lambda: [  # noqa: E731
        each["metadata"]["resourceVersion"] for path in watched for each in api.get(path)["items"]
    ]
    last, since = versions(), time.monotonic()
    while time.monotonic() - since < seconds:
        time.sleep(0.2)
        has_written = nodes.report()
        current = versions()
        if has_written or current != last:
            last, since = current, time.monotonic()


def _finish(api: cluster.Cluster, seed: seeds.Seed, now: datetime) -> None:
    """Write statuses and events of the seed, then set the ages of all objects."""
    for status in seed.statuses:
        stored = api.get(status["path"])
        stored["status"] = seeds.timed(status["status"], now)
        api.put(f"{status['path']}/status", stored)
    _age_events(api, seed, now)
    for number, event in enumerate(seed.events):
        _post_event(api, event, number, now)
    for kind in recording.recorded_kinds(api.read):
        if kind.resource == "events":
            continue
        prefix = "/api" if not kind.group else "/apis"
        for stored in api.get(f"{prefix}/{kind.api_version}/{kind.resource}")["items"]:
            name = stored["metadata"]["name"]
            stored |= {"apiVersion": kind.api_version, "kind": kind.kind}
            if recording.is_noise(stored):
                continue
            prefixes = [each for each in seed.ages if f"{kind.kind}/{name}".startswith(each)]
            age = seed.ages[max(prefixes, key=len)] if prefixes else seed.age
            api.set_age(kind.resource, stored, now - seeds.duration(age))


def _age_events(api: cluster.Cluster, seed: seeds.Seed, now: datetime) -> None:
    """Take away the events that are gone at the recording, and give those that stay the ages of what they are about."""
    for event in api.get("/api/v1/events")["items"]:
        path = f"/api/v1/namespaces/{event['metadata']['namespace']}/events/{event['metadata']['name']}"
        involved = f"{event['involvedObject']['kind']}/{event['involvedObject']['name']}"
        prefixes = [each for each in seed.ages if involved.startswith(each)]
        age = seeds.duration(seed.ages[max(prefixes, key=len)] if prefixes else seed.age)
        if event["reason"] in seed.drop_events or (event["type"] == "Normal" and age > seeds.duration("1h")):
            api.request("DELETE", path)
            continue
        age = min(age, seeds.duration("55m"))
        stored = api.get(path)
        first = seeds.stamp(now - age)
        last = seeds.stamp(now - seeds.duration("40s")) if event["type"] == "Warning" else first
        count = max(1, int(age.total_seconds() // 180)) if event["type"] == "Warning" else 1
        for name, at in (("firstTimestamp", first), ("lastTimestamp", last)):
            if stored.get(name):
                stored[name] = at
        if stored.get("firstTimestamp"):
            stored["count"] = count
        if stored.get("eventTime"):
            stored["eventTime"] = f"{first[:-1]}.000000Z"
            if stored.get("series"):
                stored["series"] |= {"lastObservedTime": f"{last[:-1]}.000000Z"}
        stored |= {"apiVersion": "v1", "kind": "Event"}
        api.set_age("events", stored, now - age)


def _post_event(api: cluster.Cluster, event: dict[str, Any], number: int, now: datetime) -> None:
    """Create an event of the seed about the first object whose name begins as it says."""
    kind, _, begin = event["about"].partition("/")
    resource, version = _PLACES[kind]
    namespace = event.get("namespace", "")
    path = f"{version}/namespaces/{namespace}/{resource}" if namespace else f"{version}/{resource}"
    about = next(
        each
        for each in api.get(path)["items"]
        if each["metadata"]["name"].startswith(begin)
        and event.get("labels", {}).items() <= (each["metadata"].get("labels") or {}).items()
    )
    metadata = about["metadata"]
    first, last = (seeds.stamp(now - seeds.duration(event[name])) for name in ("first", "last"))
    component = event.get("from", "kubelet")
    source = {"component": component}
    if component == "kubelet" and kind == "Pod":
        source["host"] = about["spec"]["nodeName"]
    message = event["message"].replace("{pod}", metadata["name"]).replace("{uid}", metadata["uid"])
    involved = {"kind": kind, "name": metadata["name"], "uid": metadata["uid"], "apiVersion": version.split("/", 2)[-1]}
    if kind == "Pod" and "container" in event:
        involved["fieldPath"] = f"spec.containers{{{event['container']}}}"
    where = namespace or "default"
    suffix = f"{hash((metadata['name'], number)) & 0xFFFFFFFFFFFFFFF:016x}"
    api.post(
        f"/api/v1/namespaces/{where}/events",
        {
            "metadata": {"name": f"{metadata['name']}.{suffix}", "namespace": where},
            "involvedObject": involved | ({"namespace": namespace} if namespace else {}),
            "reason": event["reason"],
            "message": message,
            "type": event.get("type", "Warning"),
            "count": event.get("count", 1),
            "firstTimestamp": first,
            "lastTimestamp": last,
            "source": source,
            "reportingComponent": component,
            "reportingInstance": source.get("host", ""),
        },
    )


_PLACES = {
    "Pod": ("pods", "/api/v1"),
    "Node": ("nodes", "/api/v1"),
    "Deployment": ("deployments", "/apis/apps/v1"),
    "ReplicaSet": ("replicasets", "/apis/apps/v1"),
    "Job": ("jobs", "/apis/batch/v1"),
    "CronJob": ("cronjobs", "/apis/batch/v1"),
    "HorizontalPodAutoscaler": ("horizontalpodautoscalers", "/apis/autoscaling/v2"),
    "PersistentVolumeClaim": ("persistentvolumeclaims", "/api/v1"),
    "StatefulSet": ("statefulsets", "/apis/apps/v1"),
}


if __name__ == "__main__":
    main()
