"""Objects that an older API server schema has taken stay readable, and their statuses writable, under the newer one."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml
from support import manifests, queue, waiting
from tarsy.config.check import chain_index
from tarsy.config.load import loader
from tarsy.controller import chains, investigations
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import controlplane, tools

KINDS = sorted((tools.ROOT / "crds").glob("*.yaml"))


def without_rules_of_patterns(node: Any) -> Any:
    """A schema as it was before patterns had rules: a regular expression that takes more."""
    if isinstance(node, list):
        return [without_rules_of_patterns(child) for child in node]
    if not isinstance(node, dict):
        return node
    rules = json.dumps(node.get("x-kubernetes-validations", ""))
    if "is never closed" in rules:
        older = {"pattern": r"[.*?\[]"} if "server.tool" in rules else {}
        node = {key: value for key, value in node.items() if key != "x-kubernetes-validations"} | older
    return {key: without_rules_of_patterns(child) for key, child in node.items()}


@pytest.fixture
def plane(tmp_path: Path, programs: dict[str, Path]) -> Iterator[controlplane.ControlPlane]:
    """A control plane of the test's own, with the older kinds."""
    older = []
    for path in KINDS:
        older.append(tmp_path / path.name)
        older[-1].write_text(yaml.safe_dump(without_rules_of_patterns(yaml.safe_load(path.read_text()))))
    with controlplane.ControlPlane(folder=tmp_path / "plane", crds=older, audited=True) as running:
        yield running


async def test_stored_objects_with_refused_patterns_are_told_about_it_after_an_upgrade(
    plane: controlplane.ControlPlane,
    cluster: client.Cluster,
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(investigations, "CHAIN_GRACE", 0.0)
    denies = {"deny": ["pods_l*"]}
    stored = [
        manifests.chain(name="open", stages=[manifests.stage("look", tools=denies)]),
        manifests.chain("Good", name="good"),
        manifests.investigation("of-open"),
        manifests.investigation("narrowed", alertType="Good", mcp={"tools": denies}),
    ]
    apply = functools.partial(plane.kubectl, namespace=cluster.served.own)
    apply("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": stored}))
    for path in KINDS:
        apply("apply", "--server-side", "--force-conflicts", "-f", str(path))

    def is_refused() -> bool:
        new = manifests.chain("New", name="new", stages=[manifests.stage("look", tools=denies)])
        try:
            apply("create", "--dry-run=server", "-f", "-", input=json.dumps(new))
        except controlplane.KubectlError as error:
            return "is not server.tool" in str(error)
        return False

    await waiting.until(is_refused)
    plane.wait_for_kinds()

    platform = loader.platform_file(None)
    index = functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={})
    conditions = chains.Reconciler(cluster=cluster, database=database, index=index, owner=UUID(int=1))
    await conditions.reconcile(cluster.served.own)
    listed = json.loads(apply("get", "chains", "-o", "json"))
    ready_messages = {
        (chain["metadata"]["name"], condition["status"], condition["reason"]): condition["message"]
        for chain in listed["items"]
        for condition in chain["status"]["conditions"]
        if condition["type"] == "Ready"
    }
    words = "'pods_l*' is not server.tool: write 'kubernetes-server.pods_l*' or '*.pods_l*'"
    assert ready_messages.pop(("good", "True", "Ready")) == ""
    assert ready_messages.pop(("open", "False", "PatternInvalid")).startswith(f"spec.stages.0.tools.deny.0: {words}")

    admitting = investigations.Reconciler(cluster=cluster, database=database, index=index, mask=str, workers=1)
    reasons = {}
    for name in ("of-open", "narrowed"):
        uid = json.loads(apply("get", "inv", name, "-o", "json"))["metadata"]["uid"]
        await admitting.reconcile(investigations.Key(namespace=cluster.served.own, name=name, uid=uid))
        summary = await queue.summary(database, UUID(uid))
        reasons[name] = summary.reason, words in (summary.message or "")
    assert reasons == {"of-open": ("ChainNotReady", True), "narrowed": ("MCPSelectionInvalid", True)}
