"""The chain that would take an alert type, and the servers that the alert may select."""

from __future__ import annotations

import functools
import uuid
from typing import Any

from support import manifests
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, providers, server_transports, tool_filters
from tarsy.resources import chains
from tarsy.views import chain_matches


def server(**settings: Any) -> platforms.MCPServer:
    return platforms.MCPServer(transport=server_transports.HTTPTransport(type="http", url="http://s/mcp"), **settings)


PLATFORM = platforms.Platform(
    defaults=platforms.Defaults(llm_provider="only"),
    llm_providers={"only": providers.GoogleProvider(type="google", model="gemini-2.5-flash")},
    mcp_servers={"k8s": server(), "docs": server(selectable=True), "vault": server(), "new": server(selectable=True)},
    agents={"KubernetesAgent": platforms.Agent(mcp_servers=["k8s"])},
)
TOOLS: tool_filters.Catalogue = {
    "k8s": [
        tool_filters.Tool(name="pods_log", read_only=True),
        tool_filters.Tool(name="pods_delete", read_only=False),
        tool_filters.Tool(name="pods_get", read_only=True, stopped=True),
    ],
    "docs": [tool_filters.Tool(name="search", read_only=True)],
}


def chain(*alert_types: str, name: str = "pods", **spec: Any) -> chains.AgentChain:
    metadata = {"name": name, "namespace": "tarsy", "uid": str(uuid.uuid4()), "generation": 1}
    made = manifests.chain(*alert_types, name=name, **spec)["spec"]
    return chains.AgentChain.model_validate({"metadata": metadata, "spec": made})


def match(*listed: chains.AgentChain, alert_type: str, default: str | None = None) -> chain_matches.ChainMatch:
    index = chain_index.ChainIndex(listed, platform=PLATFORM, unusable_providers={}, namespace="tarsy", own="tarsy")
    selectable = functools.partial(index.selectable_servers, catalogue=TOOLS)
    return chain_matches.chain_match(index, alert_type, default=default, selectable=selectable)


def test_a_ready_chain_takes_its_type_with_the_servers_and_tools_that_agents_would_get() -> None:
    matched = match(chain("PodCrash"), alert_type="PodCrash")

    assert (matched.chain_name, matched.investigated_as, matched.ready) == ("pods", "PodCrash", True)
    assert [(server.name, server.is_own, server.tool_names) for server in matched.selectable_servers] == [
        ("docs", False, ["search"]),
        ("k8s", True, ["pods_log"]),
        ("new", False, None),
    ]


def test_the_default_chain_takes_what_no_chain_names() -> None:
    matched = match(chain("PodCrash"), alert_type="Unheard", default="PodCrash")

    assert (matched.alert_type, matched.investigated_as, matched.chain_name) == ("Unheard", "PodCrash", "pods")
    assert matched.ready


def test_message_names_the_available_types_if_no_chain_matches() -> None:
    matched = match(chain("PodCrash"), chain("NodeDown", name="nodes"), alert_type="<b>Pod</b>")

    assert (matched.chain_name, matched.ready, matched.reason, matched.selectable_servers) == (
        None,
        False,
        "ChainNotFound",
        [],
    )
    assert matched.message == ("No chain found for alert type '<b>Pod</b>'. Available alert types: NodeDown, PodCrash")


def test_a_chain_that_is_not_ready_is_named_with_the_reason() -> None:
    matched = match(chain("PodCrash", stages=[manifests.stage("analysis", agent="Nobody")]), alert_type="PodCrash")

    assert (matched.chain_name, matched.ready, matched.reason) == ("pods", False, "ChainNotReady")
    assert "Nobody" in matched.message
