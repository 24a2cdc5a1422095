"""The founding documents' YAML, made into manifests and a platform file; and every sentence in which they refuse it."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml
from tarsy.cli.former import convert, layout
from tarsy.config.check import lint
from tarsy.config.load import builtin, loader
from tarsy.resources import files
from tarsy_dev import tools

FOUNDING = tools.ROOT / "tests/founding"
AVAILABLE = "KubernetesAgent, SynthesisAgent, ChatAgent"


def made(*texts: str) -> convert.Converted:
    """Convert files with these texts: f0, f1, and so on."""
    documents = [document for index, text in enumerate(texts) for document in files.parse(text, file=f"f{index}")]
    return convert.convert(documents)


def made_of(*names: str) -> convert.Converted:
    """Convert the documents' examples."""
    return convert.convert([document for name in names for document in files.read(FOUNDING / f"{name}.yaml")])


def refused(*texts: str) -> list[str]:
    with pytest.raises(files.FileError) as error:
        made(*texts)
    return str(error.value).splitlines()


def chain(text: str, **more: str) -> dict[str, Any]:
    """The spec of the one chain of a text."""
    (spec,) = (
        yaml.safe_load(manifest)["spec"] for name, manifest in made(text).texts.items() if name != convert.PLATFORM
    )
    return dict(spec)


def is_good(converted: convert.Converted) -> None:
    """Check that the conversion passes `config check` and `chain lint`."""
    platform = files.parse(converted.texts[convert.PLATFORM], file=convert.PLATFORM)[0]
    loaded = loader.loaded(platform, environment=None)
    chains = {name: text for name, text in converted.texts.items() if name != convert.PLATFORM}
    documents = [document for name, text in chains.items() for document in files.parse(text, file=name)]
    assert lint.problems(documents, platform=loaded.platform) == []


@pytest.mark.parametrize(
    "names",
    [
        ["sequential-chains"],
        ["security-incident"],
        ["strategy-chains", "strategy-agents", "strategy-rest"],
        ["tarsy", "llm-providers"],
    ],
)
def test_each_example_of_the_documents_becomes_files_that_are_good(names: list[str]) -> None:
    is_good(made_of(*names))


def test_agents_become_the_platforms_and_chains_become_manifests() -> None:
    converted = made_of("security-incident")
    assert converted.notes == []
    assert yaml.safe_load(converted.texts["tarsy.yaml"]) == {
        "defaults": {"iteration_strategy": "react"},
        "agents": {
            "data-collector-agent": {
                "mcp_servers": ["kubernetes-server"],
                "custom_instructions": "Collect comprehensive data for next stage. Do not analyze.",
            },
            "analysis-agent": {
                "mcp_servers": ["kubernetes-server"],
                "custom_instructions": "Analyze data from previous stage and provide recommendations.",
            },
        },
    }
    assert yaml.safe_load(converted.texts["security-incident-chain.yaml"]) == {
        "apiVersion": "tarsy.dev/v1alpha1",
        "kind": "AgentChain",
        "metadata": {"name": "security-incident-chain"},
        "spec": {
            "alertTypes": ["SecurityBreach"],
            "description": "Simple 2-stage security workflow",
            "iterationStrategy": "react",
            "stages": [
                {"name": "data-collection", "agent": "data-collector-agent"},
                {"name": "analysis", "agent": "analysis-agent"},
            ],
        },
    }


def test_strategies_stay_where_the_documents_have_them() -> None:
    converted = made_of("strategy-chains", "strategy-agents", "strategy-rest")
    spec = yaml.safe_load(converted.texts["kubernetes-deep-troubleshooting.yaml"])["spec"]
    assert "iterationStrategy" not in spec, "the chain's would go before its agents'"
    assert [(stage["agent"], stage["iterationStrategy"]) for stage in spec["stages"]] == [
        ("k8s", "react-stage"),
        ("k8s-logs", "react-stage"),
        ("k8s-analysis", "react-final-analysis"),
    ]
    agents = yaml.safe_load(converted.texts["tarsy.yaml"])["agents"]
    assert agents["k8s-logs"]["iteration_strategy"] == "react-stage"
    assert "iteration_strategy" not in agents["k8s"]


def test_every_setting_of_the_go_version_is_converted_or_named() -> None:
    converted = made_of("tarsy", "llm-providers")
    platform = yaml.safe_load(converted.texts["tarsy.yaml"])
    assert platform["defaults"] == {
        "llm_provider": "google-default",
        "max_iterations": 20,
        "fallback_providers": ["openai-default"],
        "iteration_strategy": "native-thinking",
        "alert_masking": {"enabled": True, "pattern_group": "security"},
    }
    assert platform["llm_providers"]["google-default"]["native_tools"] == ["google_search", "url_context"]
    assert platform["llm_providers"]["openai-default"]["model"] == "{{.OPENAI_MODEL}}"
    assert platform["llm_providers"]["vertexai-default"] == {
        "type": "vertexai",
        "model": "gemini-3-pro",
        "credentials_file": "{{.GOOGLE_APPLICATION_CREDENTIALS}}",
        "project": "{{.GOOGLE_CLOUD_PROJECT}}",
        "location": "{{.GOOGLE_CLOUD_LOCATION}}",
    }
    cluster = platform["mcp_servers"]["cluster"]
    assert cluster["transport"] == {
        "type": "http",
        "url": "https://{{.CLUSTER_HOST}}:8443/mcp",
        "bearer_token_env": "MCP_TOKEN",
        "timeout": "90s",
    }
    assert cluster["data_masking"] == {
        "enabled": True,
        "pattern_groups": ["kubernetes", "cloud"],
        "custom_patterns": [{"name": "custom_1", "pattern": r"acct-\d+", "replacement": "[ACCT]"}],
    }
    assert cluster["instructions"].endswith("A shell writes a variable as ${NAMESPACE}.\n")
    local = platform["mcp_servers"]["kubernetes-server"]["transport"]
    assert local["args"][-1] == local["env"]["KUBECONFIG"] == "{{.KUBECONFIG}}"
    assert cluster["summarization"] == {"size_threshold_tokens": 5000}
    tokens = {name: provider.get("max_tool_result_tokens") for name, provider in platform["llm_providers"].items()}
    assert tokens == {"google-default": 950_000, "openai-default": 250_000, "vertexai-default": None}
    assert (platform["queue"], "limits" in platform) == ({"slots": 5, "max_running": 8}, False)
    assert platform["ingest"] == {"default_alert_type": "PodCrashLoop"}
    assert platform["agents"]["Searcher"] == {"native_tools": ["google_search"]}
    assert platform["agents"]["Diagnoser"]["iteration_strategy"] == "react"
    spec = yaml.safe_load(converted.texts["crash-loop.yaml"])["spec"]
    assert (spec["executiveSummary"], spec["activeDeadlineSeconds"]) == ({"llmProvider": "google-default"}, 2400)
    assert spec["chat"] == {"enabled": True, "agent": "ChatAgent", "maxIterations": 4}
    collect, beside, act = spec["stages"]
    assert collect == {
        "name": "collect",
        "agent": "Collector",
        "iterationStrategy": "native-thinking",
        "replicas": 2,
        "synthesis": {"agent": "SynthesisAgent", "iterationStrategy": "synthesis-native-thinking"},
        "successPolicy": "all",
    }
    assert beside["agents"] == [
        {"name": "Diagnoser", "llmProvider": "openai-default", "fallbackProviders": ["google-default"]},
        {"name": "Collector", "mcpServers": ["kubernetes-server"], "maxIterations": 3, "iterationStrategy": "react"},
    ]
    assert (beside["successPolicy"], act["successPolicy"]) == ("all", "any")
    native = yaml.safe_load(converted.texts["native.yaml"])["spec"]
    assert (native["iterationStrategy"], native["stages"]) == (
        "native-thinking",
        [{"name": "look", "agent": "Searcher"}],
    )


def test_unsupported_setting_is_named_with_file_and_line() -> None:
    converted = made_of("tarsy", "llm-providers")
    notes = {str(note).removeprefix(f"{FOUNDING}/") for note in converted.notes}
    for location in (
        "tarsy.yaml:3: system.dashboard_url",
        "tarsy.yaml:42: agents.Remediator.skills",
        "tarsy.yaml:57: agent_chains.Crash_Loop.stages.2.agents.0.skills",
        "tarsy.yaml:59: agent_chains.Crash_Loop.scoring",
        "llm-providers.yaml:15: llm_providers.openai-default.temperature",
    ):  # fmt: skip
        assert f"{location}: TARSy does not have this yet: left out" in notes
    assert "tarsy.yaml:8: queue.poll_interval: this has no place in TARSy: left out" in notes
    assert (
        "tarsy.yaml:45: agent_chains.Crash_Loop: is renamed to 'crash-loop': lower-case letters, digits and dashes"
        in notes
    )


def test_the_transport_of_a_server_keeps_all_but_a_token_that_is_written_there() -> None:
    transport = (
        "{type: sse, url: 'http://s/sse', bearer_token: 's3cret-token', verify_ssl: false, timeout: 30, "
        "custom_headers: {X-Tenant: 7, X-Key: '${KEY}'}, session_cleanup_url: 'http://s/end'}"
    )
    converted = made(f"mcp_servers:\n  s: {{transport: {transport}}}\n")
    assert yaml.safe_load(converted.texts["tarsy.yaml"])["mcp_servers"]["s"]["transport"] == {
        "type": "sse",
        "url": "http://s/sse",
        "verify": False,
        "timeout": "30s",
        "headers": {"X-Tenant": "7", "X-Key": "{{.KEY}}"},
    }
    notes = "\n".join(map(str, converted.notes))
    assert "mcp_servers.s.transport.bearer_token: set bearer_token_env or bearer_token_file instead: left out" in notes
    assert "s3cret-token" not in notes


def test_runbook_settings_are_converted_and_unsupported_settings_beside_them_named() -> None:
    text = (
        "system:\n"
        "  github: {token_env: GITHUB_TOKEN, app_id: 5}\n"
        "  runbooks: {allowed_domains: [github.com, raw.githubusercontent.com], repo_url: https://github.com/o/r}\n"
        "defaults: {runbook: Call Anne.}\n"
    )
    converted = made(text)
    platform = yaml.safe_load(converted.texts[convert.PLATFORM])
    assert platform["defaults"]["runbook"] == "Call Anne."
    assert platform["runbooks"] == {
        "token_env": "GITHUB_TOKEN",
        "allowed_domains": ["github.com", "raw.githubusercontent.com"],
    }
    notes = [str(note).partition(":")[2] for note in converted.notes]
    assert notes == [f"{location}: this has no place in TARSy: left out" for location in (
        "2: system.github.app_id", "3: system.runbooks.repo_url",
    )]  # fmt: skip
    is_good(converted)


def test_patterns_keep_their_names_and_those_that_are_not_there_are_named() -> None:
    masking = (
        "mcp_servers:\n  s:\n    transport: {type: stdio, command: c}\n    data_masking:\n"
        "      pattern_groups: [basic, mine]\n      patterns: [certificate, kubernetes_secret, base64_short]\n"
        "      custom_patterns:\n      - {pattern: 'id-(\\d)', replacement: 'id-${1}', description: d}\n"
        "      - {name: own, pattern: x}\n"
        "defaults: {alert_masking: {enabled: false, pattern_group: cloud, x: y}}\n"
    )
    converted = made(masking)
    platform = yaml.safe_load(converted.texts[convert.PLATFORM])
    assert platform["defaults"]["alert_masking"] == {"enabled": False, "pattern_group": "cloud"}
    assert platform["mcp_servers"]["s"]["data_masking"] == {
        "pattern_groups": ["basic"],
        "patterns": ["certificate"],
        "custom_patterns": [
            {"name": "custom_1", "pattern": r"id-(\d)", "replacement": "id-${1}"},
            {"name": "own", "pattern": "x"},
        ],
    }
    notes = "\n".join(map(str, converted.notes))
    for note in (
        "f0:5: mcp_servers.s.data_masking.pattern_groups.1: TARSy does not have 'mine'. Available: all, basic",
        "f0:6: mcp_servers.s.data_masking.patterns.1: Kubernetes' Secrets are always masked: left out",
        "f0:6: mcp_servers.s.data_masking.patterns.2: TARSy does not have 'base64_short'. Available: api_key",
        "f0:8: mcp_servers.s.data_masking.custom_patterns.0.description: this has no place in TARSy: left out",
        "defaults.alert_masking.x: this has no place in TARSy: left out",
    ):
        assert note in notes


CHAIN = "agent_chains: {a: {alert_types: [x], stages: [{name: b, agent: %s}]}}"


def test_an_identifier_loses_its_prefix_and_another_prefix_is_refused() -> None:
    spec = chain("agents: {c: {}}\n" + CHAIN % '"ConfigurableAgent:c"')
    assert spec["stages"] == [{"name": "b", "agent": "c"}]
    for identifier in ("KubernetesAgent:c", "ConfigurableAgent:", ":c"):
        assert refused(CHAIN % f'"{identifier}"') == [f"f0:1: Invalid agent identifier format: {identifier}"]


def test_an_unknown_agent_is_refused_in_the_documents_words() -> None:
    start = "Chain agent reference errors: "
    sentence = f"Chain 'a' stage 'b' references unknown agent 'c'. Available agents: {AVAILABLE}"
    unknown = "Unknown built-in agent class: "
    assert refused(CHAIN % "c") == [f"f0:1: {start}{sentence}. {unknown}c"]
    assert refused("agents: {d: {}}", CHAIN % "ConfigurableAgent:c") == [
        f"f1:1: {start}{sentence}, d. Configurable agent 'c' not found in configuration"
    ]
    two = (
        "agent_chains:\n  a:\n    alert_types: [x]\n    stages:\n    - {name: b, agent: c}\n    - {name: d, agent: e}\n"
    )
    assert refused(two) == [
        (
            f"f0:5: {start}{sentence}. {unknown}c; Chain 'a' stage 'd' references unknown agent 'e'. "
            f"Available agents: {AVAILABLE}. {unknown}e (lines 5, 6)"
        )
    ]


def test_the_names_of_built_in_chains_are_taken() -> None:
    text = "agent_chains: {kubernetes-agent-chain: {alert_types: [x], stages: [{name: b, agent: KubernetesAgent}]}}"
    assert refused(text) == [
        (
            "f0:1: YAML chain names conflict with built-in chains: kubernetes-agent-chain. "
            "Built-in chain names: kubernetes-agent-chain, kubernetes-troubleshooting-chain. "
            "Chain ID conflicts detected between built-in and YAML chains: ['kubernetes-agent-chain']. "
            "Each chain_id must be unique across all chain sources."
        )
    ]


@pytest.mark.parametrize(
    ("text", "location"),
    [
        ("defaults: {iteration_strategy: rect}\n" + CHAIN % "KubernetesAgent", "defaults"),
        (CHAIN % "KubernetesAgent, iteration_strategy: rect", "agent_chains.a.stages.0"),
        (CHAIN % "KubernetesAgent, synthesis: {iteration_strategy: rect}", "agent_chains.a.stages.0.synthesis"),
    ],
)
def test_unknown_iteration_strategy_is_refused_in_the_documents_words(text: str, location: str) -> None:
    there = "react, react-stage, react-final-analysis, native-thinking, synthesis, synthesis-native-thinking"
    assert refused(text) == [
        f"f0:1: {location}.iteration_strategy: Unknown iteration strategy: rect. Available strategies: {there}"
    ]


@pytest.mark.parametrize("switch", ["enabled: false", "disabled: true"])
def test_disabled_server_stays_disabled(switch: str) -> None:
    text = f"""
mcp_servers:
  kubernetes-server: {{{switch}, transport: {{type: stdio, command: k}}}}
  logs: {{{switch}}}
  other: {{enabled: true, disabled: false, transport: {{type: stdio, command: o}}}}
agents:
  c: {{mcp_servers: [logs, other, kubernetes-server]}}
agent_chains:
  a:
    alert_types: [x]
    mcp_servers: [kubernetes-server]
    stages:
    - {{name: b, agent: c, mcp_servers: [other, logs]}}
    - {{name: d, agents: [{{name: c, mcp_servers: [logs]}}, {{name: KubernetesAgent}}]}}
"""
    converted = made(text)
    is_good(converted)
    platform = yaml.safe_load(converted.texts[convert.PLATFORM])
    assert platform["mcp_servers"] == {
        "kubernetes-server": None,
        "other": {"transport": {"type": "stdio", "command": "o"}},
    }
    assert platform["agents"] == {"c": {"mcp_servers": ["other"]}}
    spec = yaml.safe_load(converted.texts["a.yaml"])["spec"]
    assert spec["mcpServers"] == []
    assert spec["stages"][0]["mcpServers"] == ["other"]
    assert spec["stages"][1]["agents"][0]["mcpServers"] == []
    notes = [str(note) for note in converted.notes]
    key = switch.partition(":")[0]
    for location, name in [
        (f"f0:3: mcp_servers.kubernetes-server.{key}", "kubernetes-server"),
        (f"f0:4: mcp_servers.logs.{key}", "logs"),
        ("f0:7: agents.c.mcp_servers.0", "logs"),
        ("f0:11: agent_chains.a.mcp_servers.0", "kubernetes-server"),
        ("f0:13: agent_chains.a.stages.0.mcp_servers.1", "logs"),
        ("f0:14: agent_chains.a.stages.1.agents.0.mcp_servers.0", "logs"),
    ]:
        assert f"{location}: MCP server '{name}' is disabled: left out" in notes


CONFLICTS = "Alert type mapping conflicts detected. Each alert type can only be mapped to ONE chain. Conflicts: "


def test_the_alert_types_of_built_in_chains_are_taken() -> None:
    text = "agent_chains: {custom-k8s-chain: {alert_types: [kubernetes], stages: [{name: b, agent: KubernetesAgent}]}}"
    assert refused(text) == [
        (
            f"f0:1: {CONFLICTS}Alert type 'kubernetes' conflict: YAML chain 'custom-k8s-chain' cannot override "
            "built-in chain 'kubernetes-agent-chain'"
        )
    ]


def test_gap_of_a_chain_is_reported_in_the_documented_words() -> None:
    text = (
        "agent_chains:\n"
        "  incomplete-chain: {alert_types: [x], stages: [{name: a}]}\n"
        "  empty-chain: {alert_types: [], stages: [{name: a, agent: KubernetesAgent}]}\n"
    )
    assert refused(text) == [
        (
            "f0:2: Chain structure errors: Chain 'incomplete-chain' stage 0 missing required 'agent' field; "
            "Chain 'empty-chain' must specify at least one alert_type (lines 2, 3)"
        )
    ]
    for chain_text, sentence in [
        ("{alert_types: [x], stages: [{agent: KubernetesAgent}]}", "stage 0 missing required 'name' field"),
        ("{alert_types: [x], stages: [{name: b}]}", "stage 0 missing required 'agent' field"),
        ("{alert_types: [x], stages: []}", "must specify at least one stage"),
        ("{alert_types: [], stages: [{name: b, agent: KubernetesAgent}]}", "must specify at least one alert_type"),
    ]:
        assert refused(f"agent_chains: {{a: {chain_text}}}") == [f"f0:1: Chain structure errors: Chain 'a' {sentence}"]


def test_all_conversion_problems_are_reported_at_once() -> None:
    text = (
        "agent_chains:\n"
        "  kubernetes-agent-chain: {alert_types: [x], stages: [{name: b, agent: c}]}\n"
        "  d: {alert_types: [PodFailure, x], stages: [{name: e}]}\n"
        "  f: {alert_types: [g], stages: [{name: h, agent: 'Agent:i'}]}\n"
    )
    problems = refused(text)
    for start in (
        "f0:2: YAML chain names conflict", "f0:2: Chain agent reference errors: ", "f0:3: Chain structure errors: ",
        "f0:3: Alert type mapping conflicts detected. ", "f0:4: Invalid agent identifier format: Agent:i",
    ):  # fmt: skip
        assert any(line.startswith(start) for line in problems), problems
    assert len(problems) == 5


@pytest.mark.parametrize(
    ("settings", "strategies"),
    [
        ("", "react"),
        ("defaults: {iteration_strategy: native-thinking}\n", "native-thinking"),
        ("defaults: {llm_backend: google-native}\n", "native-thinking"),
        ("defaults: {llm_backend: langchain}\n", "react"),
    ],
)
def test_chain_without_strategy_gets_the_default_of_the_go_version(settings: str, strategies: str) -> None:
    assert chain(settings + CHAIN % "KubernetesAgent")["iterationStrategy"] == strategies


def test_agents_without_strategy_in_a_mixed_chain_get_the_default_of_the_go_version() -> None:
    text = "agents: {own: {iteration_strategy: react-stage}, none: {}}\n"
    stages = "[{name: a, agent: own}, {name: b, agent: none}, {name: c, agents: [own, none, SynthesisAgent]}]"
    spec = chain(text + f"agent_chains: {{a: {{alert_types: [x], stages: {stages}}}}}")
    assert "iterationStrategy" not in spec
    assert spec["stages"] == [
        {"name": "a", "agent": "own"},
        {"name": "b", "agent": "none", "iterationStrategy": "react"},
        {
            "name": "c",
            "agents": [{"name": "own"}, {"name": "none", "iterationStrategy": "react"}, {"name": "SynthesisAgent"}],
        },
    ]


def test_the_built_in_chains_are_those_that_are_shipped() -> None:
    """And one that the former TARSy did not have: for alerts about TARSy itself."""
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((tools.ROOT / "manifests/chains").iterdir())]
    assert {manifest["metadata"]["name"]: manifest["spec"]["alertTypes"] for manifest in shipped} == {
        **builtin.CHAINS,
        "tarsy-chain": ["tarsy"],
    }


@pytest.mark.parametrize(("text", "meant"), [("40m", 2400), ("1h30m", 5400), ("500ms", 0.5), ("1.5h", 5400)])
def test_durations_of_go_are_read(text: str, meant: float) -> None:
    assert layout.seconds(text) == meant
    assert layout.seconds("40 minutes") is layout.seconds(40) is None


WRONG_VALUES: list[Any] = [None, 0, -1, True, "", "x", "a:b", [], [1], ["x"], {}, {"x": 1}, {"name": None}, [[]], [{}]]


def places(document: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    return [at, *(location for key, value in below for location in places(value, (*at, key)))]


EXAMPLES = [
    "\n".join(re.sub(r"^#.*\n", "", (FOUNDING / f"{name}.yaml").read_text(), flags=re.MULTILINE) for name in names)
    for names in (["tarsy", "llm-providers"], ["sequential-chains"])
]


def is_made_or_refused(document: Any) -> None:
    text = yaml.safe_dump(document)
    problems: list[files.Problem] = []
    try:
        is_good(made(text))
    except files.FileError as error:
        problems = error.problems
    assert all(0 < problem.line <= len(text.splitlines()) for problem in problems)


def changed(document: Any, location: tuple[Any, ...], value: object) -> Any:
    """The data with something else at that place, if it is there still."""
    changed_document = copy.deepcopy(document)
    *path, last = location
    inner = changed_document
    for step in path:
        inner = inner[step]
    inner[last] = value
    return changed_document


def test_any_value_of_each_setting_is_converted_or_refused() -> None:
    for example in EXAMPLES:
        read = files.parse(example, file="f")[0].value
        for number, location in enumerate(places(read)[1:]):
            for value in WRONG_VALUES[number % 6 :: 6]:
                is_made_or_refused(changed(read, location, value))
