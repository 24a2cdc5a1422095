"""The model of the platform file: providers, MCP servers, agents and the defaults that chains build on.

It belongs to the platform admin; chains refer to it by name. Keys are the founding documents', in snake case, and
unknown ones are refused: a misspelt limit that is silently ignored is worse than a start that fails.
"""

from __future__ import annotations

import re
import urllib.parse
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from tarsy.config.model import providers
from tarsy.config.model.fields import URL, Duration, Network, Origin, Part, Time, Variable, Word, within
from tarsy.config.model.runbooks import Runbooks, Text
from tarsy.config.model.summarization import Summarization
from tarsy.masking import custom_patterns, known_secrets, masker, secret_patterns
from tarsy.resources import base, chains, tool_patterns


class StdioTransport(Part):
    """A server that TARSY starts itself and speaks to over its standard streams."""

    type: Literal["stdio"]
    command: Word
    """A program on the operator's PATH, or where it is."""
    args: list[str] = []
    """The arguments of the program."""
    env: dict[str, str] = {}
    """Added to HOME, LOGNAME, PATH, SHELL, TERM and USER, the only variables that are inherited."""


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,256}")
_HEADER_VALUE = re.compile(r"[!-~]([ !-~]*[!-~])?")
_OUR_HEADERS = re.compile(
    r"accept|accept-encoding|connection|content-.*|host|last-event-id|mcp-.*|te|trailer|transfer-encoding|upgrade",
    re.IGNORECASE,
)
"""The headers that the protocols set themselves."""


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Headers that may be sent; what is said of others shows no value."""
    names: set[str] = set()
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError("one of the names is no header's, such as X-Api-Key")
        if _OUR_HEADERS.fullmatch(name):
            raise ValueError(f"{name} is not to be chosen: the protocol says it")
        if name.lower() in names:
            raise ValueError(f"{name} is there twice")
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} is none that a header may have: printable ASCII on one line")
        names.add(name.lower())
    return headers


class _Remote(Part):
    """A server that runs elsewhere. What is sent to it, secrets above all, goes to the host of its address only."""

    url: URL
    """Where it is, with the path."""
    headers: Annotated[dict[str, str], Field(max_length=50), AfterValidator(_headers)] = {}
    """Sent with each request. A secret is better given by `{{.VAR}}` than written there."""
    bearer_token_env: Variable | None = None
    """The environment variable that holds a token, sent as `Authorization: Bearer`."""
    bearer_token_file: Path | None = None
    """A file that holds it, such as a mounted Secret; it goes before `bearer_token_env`."""
    ca_file: Path | None = None
    """The authorities, in PEM, of which one has signed the server's certificate; None is those of the system."""
    certificate_file: Path | None = None
    """Our own certificate in PEM, for a server that asks for one; with `key_file`."""
    key_file: Path | None = None
    """Its key in PEM, without a passphrase."""
    verify: bool = True
    """False accepts any certificate: everybody on the way can read the requests, tokens included."""
    timeout: Duration = Field(default="5m", validate_default=True)
    """How long it may take to answer one request; `limits.tool_call` holds for calls as well."""

    @model_validator(mode="after")
    def _go_together(self) -> Self:
        is_tls = self.url.lower().startswith("https:")
        for key in ("ca_file", "certificate_file", "key_file"):
            if getattr(self, key) is not None and not is_tls:
                raise ValueError(f"{key}: the url has to begin with https")
        if (self.certificate_file is None) != (self.key_file is None):
            missing = "key_file" if self.key_file is None else "certificate_file"
            raise ValueError(f"{missing}: missing: a certificate and its key go together")
        if self.ca_file is not None and not self.verify:
            raise ValueError("ca_file: of no use without verify")
        has_user = "@" in urllib.parse.urlsplit(self.url).netloc
        has_token = self.bearer_token_env is not None or self.bearer_token_file is not None
        if has_token and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers: Authorization is what the bearer token is sent as: give one of them")
        if has_user and (has_token or any(name.lower() == "authorization" for name in self.headers)):
            raise ValueError(
                "url: a user in it is sent as Authorization, and so is what stands beside it: give one of them"
            )
        return self


class HTTPTransport(_Remote):
    """A server that runs elsewhere, over streamable HTTP."""

    type: Literal["http"]


class SSETransport(_Remote):
    """A server that runs elsewhere, over HTTP with server-sent events: what there was before streamable HTTP."""

    type: Literal["sse"]


RemoteTransport: TypeAlias = HTTPTransport | SSETransport
Transport = Annotated[StdioTransport | HTTPTransport | SSETransport, Field(discriminator="type")]


class CustomPattern(Part):
    """A pattern of one's own."""

    name: Annotated[str, Field(pattern="^[a-z][a-z0-9_]{0,31}$")]
    """The name, which its marker shows."""
    pattern: Word
    """The pattern, in RE2's syntax: <https://github.com/google/re2/wiki/Syntax>. It must not match the empty text."""
    replacement: str | None = None
    """The replacement, with groups of the pattern as `$1` or `${name}`; None is `[MASKED:name]`."""

    def compiled(self) -> custom_patterns.CustomPattern:
        """As a masker takes it."""
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
    """False leaves only Kubernetes Secrets and what the process was given masked, which always are."""
    pattern_groups: list[secret_patterns.Group] = ["security"]
    """Groups of patterns."""
    patterns: list[secret_patterns.Name] = []
    """Patterns beside those of the groups."""
    custom_patterns: Annotated[list[CustomPattern], Field(max_length=50)] = []
    """Patterns of one's own, looked for before the others and in this order."""
    fingerprints: bool = False
    """Whether markers have four digits, the same for the same value in one investigation: `[MASKED:password:7f3a]`."""

    def masker(self, secrets: known_secrets.KnownSecrets) -> masker.Masker:
        """The masker of these settings, which also masks the known `secrets`."""
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
    def _named_apart(self) -> DataMasking:
        names = [pattern.name for pattern in self.custom_patterns]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise ValueError(f"custom_patterns.{index}.name: the name of another one, too")
        return self


class AlertMasking(Part):
    """The masking of alerts, before they are stored or sent."""

    enabled: bool = True
    """False leaves only Kubernetes Secrets and what the process was given masked, which always are."""
    pattern_group: secret_patterns.Group = "security"
    """The group of patterns."""

    def masker(self, secrets: known_secrets.KnownSecrets) -> masker.Masker:
        """The masker of these settings and of the known `secrets`.

        It makes no fingerprints, by which an alert's sender could guess.
        """
        return masker.Masker(secrets=secrets, groups=[self.pattern_group] if self.enabled else ())


ToolHash = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
"""The hash of what a server says of a tool."""


class Tools(Part):
    """Which tools of its servers an agent gets: shell-style patterns over `server.tool`, case counting."""

    allow: tool_patterns.FilePatterns | None = None
    """Only these; None is all, [] is none."""
    deny: tool_patterns.FilePatterns = []
    """Not these, whatever `allow` says."""


ToolNames = Annotated[list[Annotated[str, Field(min_length=1, max_length=253)]], Field(max_length=200)]


class ServerTools(Part):
    """Which tools of this server anybody gets: shell-style patterns over the tools' own names, case counting."""

    allow: ToolNames | None = None
    """Only these; None is all, [] is none."""
    deny: ToolNames = []
    """Not these, whatever `allow` says."""


class MCPServer(Part):
    """An MCP server whose tools agents may use."""

    transport: Transport
    """How it is reached."""
    stateful: bool = False
    """Whether the server keeps state for a connection.

    Then each execution has a connection of its own, which is closed at its end.
    """
    instructions: str = ""
    """Added to the system prompt of every agent that has this server."""
    data_masking: DataMasking = DataMasking()
    """The masking of its results."""
    summarization: Summarization = Summarization()
    """The summarization of its long results."""
    tools: ServerTools = ServerTools()
    """Which of its tools anybody gets."""
    write_tools: ToolNames = []
    """The tools that may write and are offered all the same: shell-style patterns over the tools' own names. What a
    server does not mark as only reading counts as writing."""
    selectable: bool = False
    """Whether an alert may name it in its `mcp.servers`, whatever servers its chain's agents have.

    Its `write_tools` are then open to everybody who may post an alert, on any chain that does not exclude it.
    """
    tool_hashes: dict[Word, ToolHash] = {}
    """The expected hashes of tools, by name, as `GET /api/v1/system/mcp-servers` shows them.

    Other tools: as first seen.
    """


class Agent(Part):
    """An agent: its tools, its instructions and what it overrides of the defaults."""

    mcp_servers: list[str] = []
    """The servers whose tools it has."""
    custom_instructions: str = ""
    """The end of its system prompt."""
    llm_provider: str | None = None
    """The provider that it asks; None is the one of `defaults`."""
    iteration_strategy: chains.IterationStrategy | None = None
    """How it iterates; None is as `defaults` say."""
    max_iterations: chains.Iterations | None = None
    """Model calls before it must conclude; None is as `defaults` say."""
    native_tools: list[chains.NativeTool] | None = None
    """Replaces its provider's; [] means none."""
    tools: Tools = Tools()
    """Which tools of its servers it gets."""


class Defaults(Part):
    """The defaults of all chains."""

    llm_provider: str | None = None
    """The provider that is asked."""
    fallback_providers: list[str] = []
    """Asked in this order, where a provider gives no answer."""
    iteration_strategy: chains.IterationStrategy = "native-thinking"
    """How agents iterate."""
    max_iterations: chains.Iterations = 20
    """Model calls before an agent must conclude."""
    alert_masking: AlertMasking = AlertMasking()
    """The masking of alerts, of runbooks and of questions."""
    runbook: Text = ""
    """The text that agents go by where an alert names no runbook, or it cannot be fetched; "" is what is built in. The
    text itself: addresses come with alerts."""


class Limits(Part):
    """How long and how much one call may take."""

    iteration: Duration = Field(default="120s", validate_default=True)
    """One iteration's model call, retries included."""
    first_byte: Duration = Field(default="60s", validate_default=True)
    """Silence before an answer begins."""
    idle: Duration = Field(default="30s", validate_default=True)
    """Silence within an answer."""
    tool_call: Duration = Field(default="60s", validate_default=True)
    """One tool call."""
    chat: Duration = Field(default="5m", validate_default=True)
    """One question's run."""
    tool_output: Annotated[int, Field(ge=1024)] = 64 * 1024
    """Characters of a tool's result that a model is shown, but for providers that say `max_tool_result_tokens`: the
    middle of a longer one is left out, and that is told. The whole is kept."""
    answer: Annotated[int, Field(ge=1024)] = 1024 * 1024
    """Characters of one model answer, thoughts included; more is refused."""
    answer_calls: Annotated[int, Field(ge=1)] = 100
    """Tool calls that one model answer may ask for; more are refused."""
    retries: Annotated[int, Field(ge=0)] = 100
    """Repeated model requests of one investigation in all; what fails beyond them fails."""
    provider_calls: Annotated[int, Field(ge=1)] = 32
    """Calls to one provider at once, a process."""
    server_calls: Annotated[int, Field(ge=1)] = 16
    """Calls to one MCP server at once, a process."""
    execution_calls: Annotated[int, Field(ge=1)] = 8
    """Tool calls of one execution at once; those of an answer beyond them wait until these have results."""
    tool_calls: Annotated[int, Field(ge=1)] = 200
    """Tool calls that one execution may ask for in all; then its model is told, and may only conclude."""
    one_tool_calls: Annotated[int, Field(ge=1)] = 50
    """Calls of one and the same tool that one execution may ask for; with one more it may only conclude."""
    failed_calls: Annotated[int, Field(ge=1)] = 5
    """Tool calls of one execution that may fail in a row, in more than one answer; then it may only conclude."""


class Queue(Part):
    """How investigations are shared among processes."""

    slots: Annotated[int, Field(ge=1)] = 50
    """Investigations that one process runs at once."""
    max_running: Annotated[int, Field(ge=0)] = 0
    """Investigations that all processes run at once; 0 is no limit but their slots."""
    lease: Annotated[Time, within("200ms", "1h")] = Field(default="20s", validate_default=True)
    """How long a silent process keeps its investigations."""
    heartbeat: Annotated[Time, within("100ms", "30m")] = Field(default="5s", validate_default=True)
    """How often a process renews its leases; well below `lease`."""
    max_queued: Annotated[int, Field(ge=1)] = 10_000
    """Investigations that may wait for a worker; more are answered 503, so that their senders keep them."""
    max_attempts: Annotated[int, Field(ge=1)] = 5
    """Claims in a row that bring no commit before an investigation is given up: it may be what ends the processes."""

    @model_validator(mode="after")
    def _beats_within_its_lease(self) -> Queue:
        if self.heartbeat * 2 > self.lease:
            raise ValueError("heartbeat: must be at most half of lease")
        return self


class Ingest(Part):
    """The handling of alerts from webhooks."""

    alert_type_label: Word = "alert_type"
    """The label that names an alert's type; alertname where it is missing."""
    default_alert_type: base.AlertType | None = None
    """The type of alerts that no chain takes; None leaves them alone."""
    cooldown: Annotated[Time, within("0s", "365d")] = Field(default="5m", validate_default=True)
    """How long after its end an investigation still stands for new episodes of its alert; 0s is not at all. One that
    failed stands for its alert a minute at least, the second in a row for 4 cool-downs, later ones for 16."""
    dedup_window: Annotated[Time, within("1s", "365d")] = Field(default="7d", validate_default=True)
    """How long an alert episode is remembered, past the deletion of its investigation."""


class API(Part):
    """The callers of the API, and their limits."""

    trusted_proxies: Annotated[list[Network], Field(max_length=1000)] = []
    """The addresses of proxies that are trusted with X-Forwarded-User, -Email, -Groups and -For."""
    allowed_origins: Annotated[list[Origin], Field(max_length=1000)] = []
    """The origins (scheme and host) whose pages may open WebSockets, beside the API's own host."""
    requests_per_second: Annotated[int, Field(ge=1)] = 200
    """The limit for one caller and process; requests beyond it are answered 429."""
    burst: Annotated[int, Field(ge=1)] = 2000
    """Requests that one caller may have had before, if it was silent for long enough."""
    public_url: Origin | None = None
    """The address at which people reach the pages. Links lead there, and changes by its pages are accepted."""
    connections_per_address: Annotated[int, Field(ge=1)] = 256
    """Without effect, and refused from the next release on: an ingress limits connections by address."""


SERVER_NAME = "^_?[A-Za-z0-9-]+(_[A-Za-z0-9-]+)*$"
ServerName = Annotated[str, Field(pattern=SERVER_NAME)]
"""A server's name, without `__` in it or `_` at its end: the wire names its tools `server__tool`, and `a.b__c` must not
be `a__b.c`."""


class Platform(Part):
    """The whole file."""

    defaults: Defaults = Defaults()
    llm_providers: dict[base.Reference, providers.Provider] = {}
    mcp_servers: dict[ServerName, MCPServer] = {}
    agents: dict[base.Reference, Agent] = {}
    limits: Limits = Limits()
    queue: Queue = Queue()
    ingest: Ingest = Ingest()
    runbooks: Runbooks = Runbooks()
    api: API = API()
