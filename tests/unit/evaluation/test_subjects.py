"""The chain that is measured, and the platform file of its worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tarsy.config.load import loader
from tarsy.config.model import platforms
from tarsy.evaluation import subjects, world_platform
from tarsy.resources import files

CHAIN = """
apiVersion: tarsy.dev/v1alpha1
kind: AgentChain
metadata: {name: measured}
spec:
  alertTypes: [any]
  llmProvider: xai-default
  fallbackProviders: [openai-default]
  stages:
  - name: look
    llmProvider: openai-default
    agents: [{name: KubernetesAgent, llmProvider: xai-default}, {name: KubernetesAgent}]
    mcpServers: [kubernetes-server, prometheus]
    synthesis: {llmProvider: openai-default}
"""


@pytest.fixture
def platform(tmp_path: Path) -> platforms.Platform:
    (tmp_path / "platform.yaml").write_text(
        "mcp_servers: {prometheus: {transport: {type: http, url: 'http://prometheus.example/mcp'}}}"
    )
    return loader.platform_file(tmp_path / "platform.yaml")


def test_given_provider_replaces_all_other_providers_of_chain(tmp_path: Path, platform: platforms.Platform) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    chain = subjects.load(tmp_path / "chain.yaml", platform=platform)
    spec = subjects.with_provider(chain, "google-default").spec.model_dump(by_alias=True, exclude_none=True)
    assert "xai" not in str(spec)
    assert "openai" not in str(spec)
    assert (spec["llmProvider"], spec["stages"][0]["synthesis"]["llmProvider"]) == ("google-default",) * 2
    assert subjects.with_provider(chain, None) is chain


def test_servers_that_no_world_has_are_left_out_and_named(tmp_path: Path, platform: platforms.Platform) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    chain, missing = subjects.for_world(subjects.load(tmp_path / "chain.yaml", platform=platform))
    assert missing == ["prometheus"]
    assert chain.spec.stages[0].mcp_servers == ["kubernetes-server"]


def test_a_wrong_chain_is_named_with_its_line(tmp_path: Path, platform: platforms.Platform) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN.replace("name: KubernetesAgent}]", "name: Other}]"))
    with pytest.raises(files.FileError, match=r"chain\.yaml:\d+: .*Other"):
        subjects.load(tmp_path / "chain.yaml", platform=platform)
    (tmp_path / "two.yaml").write_text(CHAIN + "---" + CHAIN.replace("measured", "second").replace("any", "more"))
    with pytest.raises(files.FileError, match="a second document: give a file with one AgentChain"):
        subjects.load(tmp_path / "two.yaml", platform=platform)


@pytest.mark.parametrize(
    "arguments", [["--read-only"], ["--read-only", "--kubeconfig", "/other"], ["--kubeconfig=/other", "--read-only"]]
)
def test_kubeconfig_of_recorded_world_replaces_any_other_kubeconfig(arguments: list[str]) -> None:
    transport = {"type": "stdio", "command": "own-server", "args": arguments}
    masking = {"enabled": True}
    written: dict[str, Any] = {
        "mcp_servers": {
            "kubernetes-server": {"transport": transport, "data_masking": masking},
            "prometheus": {"transport": {"type": "http", "url": "http://prometheus.example/mcp"}},
        },
        "agents": {"Own": {"mcp_servers": ["prometheus", "kubernetes-server"]}},
    }
    content = world_platform.for_world(written, kubeconfig=Path("/world"))
    (server,) = content["mcp_servers"].values()
    assert server["transport"]["args"] == ["--read-only", "--kubeconfig", "/world"]
    assert (server["transport"]["command"], server["data_masking"]) == ("own-server", masking)
    assert content["agents"]["Own"]["mcp_servers"] == ["kubernetes-server"]
    assert written["mcp_servers"].keys() == {"kubernetes-server", "prometheus"}


def test_a_remote_server_becomes_the_program_for_the_world() -> None:
    written = {"mcp_servers": {"kubernetes-server": {"transport": {"type": "http", "url": "http://mcp.example/mcp"}}}}
    content = world_platform.for_world(written, kubeconfig=Path("/world"), command="/program")
    assert content["mcp_servers"]["kubernetes-server"]["transport"]["command"] == "/program"
