"""The model of the platform file: providers, MCP servers, agents and the defaults that chains build on.

It belongs to the platform admin; chains refer to it by name. Keys are the founding documents', in snake case, and
unknown ones are refused: a misspelt limit that is silently ignored is worse than a start that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from tarsy.config.model import providers, server_transports
from tarsy.config.model.budgets import Budget
from tarsy.config.model.deliveries import Receiver
from tarsy.config.model.fields import (
    URL,
    AllowedNamespaces,
    Duration,
    Headers,
    Namespaces,
    Network,
    Origin,
    Part,
    Time,
    Word,
    within,
)
from tarsy.config.model.runbooks import Runbooks, Text
from tarsy.config.model.summarization import Summarization
from tarsy.config.model.webhooks import Ingest
from tarsy.masking import custom_patterns, known_secrets, masker, secret_patterns
from tarsy.resources import base, chains, tool_patterns


class CustomPattern(Part):
    """A pattern that the platform file defines."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,31}$")]
    """The name of the pattern, which its marker shows."""
    pattern: Word
    """The pattern, in RE2's syntax: <https://github.com/google/re2/wiki/Syntax>. It must not match the empty text."""
    replacement: str | None = None
    """The replacement, with groups of the pattern as `$1` or `${name}`; None is `[MASKED:name]`."""

    def compiled(self) -> custom_patterns.CustomPattern:
        """Return the compiled pattern for a masker."""
        return custom_patterns.compile_pattern(name=self.name, pattern=self.pattern, replacement=self.replacement)

    @model_validator(mode="after")
    def _can_be_used(self) -> CustomPattern:
        if self.name in secret_patterns.RESERVED:
            raise ValueError("name: one of the built-in patterns has it: choose another")
        try:
            self.compiled()
        except custom_patterns.CustomPatternError as error:
            raise ValueError(f"{error.field}: {error}") from None
        return self


class DataMasking(Part):
    """The masking of a server's results, before they are stored or sent."""

    enabled: bool = True
    """False masks only Kubernetes Secrets and the known secrets of the process, which are always masked."""
    pattern_groups: list[secret_patterns.Group] = ["security"]
    """Groups of patterns."""
    patterns: list[secret_patterns.Name] = []
    """Patterns in addition to those of the groups."""
    custom_patterns: Annotated[list[CustomPattern], Field(max_length=50)] = []
    """The file's own patterns, applied before the others and in this order."""
    fingerprints: bool = False
    """Adds four digits to markers, the same for the same value in one investigation: `[MASKED:password:7f3a]`."""

    def masker(self, secrets: known_secrets.KnownSecrets) -> masker.Masker:
        """Return the masker of these settings, which also masks the known `secrets`."""
        if not self.enabled:
            return masker.Masker(secrets=secrets, fingerprints=self.fingerprints)
        return masker.Masker(
            secrets=secrets,
            groups=self.pattern_groups,
            names=self.patterns,
            own=[pattern.compiled() for pattern in self.custom_patterns],
            fingerprints=self.fingerprints,
        )

    @model_validator(mode="after")
    def _has_unique_names(self) -> DataMasking:
        names = [pattern.name for pattern in self.custom_patterns]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"custom_patterns.{index}.name: another pattern has this name")
        return self


class AlertMasking(Part):
    """The masking of alerts, before they are stored or sent."""

    enabled: bool = True
    """False masks only Kubernetes Secrets and the known secrets of the process, which are always masked."""
    pattern_group: secret_patterns.Group = "security"
    """The group of patterns."""

    def masker(self, secrets: known_secrets.KnownSecrets) -> masker.Masker:
        """Return the masker of these settings and of the known `secrets`.

        It makes no fingerprints: the sender of an alert could guess secrets with them.
        """
        return masker.Masker(secrets=secrets, groups=[self.pattern_group] if self.enabled else ())


ToolHash = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
"""The hash of a server's description of a tool."""


class Tools(Part):
    """The tool selection of an agent: shell-style patterns over `server.tool`, case-sensitive."""

    allow: tool_patterns.FilePatterns | None = None
    """The allowed tools; None is all, [] is none."""
    deny: tool_patterns.FilePatterns = []
    """The denied tools; deny wins over allow."""


ToolNames = Annotated[list[Annotated[str, Field(min_length=1, max_length=253)]], Field(max_length=200)]


class ServerTools(Part):
    """The tool selection of a server: shell-style patterns over the tools' own names, case-sensitive."""

    allow: ToolNames | None = None
    """The allowed tools; None is all, [] is none."""
    deny: ToolNames = []
    """The denied tools; deny wins over allow."""


class MCPServer(Part):
    """An MCP server whose tools agents may use."""

    transport: server_transports.Transport
    """The connection to the server."""
    stateful: bool = False
    """True if the server keeps state for a connection.

    Each execution then has its own connection, which is closed when it ends.
    """
    instructions: str = ""
    """Instructions that are added to the system prompt of every agent with this server."""
    data_masking: DataMasking = DataMasking()
    """The masking of its results."""
    summarization: Summarization = Summarization()
    """The part of its long results that agents read."""
    tools: ServerTools = ServerTools()
    """The tool selection of the server, for all agents."""
    write_tools: ToolNames = []
    """The writing tools that agents may get: shell-style patterns over the tools' own names. Every tool that its server
    does not mark as read-only counts as writing."""
    selectable: bool = False
    """True lets any alert name this server in its `mcp.servers`, also if its chain's agents do not have it.

    Its `write_tools` are then open to every sender of alerts, on any chain that does not exclude it.
    """
    tool_hashes: dict[Word, ToolHash] = {}
    """The expected hashes of tools, by name, as `GET /api/v1/system/mcp-servers` shows them.

    Tools that are not listed are pinned when they are first seen.
    """
    allowed_namespaces: AllowedNamespaces = None
    """The namespaces whose chains and investigations may use the server, `*` for all that are served; None is the
    operator's own. If a chain of one namespace is used from another, both have to be allowed."""


class Agent(Part):
    """An agent: its tools, its instructions, and the defaults that it overrides."""

    mcp_servers: list[str] = []
    """The servers whose tools the agent may get."""
    custom_instructions: str = ""
    """Instructions at the end of the agent's system prompt."""
    llm_provider: str | None = None
    """The LLM provider of the agent; None is that of `defaults`."""
    iteration_strategy: chains.IterationStrategy | None = None
    """The iteration strategy of the agent; None is that of `defaults`."""
    max_iterations: chains.Iterations | None = None
    """The maximum of model calls before the agent must conclude; None is that of `defaults`."""
    native_tools: list[chains.NativeTool] | None = None
    """The native tools of the agent, instead of its provider's; [] is none."""
    tools: Tools = Tools()
    """The tool selection of the agent."""


class Defaults(Part):
    """The defaults of all chains."""

    llm_provider: str | None = None
    """The LLM provider."""
    fallback_providers: list[str] = []
    """The fallback providers, in the order in which they are used if a provider gives no answer."""
    iteration_strategy: chains.IterationStrategy = "native-thinking"
    """The iteration strategy of agents."""
    max_iterations: chains.Iterations = 20
    """The maximum of model calls before an agent must conclude."""
    alert_masking: AlertMasking = AlertMasking()
    """The masking of alerts, of runbooks and of questions."""
    runbook: Text = ""
    """The runbook for alerts that name none, or whose runbook cannot be fetched; "" is the built-in one. It is the text
    itself and no address."""


class Limits(Part):
    """The limits of calls, executions and investigations."""

    iteration: Duration = Field(default="120s", validate_default=True)
    """The time limit of an iteration's model call, retries included."""
    first_byte: Duration = Field(default="60s", validate_default=True)
    """The longest silence before an answer begins."""
    idle: Duration = Field(default="30s", validate_default=True)
    """The longest silence within an answer."""
    tool_call: Duration = Field(default="60s", validate_default=True)
    """The time limit of a tool call."""
    chat: Duration = Field(default="5m", validate_default=True)
    """The time limit of a question's run."""
    tool_output: Annotated[int, Field(ge=1024)] = 64 * 1024
    """The maximum length of a tool result in a model request, in characters, unless the provider has
    `max_tool_result_tokens`. Of a longer one the middle is cut out and marked. The full result is stored."""
    answer: Annotated[int, Field(ge=1024)] = 1024 * 1024
    """The maximum length of a model answer, in characters, thoughts included; a longer one is refused."""
    answer_calls: Annotated[int, Field(ge=1)] = 100
    """The maximum of tool calls in one model answer; an answer with more is refused."""
    retries: Annotated[int, Field(ge=0)] = 100
    """The maximum of repeated model requests of an investigation; further failed requests are not repeated."""
    provider_calls: Annotated[int, Field(ge=1)] = 32
    """The maximum of concurrent calls to one provider, by process."""
    server_calls: Annotated[int, Field(ge=1)] = 16
    """The maximum of concurrent calls to one MCP server, by process."""
    execution_calls: Annotated[int, Field(ge=1)] = 8
    """The maximum of concurrent tool calls of an execution; further calls of an answer wait for their results."""
    tool_calls: Annotated[int, Field(ge=1)] = 200
    """The maximum number of tool calls of an execution; then its model must conclude."""
    one_tool_calls: Annotated[int, Field(ge=1)] = 50
    """The maximum of calls of the same tool by an execution; with one more it may only conclude."""
    failed_calls: Annotated[int, Field(ge=1)] = 5
    """The maximum of consecutive failed tool calls, in more than one answer; then the execution may only conclude."""


class Queue(Part):
    """The distribution of investigations to processes."""

    slots: Annotated[int, Field(ge=1)] = 50
    """The maximum of investigations that a process runs at once."""
    max_running: Annotated[int, Field(ge=0)] = 0
    """The maximum of investigations that all processes together run at once; 0 is no limit but their slots."""
    lease: Annotated[Time, within("200ms", "1h")] = Field(default="20s", validate_default=True)
    """The time after which the investigations of a silent process are taken over."""
    heartbeat: Annotated[Time, within("100ms", "30m")] = Field(default="5s", validate_default=True)
    """The interval at which a process renews its leases; at most half of `lease`."""
    max_queued: Annotated[int, Field(ge=1)] = 10_000
    """The maximum of queued investigations; further alerts are answered 503, so that their senders retry."""
    max_attempts: Annotated[int, Field(ge=1)] = 5
    """The maximum of consecutive claims without a commit. Then the investigation fails, as it may be what crashes the
    processes."""

    @model_validator(mode="after")
    def _beats_within_its_lease(self) -> Queue:
        if self.heartbeat * 2 > self.lease:
            raise ValueError("heartbeat: must be at most half of lease")
        return self


class Retention(Part):
    """The periods after which the database loses what is old; 0s keeps it for ever."""

    transcripts: Annotated[Time, within("0s", "3650d")] = Field(default="90d", validate_default=True)
    """The time from the end of an investigation, of its last question or its restoration, to its deletion. A chain's
    `transcriptRetentionDays` counts instead. What is deleted is hidden, and can be restored until it is purged."""
    purge: Annotated[Time, within("0s", "365d")] = Field(default="7d", validate_default=True)
    """The time from the deletion of an investigation to its purge, which cannot be undone; 0s purges at once."""
    tool_results: Annotated[Time, within("0s", "3650d")] = Field(default="30d", validate_default=True)
    """The time from the same end to the deletion of the full texts of tool results that were cut for the model. 0s
    keeps them as long as the transcript."""
    audit: Annotated[Time, within("0s", "3650d")] = Field(default="400d", validate_default=True)
    """The time for which rows of the audit are kept."""
    tool_pins: Annotated[Time, within("0s", "3650d")] = Field(default="90d", validate_default=True)
    """The time for which the pinned tools of an MCP server are remembered after it has left the platform file."""
    dry_run: bool = False
    """True deletes nothing by these periods, and logs each hour how much would be deleted."""


class API(Part):
    """The callers of the API, and their limits."""

    trusted_proxies: Annotated[list[Network], Field(max_length=1000)] = []
    """The addresses of proxies whose X-Forwarded-User, -Email, -Groups and -For headers are trusted."""
    allowed_origins: Annotated[list[Origin], Field(max_length=1000)] = []
    """The origins (scheme and host) whose pages may open WebSockets, in addition to the API's own host."""
    requests_per_second: Annotated[int, Field(ge=1)] = 200
    """The limit of requests of one caller to one process; further ones are answered 429."""
    burst: Annotated[int, Field(ge=1)] = 2000
    """The maximum of requests that a caller may send at once after a silence."""
    public_url: Origin | None = None
    """The public address of the pages. Links use it, and requests of pages at this origin may change things."""
    connections_per_address: Annotated[int, Field(ge=1)] = 256
    """A setting without effect, which the next release refuses: an ingress limits connections by address."""


class Traces(Part):
    """The traces of investigations for an OpenTelemetry collector (OTLP over HTTP, protobuf)."""

    endpoint: URL | None = None
    """The address of the collector, without `/v1/traces`; None is OTEL_EXPORTER_OTLP_ENDPOINT, and without that no
    traces are sent."""
    headers: Headers = {}
    """The headers of each request to `endpoint`. Give secrets by `{{.VAR}}` and do not write them here."""
    contents: bool = False
    """True sends prompts, answers, arguments and results along, masked as they are stored. Everyone who may read the
    traces can then read them."""

    @model_validator(mode="after")
    def _has_address_for_headers(self) -> Self:
        if self.headers and self.endpoint is None:
            raise ValueError("headers: of no use without endpoint; OTEL_EXPORTER_OTLP_HEADERS are the environment's")
        return self


class Web(Part):
    """The pages."""

    enabled: bool = True
    """Whether the API's process serves the pages for browsers, too."""


def _not_reserved(name: str) -> str:
    """Return a server's name if TARSy's own tools do not have it."""
    if name == tool_patterns.RESULT_SERVER:
        raise ValueError(
            f"the name belongs to TARSy's own tools ({', '.join(tool_patterns.RESULT_TOOLS)}): use another"
        )
    return name


SERVER_NAME = "^_?[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*$"
ServerName = Annotated[str, Field(pattern=SERVER_NAME), AfterValidator(_not_reserved)]
"""A server's name, without `__` in it or `_` at its end: the wire names its tools `server__tool`, and `a.b__c` must not
be `a__b.c`."""


Room = Literal[
    "agent",
    "api",
    "auth",
    "config",
    "controller",
    "deliveries",
    "engine",
    "ingest",
    "kube",
    "live",
    "llm",
    "masking",
    "probes",
    "process",
    "serve",
    "store",
    "templating",
    "tools",
    "transcript",
    "transport",
    "views",
    "web",
    "worker",
]
"""The parts of the program whose log levels can be set: the packages and modules below `tarsy`."""


class Logs(Part):
    """The levels of the log."""

    levels: dict[Room, Literal["debug", "info", "warning", "error"]] = {}
    """The least level that is logged of a part of the program; others have that of `--log-level`."""


BUDGET_NAME = "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
"""The pattern of a budget's name: a DNS-1123 label."""


Kind: TypeAlias = Literal["agent", "LLM provider", "MCP server"]
"""The kinds of parts that chains refer to by name, as messages call them."""


class Platform(Part):
    """The platform file."""

    defaults: Defaults = Defaults()
    llm_providers: dict[base.Reference, providers.Provider] = {}
    mcp_servers: dict[ServerName, MCPServer] = {}
    agents: dict[base.Reference, Agent] = {}
    limits: Limits = Limits()
    queue: Queue = Queue()
    ingest: Ingest = Ingest()
    retention: Retention = Retention()
    budgets: dict[Annotated[str, Field(pattern=BUDGET_NAME)], Budget] = {}
    runbooks: Runbooks = Runbooks()
    api: API = API()
    web: Web = Web()
    logs: Logs = Logs()
    traces: Traces = Traces()
    deliveries: dict[base.Name, Receiver] = {}
    """The receivers of messages about investigations, by name."""
    namespaces: Namespaces = []
    """The namespaces that are served beside the operator's own. A change needs a restart."""
    _not_allowed: Mapping[tuple[Kind, str], str] = PrivateAttr(default_factory=dict)

    def restricted(
        self,
        *,
        llm_providers: Mapping[str, providers.Provider],
        mcp_servers: Mapping[str, MCPServer],
        not_allowed: Mapping[tuple[Kind, str], str],
    ) -> Platform:
        """Return this platform with these providers and servers only; see `reach.platform_for`."""
        copy = self.model_copy(update={"llm_providers": llm_providers, "mcp_servers": mcp_servers})
        copy._not_allowed = not_allowed
        return copy

    def not_allowed(self, kind: Kind, name: str) -> str:
        """Return why a restricted platform lacks a provider or server, as a relative clause; "" if it does not."""
        return self._not_allowed.get((kind, name), "")
