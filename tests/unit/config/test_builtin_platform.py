"""Built-in platform settings, and how a platform file is laid over them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tarsy.config import resolve
from tarsy.config.check import chain_index
from tarsy.config.load import builtin, loader
from tarsy.config.model import platforms, providers, server_transports, webhooks
from tarsy.llm import registry
from tarsy.resources import chains

ROOT = Path(__file__).resolve().parents[3]
CHAINS = ROOT / "manifests/chains"


def laid(tmp_path: Path, text: str) -> platforms.Platform:
    file = tmp_path / "platform.yaml"
    file.write_text(text)
    return loader.platform_file(file)


def test_built_in_platform_has_one_agent_with_one_server_and_two_agents_that_follow() -> None:
    platform = loader.platform_file(None)
    assert platform.agents.keys() == {"KubernetesAgent", resolve.SYNTHESIS_AGENT, resolve.CHAT_AGENT}
    assert platform.agents["KubernetesAgent"] == platforms.Agent(mcp_servers=["kubernetes-server"])
    assert platform.agents["ChatAgent"] == platforms.Agent()
    synthesis = platform.agents["SynthesisAgent"]
    assert (synthesis.iteration_strategy, synthesis.mcp_servers) == ("synthesis", [])
    assert synthesis.custom_instructions
    assert platform.defaults == platforms.Defaults(llm_provider="google-default")
    google = platform.llm_providers["google-default"]
    assert isinstance(google, providers.GoogleProvider)
    assert google.api_key_env == "GOOGLE_API_KEY"
    transport = platform.mcp_servers["kubernetes-server"].transport
    assert isinstance(transport, server_transports.StdioTransport)
    assert "--read-only" in transport.args
    assert (platform.limits, platform.queue, platform.ingest) == (
        platforms.Limits(),
        platforms.Queue(),
        webhooks.Ingest(),
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}", "limits: {tool_call: 60s}"])
def test_empty_platform_file_changes_nothing(tmp_path: Path, text: str) -> None:
    assert laid(tmp_path, text) == loader.platform_file(None)


def test_shipped_platform_file_equals_the_built_in_settings() -> None:
    shipped, builtin = loader.platform_file(ROOT / "config/tarsy.yaml"), loader.platform_file(None)
    same = {"llm_providers", "mcp_servers", "agents", "defaults", "limits", "queue"}
    assert shipped.model_dump(include=same) == builtin.model_dump(include=same)


def test_null_takes_the_builtin_server_out_and_from_the_builtin_agent(tmp_path: Path) -> None:
    builtin = loader.platform_file(None)
    platform = laid(tmp_path, "mcp_servers: {kubernetes-server: null}")
    assert platform.mcp_servers == {}
    assert platform.agents == builtin.agents | {"KubernetesAgent": platforms.Agent()}
    own = "{kubernetes-server: null, mine: {transport: {type: http, url: 'http://127.0.0.1:1/mcp'}}}"
    platform = laid(tmp_path, f"mcp_servers: {own}\nagents: {{KubernetesAgent: {{mcp_servers: [mine]}}}}")
    assert list(platform.mcp_servers) == ["mine"]
    assert platform.agents["KubernetesAgent"] == platforms.Agent(mcp_servers=["mine"])
    assert loader.platform_file(None) == builtin, "what is built in stays what it is"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcp_servers: {other: null}", r"1: mcp_servers\.other: "),
        ("agents: {KubernetesAgent: null}", r"1: agents\.KubernetesAgent: "),
        ("mcp_servers: null", "1: mcp_servers: "),
        ("{mcp_servers: {kubernetes-server: null}, agents: []}", "1: agents: "),
        (
            "{mcp_servers: {kubernetes-server: null}, agents: {Mine: {mcp_servers: [kubernetes-server]}}}",
            r"agents\.Mine\.mcp_servers\.0: unknown MCP server\. Available: none$",
        ),
    ],
)
def test_null_is_refused_except_for_an_unreferenced_built_in_server(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(loader.ConfigError, match=message):
        laid(tmp_path, text)


def test_entry_of_the_same_name_is_replaced_completely_and_the_others_stay(tmp_path: Path) -> None:
    builtin = loader.platform_file(None)
    platform = laid(
        tmp_path,
        """
        mcp_servers: {kubernetes-server: {transport: {type: http, url: "http://127.0.0.1:1/mcp"}}}
        agents: {Mine: {mcp_servers: [kubernetes-server]}}
        """,
    )
    server = platform.mcp_servers["kubernetes-server"]
    assert server == platforms.MCPServer(
        transport=server_transports.HTTPTransport(type="http", url="http://127.0.0.1:1/mcp")
    )
    assert server.instructions == "", "the built-in instructions went with the rest"
    assert platform.agents == builtin.agents | {"Mine": platforms.Agent(mcp_servers=["kubernetes-server"])}
    assert platform.llm_providers == builtin.llm_providers


def test_defaults_are_overridden_one_by_one(tmp_path: Path) -> None:
    defaults = laid(tmp_path, "defaults: {max_iterations: 3}").defaults
    assert (defaults.max_iterations, defaults.llm_provider) == (3, "google-default")


def shown(page: str, *, after: str = "") -> str:
    """The first YAML of a page behind that text."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(after or "\n")[2].partition("```yaml\n")[2].partition("```")[0]


def test_the_files_that_the_documentation_shows_are_some(tmp_path: Path) -> None:
    types = {provider.type for provider in laid(tmp_path, shown("providers.md")).llm_providers.values()}
    assert types == registry.TYPES.keys()
    servers = laid(tmp_path, shown("mcp-servers.md")).mcp_servers
    assert {server.transport.type for server in servers.values()} == {"stdio", "http", "sse"}
    assert [name for name, server in servers.items() if server.stateful] == ["browser"]
    server = laid(tmp_path, shown("agents.md", after="## Another TARSy")).mcp_servers["other-cluster"]
    assert (server.transport.type, server.write_tools) == ("http", ["investigate"])


@pytest.mark.parametrize("section", ["agents", "mcp_servers", "llm_providers", "defaults"])
def test_a_section_that_is_no_mapping_is_refused_not_ignored(tmp_path: Path, section: str) -> None:
    for value in ("[KubernetesAgent]", "null"):
        with pytest.raises(
            loader.ConfigError, match=rf"^\S+platform\.yaml:1: {section}: (Input should be .*|expected a mapping)$"
        ):
            laid(tmp_path, f"{section}: {value}")


def test_the_built_in_chains_are_ready_side_by_side() -> None:
    manifests = [yaml.safe_load(file.read_text()) for file in CHAINS.iterdir()]
    shipped = [
        chains.AgentChain(metadata=manifest["metadata"] | {"namespace": "tarsy"}, spec=manifest["spec"])
        for manifest in manifests
    ]
    index = chain_index.ChainIndex(
        shipped, platform=loader.platform_file(None), unusable_providers={}, namespace="tarsy", own="tarsy"
    )
    for name, types in builtin.CHAINS.items():
        assert {index.chain_for(alert_type).metadata.name for alert_type in types} == {name}
