"""`spec.mcp` of an investigation, as the API server and the controller take it."""

from __future__ import annotations

import functools
import json
from typing import Any
from uuid import UUID

import pytest
from support import manifests, queue
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, providers, server_transports
from tarsy.controller import investigations
from tarsy.kube import client, watch
from tarsy.store.base import databases
from tarsy_dev import controlplane

SERVERS = [{"name": "k8s", "tools": ["pods_*"]}, {"name": "prom"}]


@pytest.mark.parametrize(
    ("mcp", "refusal"),
    [
        ({"servers": SERVERS, "tools": {"deny": ["*.pods_log"]}, "nativeTools": {"google_search": False}}, ""),
        ({}, ""),
        ({"servers": []}, ""),
        ({"servers": [{"name": "k8s"}, {"name": "k8s"}]}, "spec.mcp.servers[1]: Duplicate value"),
        ({"servers": [{"name": "k8s", "tools": []}]}, "spec.mcp.servers[0].tools: Invalid value"),
        ({"servers": [{"name": str(number)} for number in range(21)]}, "spec.mcp.servers: Too many: 21"),
        ({"tools": {"allow": ["pods_list"]}}, "spec.mcp.tools.allow[0]: Invalid value"),
        ({"nativeTools": {"browser": False}}, "a native tool is one of google_search, code_execution, url_context"),
        ({"server": []}, 'unknown field "spec.mcp.server"'),
    ],
)
def test_the_api_server_takes_a_selection_that_makes_sense(
    plane: controlplane.Administrator, namespace: str, mcp: dict[str, Any], refusal: str
) -> None:
    made = json.dumps(manifests.investigation(mcp=mcp))
    create = functools.partial(plane.kubectl, "create", "--dry-run=server", "-f", "-", namespace=namespace, input=made)
    if not refusal:
        assert "created" in create()
        return
    with pytest.raises(controlplane.KubectlError) as error:
        create()
    assert refusal in str(error.value)


def test_a_selection_does_not_change(plane: controlplane.Administrator, namespace: str) -> None:
    plane.create(manifests.investigation(mcp={}), namespace=namespace)
    patch = json.dumps({"spec": {"mcp": {"servers": SERVERS}}})
    with pytest.raises(controlplane.KubectlError, match="mcp cannot be changed"):
        plane.kubectl("patch", "inv", "web-crash", "--type=merge", "-p", patch, namespace=namespace)


async def test_unavailable_selection_is_refused_at_once_with_what_exists(
    plane: controlplane.Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    """An alert whose chain is missing waits for it; one that names what its chain does not have waits for nothing."""
    server = platforms.MCPServer(transport=server_transports.HTTPTransport(type="http", url="http://s/mcp"))
    platform = platforms.Platform(
        defaults=platforms.Defaults(llm_provider="only"),
        llm_providers={"only": providers.GoogleProvider(type="google", model="gemini-2.5-flash")},
        mcp_servers={"k8s": server, "vault": server},
        agents={"KubernetesAgent": platforms.Agent(mcp_servers=["k8s"])},
    )
    index = functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={})
    reconciler = investigations.Reconciler(cluster=cluster, database=database, index=index, mask=str, workers=1)
    for manifest in (manifests.chain(), manifests.investigation(mcp={"servers": [{"name": "vault"}]})):
        plane.create(manifest, namespace=cluster.served.own)
    metadata = json.loads(plane.kubectl("get", "inv", "web-crash", "-o", "json", namespace=cluster.served.own))[
        "metadata"
    ]
    seen = watch.Seen(namespace=cluster.served.own, name="web-crash", uid=metadata["uid"], generation=1)
    await reconciler.reconcile(investigations.Key(namespace=seen.namespace, name=seen.name, uid=seen.uid))
    summary = await queue.summary(database, UUID(seen.uid))
    assert summary.reason == "MCPSelectionInvalid"
    assert summary.message == (
        "mcp.servers.0 references MCP server 'vault', which no agent of chain 'kubernetes' has and which is not "
        "selectable. Available MCP servers: k8s"
    )
