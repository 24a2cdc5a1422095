from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from tarsy.config.load import loader
from tarsy.config.model import platforms, server_transports
from tarsy.resources import files, namespaces

DESIGN = """
defaults: {llm_provider: google-default, iteration_strategy: native-thinking, max_iterations: 20}
llm_providers:
  google-default: {type: google, model: gemini-2.5-flash, api_key_env: GOOGLE_API_KEY}
mcp_servers:
  kubernetes-server:
    transport: {type: stdio, command: kubernetes-mcp-server, args: [--read-only, --toolsets, core]}
    instructions: Prefer namespaced queries.
agents:
  KubernetesAgent: {mcp_servers: [kubernetes-server], custom_instructions: "..."}
queue: {slots: 50, lease: 20s, heartbeat: 5s}
ingest: {alert_type_label: alert_type, default_alert_type: null}
"""

SECTIONS = ", ".join(platforms.Platform.model_fields)


MASKING = "mcp_servers: {k: {transport: {type: stdio, command: c}, data_masking: {%s}}}"
SUMMED_UP = "mcp_servers: {k: {transport: {type: stdio, command: c}, summarization: {%s}}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "platform.yaml"


def refused(file: Path) -> list[str]:
    """The problems that the loader finds; each names the file, and the line if there is one."""
    with pytest.raises(loader.ConfigError) as error:
        loader.platform_file(file)
    named = re.compile(re.escape(str(file)) + r"(:[1-9]\d*)?: ")
    lines = str(error.value).splitlines()
    assert all(named.match(line) for line in lines)
    return [named.sub("", line) for line in lines]


def test_the_designs_example_is_read(file: Path) -> None:
    file.write_text(DESIGN)
    loaded = loader.platform_file(file)
    server = loaded.mcp_servers["kubernetes-server"].transport
    assert isinstance(server, server_transports.StdioTransport)
    assert server.args == ["--read-only", "--toolsets", "core"]
    assert (loaded.queue.lease, loaded.queue.heartbeat) == (timedelta(seconds=20), timedelta(seconds=5))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "mcp_servers: {s: {transport: {type: http, url: 'http://s/mcp'}, write_tools: ['*', s.delete]}}",
            "mcp_servers.s.write_tools.1: write the tool's name without 's.'",
        ),
        (
            "agents: {A: {tools: {deny: [pods_log]}}}",
            "agents.A.tools.deny.0: it is not server.tool: write 'kubernetes-server.pods_*' or '*.pods_*', and 'kubernetes-server.*' for all tools of a server",  # noqa: E501
        ),
        (
            "agents: {A: {tools: {deny: ['*_log', 'kube*.*', 'pods.*']}}}",
            "agents.A.tools.deny.2: no tool can match it: patterns are over server.tool, such as kubernetes-server.pods_log. Available MCP servers: kubernetes-server",  # noqa: E501
        ),
        (
            "llm_providers: {g: {type: langchain, model_provider: p, model: m, options: {api_key: S3cret}}}",
            "llm_providers.g: options: api_key does not belong there",
        ),
        (
            "defaults: {runbook: ' HTTP://wiki/a '}",
            "defaults.runbook: this is a URL: write the text of a runbook; URLs come with alerts",
        ),
        (
            "deliveries: {p: {type: pagerduty, from_email: a@b, token_env: KEY, events: [ended, updated]}}",
            "deliveries.p: events: 'updated' is not for pagerduty: a note cannot be changed, so each update would be another note; it hears of started, ended and resolved",  # noqa: E501
        ),
        ("[1]", f"expected a mapping of {SECTIONS}"),
        ("limits: {tool_call: 25h}", "limits.tool_call: must be from 1ms to 1d"),
        (
            "ingest: {tokens: [{token_file: /t, namespaces: [shop, shop]}]}",
            "ingest.tokens.0.namespaces: 'shop' is listed twice: name each namespace once",
        ),
        (
            "ingest: {tokens: [{token_file: /t, namespaces: [a]}, {token_file: /t, namespaces: [b]}]}",
            "ingest: tokens.1.token_file: the same file as of tokens.0: list all its namespaces there",
        ),
        (
            "ingest: {this_cluster: {senders: [eu]}}",
            "ingest: this_cluster.senders.0: 'eu' is no sender: write TARSY_WEBHOOK_TOKEN, or the `source` of one of `tokens`",  # noqa: E501
        ),
        (
            "llm_providers: {g: {type: vertexai, model: gemini-2.0-flash, thinking: {budget: 1}}}",
            "llm_providers.g: thinking: gemini-2.0-flash does not think",
        ),
        (
            SUMMED_UP % "llm_provider: x",
            "mcp_servers.k.summarization.llm_provider: unknown provider. Available: anthropic-default, google-default, openai-default, vertexai-default, xai-default",  # noqa: E501
        ),
        (
            SUMMED_UP % "enabled: false, llm_provider: google-default",
            "mcp_servers.k.summarization: llm_provider: has no effect unless mode is summary",
        ),
        ("namespaces: [shop, payments, shop]", "namespaces: 'shop' is listed twice: name each namespace once"),
        (
            "namespaces: [shop, Pay_ments]",
            "namespaces.1: not the name of a namespace, such as team-a: lower-case letters, digits and -, 63 at most",
        ),
        (
            f"namespaces: [{', '.join(f'team-{number}' for number in range(101))}]",
            "namespaces: List should have at most 100 items after validation, not 101",
        ),
    ],
)
def test_problem_is_reported_with_its_location_and_the_available_names(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    assert refused(file) == [problem]


def test_a_hundred_namespaces_can_be_served(file: Path) -> None:
    names = [f"team-{number}" for number in range(100)]
    file.write_text(f"namespaces: [{', '.join(names)}]")
    assert loader.platform_file(file).namespaces == names
    assert namespaces.Served.from_names("tarsy", ["team-1", "tarsy"]).names == ("tarsy", "team-1"), (
        "its own may be listed"
    )


@pytest.mark.parametrize(
    "url",
    ["nope", "not a url", "host:8080", "ftp://host/", "http://", "http://ho st/", "http://h:99999/", "http://[::1/"],
)
def test_text_that_is_no_url_is_refused_with_an_example(file: Path, url: str) -> None:
    message = "not a URL: write one with http or https, such as http://127.0.0.1:8080"
    file.write_text(f'mcp_servers: {{k: {{transport: {{type: http, url: "{url}"}}}}}}')
    assert refused(file) == [f"mcp_servers.k.transport.url: {message}"]
    file.write_text(f'llm_providers: {{g: {{type: google, model: m, base_url: "{url}"}}}}')
    assert refused(file) == [f"llm_providers.g.base_url: {message}"]


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("250ms", timedelta(milliseconds=250)),
        ("90s", timedelta(seconds=90)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("7d", timedelta(days=7)),
    ],
)
def test_durations_are_read_in_every_unit(file: Path, value: str, meant: timedelta) -> None:
    file.write_text(f"ingest: {{cooldown: {value}}}")
    assert loader.platform_file(file).ingest.cooldown == meant


@pytest.mark.parametrize("name", ["my.server", "my server", "", "my__server", "__a", "a_", "_", "a\\n"])
def test_server_name_that_makes_tool_names_ambiguous_is_refused(file: Path, name: str) -> None:
    """Tools are `server.tool` inside and `server__tool` on the wire, which has letters, digits, `_` and `-`; the first
    `__` must be where the server's name ends."""
    file.write_text(f'mcp_servers: {{"{name}": {{transport: {{type: stdio, command: x}}}}}}')
    assert "mcp_servers" in refused(file)[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"a: [", ":1: not YAML: column 5: expected the node content, but found '<stream end>'"),
        (b"a: @b", ":1: not YAML: column 4: found character '@' that cannot start any token"),
        (None, ": No such file or directory: put the platform file there, or name another by --config or TARSY_CONFIG"),
        (b"queue: {lease: 2024-99-99}", ":1: not YAML: column 16: not a valid date"),
        (b"a: !!timestamp S3cretPw", ":1: not YAML: column 4: not a valid date"),
        (b"a: !!int S3cretPw", ":1: not YAML: column 4: not a valid number"),
        (b"a: !!bool S3cretPw", ":1: not YAML: column 4: a value that does not fit its tag"),
        (b"a: !!map S3cretPw", ":1: not YAML: column 4: expected a mapping node, but found scalar"),
        (b"a: !!set [S3cretPw]", ":1: not YAML: column 4: expected a mapping node, but found sequence"),
        (b"a: S3cretPw\nb: " + b"{a: " * 1500, ":2: nested too deep"),
    ],
)
def test_unreadable_platform_file_is_refused_with_its_path(file: Path, content: bytes | None, problem: str) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(loader.ConfigError) as error:
        loader.platform_file(file)
    assert f"{file}{problem}" in str(error.value)
    assert "S3cret" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "llm_providers: {g: {type: KEY, model: m}}",
        "llm_providers: {g: {type: google, model: m, api_key_env: KEY}}",
        "llm_providers: {g: {type: google, model: m, base_url: KEY}}",
        "llm_providers: {g: {type: google, model: m, KEY: }}",
        "llm_providers: {g: KEY}",
        "llm_providers: KEY",
        "KEY",
        "defaults: {llm_provider: KEY}",
        "defaults: {iteration_strategy: KEY}",
        "defaults: {max_iterations: KEY}",
        "agents: {A: {llm_provider: KEY}}",
        "agents: {A: {mcp_servers: [KEY]}}",
        "mcp_servers: {k: {transport: {type: KEY}}}",
        "mcp_servers: {k: {transport: {type: http, url: KEY}}}",
        MASKING % "pattern_groups: [KEY]",
        MASKING % "patterns: [KEY]",
        MASKING % "custom_patterns: [{name: KEY, pattern: x}]",
        MASKING % "custom_patterns: [{name: a, pattern: '(KEY'}]",
        MASKING % "custom_patterns: [{name: a, pattern: x, replacement: '${KEY}'}]",
        "defaults: {alert_masking: {pattern_group: KEY}}",
        "queue: {lease: KEY}",
        "limits: {tool_output: KEY}",
        "ingest: {cooldown: KEY}",
        "api: {trusted_proxies: [KEY]}",
        "a: *KEY",
        "a: !KEY x",
        "a: !KEY!x x",
        "%KEY\n---\na: b",
        "KEY: 1\nKEY: 2",
        'a: "KEY',
        "a: {KEY",
        "a: KEY: b",
        "a: b\n KEY",
        "a: &KEY 1\nb: &KEY 2\nc: *KEY2",
        "a: |KEY",
        "a: 0x_\nb: KEY",
    ],
)
def test_key_in_the_wrong_place_is_not_shown(file: Path, text: str) -> None:
    file.write_text(text.replace("KEY", "AIzaSyD3m0"))
    with pytest.raises(loader.ConfigError) as error:
        loader.platform_file(file)
    assert "AIza" not in str(error.value)


def test_the_api_trusts_the_proxies_that_are_named(file: Path) -> None:
    assert loader.platform_file(None).api.trusted_proxies == []
    file.write_text("api: {trusted_proxies: [10.0.0.5, 10.1.0.0/16, 'fd00::/8'], requests_per_second: 5, burst: 10}")
    api = loader.platform_file(file).api
    assert [str(network) for network in api.trusted_proxies] == ["10.0.0.5/32", "10.1.0.0/16", "fd00::/8"]
    assert (api.requests_per_second, api.burst) == (5, 10)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("10.0.0.5/8", "not an address or a network: write one such as 10.0.0.5 or 10.0.0.0/8, with all host bits 0"),
        ("10", "not an address or a network"),
        ("0.0.0.0/0", "this network has all addresses"),
        ("'::/0'", "this network has all addresses"),
    ],
)
def test_trusted_proxy_that_is_invalid_or_covers_every_address_is_refused(file: Path, value: str, problem: str) -> None:
    file.write_text(f"api: {{trusted_proxies: [127.0.0.1, {value}]}}")
    assert refused(file)[0].startswith(f"api.trusted_proxies.1: {problem}")


REMOTE = "mcp_servers: {k: {transport: {type: http, url: 'https://h/mcp', %s}}}"


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("headers: {'X Key': v}", "headers: one of the names is not a header name such as X-Api-Key"),
        ("headers: {mcp-session-id: v}", "headers: mcp-session-id cannot be set: the protocol decides it"),
        ("headers: {Host: v}", "headers: Host cannot be set: the protocol decides it"),
        ("headers: {X-A: v, x-a: w}", "headers: x-a appears twice"),
        (
            'headers: {X-A: "s3cret\\r\\nHost: x"}',
            "headers: the value of X-A is not valid in a header: write printable ASCII on one line",
        ),
        ("headers: {X-A: ''}", "headers: the value of X-A is not valid in a header: write printable ASCII on one line"),
        ("bearer_token_env: s3cret-itself", "bearer_token_env: not an environment variable's name, such as"),
        ("bearer_token: s3cret", "unknown: bearer_token. Available: url, headers, bearer_token_env"),
        ("certificate_file: /c", "key_file: missing: a certificate and its key go together"),
        ("key_file: /c", "certificate_file: missing: a certificate and its key go together"),
        ("ca_file: /c, verify: false", "ca_file: of no use without verify"),
        (
            "bearer_token_file: /t, headers: {authorization: Basic s3cret}",
            "headers: the bearer token is sent as Authorization: set only one of them",
        ),
        ("timeout: 0s", "timeout: must be from 1ms to 1d"),
        (
            "url: 'http://u:s3cret@h/mcp', bearer_token_env: TOKEN",
            "url: its user is sent as Authorization, as is another setting: set only one of them",
        ),
    ],
)
def test_wrong_credentials_for_a_server_are_reported_without_their_values(file: Path, keys: str, problem: str) -> None:
    file.write_text(REMOTE.replace("url: 'https://h/mcp', ", "") % keys if "url:" in keys else REMOTE % keys)
    (message,) = refused(file)
    assert problem in message
    assert "s3cret" not in message


def test_tls_belongs_to_https(file: Path) -> None:
    file.write_text("mcp_servers: {k: {transport: {type: sse, url: 'http://h/sse', ca_file: /c}}}")
    assert refused(file) == ["mcp_servers.k.transport: ca_file: the url has to begin with https"]


ALERTS = """\
namespaces: [shop]
ingest:
  namespace: {default}
  tokens:
  - {{token_file: /t, namespaces: [shop, {first}]}}
  - {{token_file: /u, namespaces: [{second}]}}
"""


def unserved(own: str, **names: str) -> list[str]:
    read = ALERTS.format(**{"default": own or "shop", "first": "tarsy", "second": "tarsy"} | names).encode()
    try:
        loader.from_bytes(read, file="f", environment={}, own_namespace=own)
    except files.FileError as error:
        return str(error).splitlines()
    return []


def test_namespaces_of_alerts_have_to_be_served() -> None:
    assert unserved("tarsy") == []
    assert unserved("tarsy", default="shop") == []
    remedy = "is not served: add it to namespaces. Served: tarsy, shop"
    assert unserved("tarsy", default="shops", first="other", second="team") == [
        f"f:3: ingest.namespace: 'shops' {remedy}",
        f"f:5: ingest.tokens.0.namespaces.1: 'other' {remedy}",
        f"f:6: ingest.tokens.1.namespaces.0: 'team' {remedy}",
    ]
    assert unserved("", first="other") == [], "a process that does not know its own namespace refuses none"
