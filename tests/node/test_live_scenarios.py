"""Scenarios on a real node: what their evidence shows of a recorded world, the same calls show of a live one."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
import yaml
from tarsy.config.model import platforms
from tarsy.evaluation import checks, scenarios, verdicts, world_platform
from tarsy.process import agent_tools
from tarsy_dev import tools
from tarsy_dev.node import machine

LIVE = sorted(path.parent for path in (tools.ROOT / "scenarios").glob("*/live.yaml"))
SECONDS = 180.0
"""The time for pods to fail, and for controllers to notice."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("folder", LIVE, ids=lambda folder: folder.name)
async def test_live_objects_show_the_evidence_of_their_scenario(
    node: machine.Machine, images: object, folder: Path
) -> None:
    scenario = scenarios.load(folder)
    manifests = str(folder / "live.yaml")
    command = str(tools.kubernetes_mcp_server())
    content = world_platform.for_world(None, kubeconfig=node.kubeconfig(), command=command)
    namespaces = namespaces_of(folder)
    # The workload that crashes for other tests has a namespace that a scenario has, too.
    node.kubectl("delete", "namespace", "--ignore-not-found", *namespaces)
    # Controllers that meet a namespace without its ServiceAccount try again later and later.
    for namespace in namespaces:
        node.create_namespace(namespace)
    node.kubectl("apply", "-f", manifests)
    try:
        async with agent_tools.calls_to(platforms.Platform.model_validate(content), scenarios.SERVER) as call:
            deadline = time.monotonic() + SECONDS
            lacking = list(scenario.document.evidence)
            while lacking:
                results = [await call(each.tool, named(node, each)) for each in lacking]
                assert not any(checks.has_secret(text, word) for text in results for word in scenario.document.secrets)
                lacking = [
                    each
                    for each, text in zip(lacking, results, strict=True)
                    if not verdicts.matches(each.matches, text)
                ]
                assert time.monotonic() < deadline, (lacking, results, state(node, scenario))
                await asyncio.sleep(1 if lacking else 0)  # a pod fails when it does
    finally:
        node.kubectl("delete", "-f", manifests, "--wait=false", "--ignore-not-found")


def namespaces_of(folder: Path) -> list[str]:
    """Return the namespaces that the live objects of a scenario bring."""
    documents = yaml.safe_load_all((folder / "live.yaml").read_text())
    return [document["metadata"]["name"] for document in documents if document["kind"] == "Namespace"]


def state(node: machine.Machine, scenario: scenarios.Scenario) -> str:
    """Return what is in the scenario's namespaces, for the message of a failure."""
    namespaces = {str(each.arguments.get("namespace", "default")) for each in scenario.document.evidence}
    return "\n".join(node.kubectl("get", "all,events", "-o", "wide", namespace=each) for each in sorted(namespaces))


def named(node: machine.Machine, evidence: scenarios.Evidence) -> dict[str, object]:
    """Return the arguments of a call, with the name of the first object whose name begins as it says."""
    name = str(evidence.arguments.get("name", ""))
    if not name.endswith("*"):
        return dict(evidence.arguments)
    kind, namespace = evidence.arguments.get("kind", "pods"), str(evidence.arguments["namespace"])
    listed = json.loads(node.kubectl("get", str(kind), "-o", "json", namespace=namespace))["items"]
    names = sorted(each["metadata"]["name"] for each in listed if each["metadata"]["name"].startswith(name[:-1]))
    return {**evidence.arguments, "name": names[0] if names else name}
