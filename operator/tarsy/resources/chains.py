"""The kind AgentChain: alert types, and the stages that investigate them in order."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from tarsy.resources import base, tool_patterns

KIND = "AgentChain"
PLURAL = "agentchains"

SynthesisStrategy = Literal["synthesis", "synthesis-native-thinking"]
IterationStrategy = Literal["react", "react-stage", "react-final-analysis", "native-thinking", SynthesisStrategy]
Iterations = Annotated[int, Field(ge=1, le=100)]
Servers = Annotated[list[base.Reference], Field(max_length=20)]
Fallbacks = Annotated[list[base.Reference], Field(max_length=5)]
NativeTool = Literal["google_search", "code_execution", "url_context", "web_search"]
FailurePolicy = Literal["Continue", "Stop"]
SuccessPolicy = Literal["any", "all"]


INSTRUCTIONS_MAX, DESCRIPTION_MAX = 16384, 1024
"""The maximum lengths, in characters."""


class Tools(base.Model):
    """The tools of its servers that an agent gets: shell-style patterns over `server.tool`, case-sensitive."""

    allow: Annotated[
        tool_patterns.Patterns | None, Field(description="The allowed tools: all if missing, none if empty.")
    ] = None
    deny: Annotated[
        tool_patterns.Patterns | None, Field(description="The denied tools, even if `allow` matches them.")
    ] = None


class Agent(base.Model):
    """An agent of this chain: its tools, its instructions, and the defaults that it overrides."""

    name: Annotated[
        str,
        Field(
            min_length=1,
            max_length=253,
            pattern=r"^[A-Za-z0-9._-]+$",
            description="Unique in the chain. Replaces an agent of the same name in the platform configuration.",
        ),
    ]
    mcp_servers: Annotated[Servers, Field(description="Servers of the platform configuration; none if missing.")] = []
    custom_instructions: Annotated[
        str, Field(max_length=INSTRUCTIONS_MAX, description="The end of its system prompt.")
    ] = ""
    llm_provider: Annotated[base.Reference | None, Field(description="A provider of the platform configuration.")] = (
        None
    )
    iteration_strategy: Annotated[IterationStrategy | None, Field(description="The iteration strategy.")] = None
    max_iterations: Annotated[
        Iterations | None, Field(description="The number of model calls after which it must conclude.")
    ] = None
    native_tools: Annotated[
        list[NativeTool] | None,
        Field(
            max_length=10,
            description="Tools of the LLM provider itself. Replaces the provider's setting; [] means none.",
        ),
    ] = None
    tools: Annotated[Tools | None, Field(description="The tools of its servers that it gets; all if missing.")] = None


class StageAgent(base.Model):
    """One of several agents of a stage, with the settings of the stage that it overrides."""

    name: Annotated[base.Reference, Field(description="An agent of this chain, or of the platform configuration.")]
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the stage's provider.")] = None
    iteration_strategy: Annotated[IterationStrategy | None, Field(description="Replaces the stage's strategy.")] = None
    max_iterations: Annotated[
        Iterations | None, Field(description="The number of model calls after which it must conclude.")
    ] = None
    mcp_servers: Annotated[Servers | None, Field(description="Replaces the stage's servers; [] means none.")] = None
    tools: Annotated[Tools | None, Field(description="Narrows the stage's tools.")] = None
    fallback_providers: Annotated[
        Fallbacks | None, Field(description="Replaces the stage's fallback providers; [] means none.")
    ] = None


class Synthesis(base.Model):
    """The synthesis of the analyses of a stage's agents. Settings of the chain and the stage do not apply to it."""

    agent: Annotated[
        base.Reference | None,
        Field(description="An agent of this chain, or of the platform configuration; SynthesisAgent if missing."),
    ] = None
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the agent's provider.")] = None
    iteration_strategy: Annotated[SynthesisStrategy | None, Field(description="Replaces the agent's strategy.")] = None


class ExecutiveSummary(base.Model):
    """The short summary of an investigation for people. Settings of the chain do not apply to it."""

    enabled: Annotated[bool, Field(description="Whether a summary is written.")] = True
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the platform's default provider.")] = (
        None
    )


class Chat(base.Model):
    """The agent that answers questions about an ended investigation. Settings of the chain do not apply to it."""

    enabled: Annotated[bool, Field(description="Whether questions are accepted.")] = True
    agent: Annotated[
        base.Reference | None,
        Field(description="An agent of this chain, or of the platform configuration; ChatAgent if missing."),
    ] = None
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the agent's provider.")] = None
    max_iterations: Annotated[
        Iterations | None, Field(description="The number of model calls after which it must answer.")
    ] = None


_RULES: tuple[dict[str, JsonValue], ...] = (
    {
        "rule": "has(self.agent) != has(self.agents)",
        "message": "give either agent (with replicas, if you like) or agents",
    },
    {
        "rule": "!has(self.replicas) || has(self.agent)",
        "message": "replicas goes with agent: list agents as often as they are wanted",
        "fieldPath": ".replicas",
    },
    {
        "rule": "!has(self.synthesis) || (has(self.agents) && self.agents.size() > 1)"
        " || (has(self.replicas) && self.replicas > 1)",
        "message": "synthesis goes with several agents: of one alone there is nothing to bring together",
        "fieldPath": ".synthesis",
    },
)
"""The rules of a stage in CEL; `broken_rules` has the same rules in Python, for files."""


def broken_rules(stage: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rules that a stage of a file breaks: the key ("" for the whole stage), and the message."""
    has = {key for key, value in stage.items() if value is not None}
    agents, replicas = stage.get("agents"), stage.get("replicas")
    is_several = (isinstance(agents, list) and len(agents) > 1) or replicas not in (None, 1)
    broken = [("agent" in has) == ("agents" in has), "replicas" in has and "agent" not in has]
    for rule, is_broken in zip(_RULES, [*broken, "synthesis" in has and not is_several], strict=True):
        if is_broken:
            yield str(rule.get("fieldPath", "")).removeprefix("."), str(rule["message"])


class Stage(base.Model):
    """One stage: its agents, which run in parallel, and the settings of the agents that it overrides."""

    model_config = ConfigDict(json_schema_extra={"x-kubernetes-validations": [*_RULES]})

    name: Annotated[base.Name, Field(description="Unique in the chain.")]
    agent: Annotated[
        base.Reference | None, Field(description="An agent of this chain, or of the platform configuration.")
    ] = None
    replicas: Annotated[
        int | None, Field(ge=1, le=10, description="The number of parallel executions of `agent`; 1 if missing.")
    ] = None
    agents: Annotated[
        list[StageAgent] | None,
        Field(min_length=1, max_length=10, description="Several agents that run in parallel, instead of `agent`."),
    ] = None
    success_policy: Annotated[
        SuccessPolicy | None,
        Field(description="any (the default): at least one agent must complete. all: every agent must complete."),
    ] = None
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the chain's provider.")] = None
    iteration_strategy: Annotated[IterationStrategy | None, Field(description="The iteration strategy.")] = None
    max_iterations: Annotated[
        Iterations | None, Field(description="The number of model calls after which the agent must conclude.")
    ] = None
    mcp_servers: Annotated[Servers | None, Field(description="Replaces the agent's servers; [] means none.")] = None
    tools: Annotated[Tools | None, Field(description="Narrows the tools of its agents.")] = None
    fallback_providers: Annotated[
        Fallbacks | None, Field(description="Replaces the chain's fallback providers; [] means none.")
    ] = None
    timeout_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=24 * 3600,
            description="The time limit of the stage, in seconds from its start; then it ends as TimedOut.",
        ),
    ] = None
    synthesis: Annotated[
        Synthesis | None,
        Field(description="Settings of the synthesis, which follows every stage with several agents."),
    ] = None

    @property
    def members(self) -> list[StageAgent]:
        """Its agents, in order, one for each execution."""
        return self.agents or [StageAgent.model_construct(name=self.agent or "")] * (self.replicas or 1)

    @property
    def shown_names(self) -> list[str]:
        """The display names of its agents, in order: `NAME-1`, `NAME-2` if a name occurs several times."""
        names = [member.name for member in self.members]
        taken = {name for name in names if names.count(name) == 1}
        display_names = []
        for name in names:
            if names.count(name) > 1:
                numbered = (f"{name}-{number}" for number in itertools.count(1))
                name = next(candidate for candidate in numbered if candidate not in taken)
                taken.add(name)
            display_names.append(name)
        return display_names


GROUP_WINDOW_SECONDS = 600
"""The `grouping.windowSeconds` of chains that have none."""
GROUP_WINDOW_MAX = 7 * 24 * 3600


LABELS_RULE = "labels goes with by: Labels, and by: Labels needs them"


class Grouping(base.Model):
    """The alerts that are one investigation."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": "has(self.labels) == (self.by == 'Labels')",
                    "message": LABELS_RULE,
                    "fieldPath": ".labels",
                }
            ]
        }
    )

    by: Annotated[
        Literal["Alert", "Notification", "Labels", "Owner"],
        Field(
            description="The alerts that are one investigation: each alone, those of one group of Alertmanager or"
            " Grafana, those with equal values of all `labels`, or those about one workload or node."
        ),
    ]
    labels: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=253)]] | None,
        Field(
            min_length=1,
            max_length=10,
            description="The labels that are compared. An alert that lacks one is investigated alone.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None
    window_seconds: Annotated[
        int | None,
        Field(
            ge=0,
            le=GROUP_WINDOW_MAX,
            description="The time after the end of an investigation with a result in which alerts of a type and"
            f" severity that its agents were told of are counted on it; {GROUP_WINDOW_SECONDS} if missing.",
        ),
    ] = None

    @property
    def window(self) -> int:
        """The window, in seconds."""
        return GROUP_WINDOW_SECONDS if self.window_seconds is None else self.window_seconds


RECURRENCE_SECONDS = 24 * 3600
"""The `recurrence.withinSeconds` of chains that have none."""


class Recurrence(base.Model):
    """The treatment of an alert that was investigated before and comes again."""

    mode: Annotated[
        Literal["Off", "Recheck"],
        Field(
            description="Off: each is investigated. Recheck: the calls of the earlier investigation are made again; if"
            " their results are alike, the investigation ends with the earlier result, without a model."
        ),
    ]
    within_seconds: Annotated[
        int | None,
        Field(
            ge=60,
            le=7 * 24 * 3600,
            description="The time after the end of the last full investigation in which its calls are made again;"
            f" {RECURRENCE_SECONDS} if missing.",
        ),
    ] = None

    @property
    def within(self) -> int:
        """The time in which calls are made again, in seconds; 0 if none are."""
        if self.mode == "Off":
            return 0
        return RECURRENCE_SECONDS if self.within_seconds is None else self.within_seconds


DEADLINE_SECONDS = 900
"""The `activeDeadlineSeconds` of chains that have none."""


class Spec(base.Model):
    """The alert types of a chain, and its stages."""

    alert_types: Annotated[
        list[base.AlertType],
        Field(
            min_length=1,
            max_length=50,
            description="The alert types that this chain investigates.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    description: Annotated[str | None, Field(max_length=DESCRIPTION_MAX, description="For people.")] = None
    llm_provider: Annotated[base.Reference | None, Field(description="A provider of the platform configuration.")] = (
        None
    )
    iteration_strategy: Annotated[
        IterationStrategy | None, Field(description="The iteration strategy of the agents.")
    ] = None
    max_iterations: Annotated[
        Iterations | None, Field(description="The number of model calls after which an agent must conclude.")
    ] = None
    active_deadline_seconds: Annotated[
        int | None,
        Field(
            ge=1,
            le=7 * 24 * 3600,
            description=f"The time limit, in seconds from the first claim; {DEADLINE_SECONDS} if missing.",
        ),
    ] = None
    max_running: Annotated[
        int | None,
        Field(
            ge=1,
            le=10000,
            description="The maximum of its investigations that run at once, over all workers; no limit if missing.",
        ),
    ] = None
    grouping: Annotated[
        Grouping | None, Field(description="The alerts that are one investigation; each alone if missing.")
    ] = None
    recurrence: Annotated[
        Recurrence | None,
        Field(description="The treatment of an alert that comes again; each is investigated if missing."),
    ] = None
    on_resolved: Annotated[
        Literal["Continue", "Cancel"] | None,
        Field(description="The effect on an investigation when its alert resolves: Continue (the default) or Cancel."),
    ] = None
    ttl_seconds_after_finished: Annotated[
        base.Seconds | None,
        Field(description="The time to live of ended investigations in the cluster; 7 days if missing."),
    ] = None
    transcript_retention_days: Annotated[
        int | None,
        Field(
            ge=0,
            le=3650,
            description=(
                "The days from the end of an investigation to the deletion of its transcript; 0 keeps it for ever. "
                "If missing, the platform file's retention.transcripts counts."
            ),
        ),
    ] = None
    mcp_servers: Annotated[Servers | None, Field(description="Replaces the agents' servers; [] means none.")] = None
    fallback_providers: Annotated[
        Fallbacks | None,
        Field(description="Asked in this order if a provider gives no answer. Replaces the platform's; [] means none."),
    ] = None
    failure_policy: Annotated[
        FailurePolicy | None,
        Field(description="After a failed stage, Continue (the default) runs the next stage, and Stop runs none."),
    ] = None
    agents: Annotated[
        list[Agent] | None,
        Field(
            max_length=20,
            description="Agents that only this chain has.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    stages: Annotated[
        list[Stage],
        Field(
            min_length=1,
            max_length=20,
            description="The stages, run in this order.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]
    executive_summary: Annotated[
        ExecutiveSummary | None, Field(description="The short summary for people; written unless it is disabled.")
    ] = None
    chat: Annotated[Chat | None, Field(description="Questions after the end; accepted unless they are disabled.")] = (
        None
    )

    notify: Annotated[
        list[base.Name] | None,
        Field(
            max_length=20,
            description=(
                "Receivers of `deliveries` in the platform configuration that hear of its investigations, whatever "
                "their rules say, in the namespaces that they allow."
            ),
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ] = None

    @property
    def is_summarised(self) -> bool:
        """Whether its investigations get an executive summary."""
        return self.executive_summary is None or self.executive_summary.enabled

    @property
    def takes_questions(self) -> bool:
        """Whether people may ask about its investigations."""
        return self.chat is None or self.chat.enabled


class Status(base.Model):
    """The state of the chain, as TARSy reports it."""

    observed_generation: int = -1
    hash: Annotated[str, Field(max_length=64, description="The digest of the spec, which investigations record.")] = ""
    conditions: base.Conditions = []


class AgentChain(base.Model):
    """A chain as an object in the cluster."""

    metadata: base.ObjectMeta
    spec: Spec
    status: Status | None = None

    def digest(self) -> str:
        """Return 16 hex digits that change with the spec."""
        return hashlib.sha256(self.spec.model_dump_json(by_alias=True, exclude_none=True).encode()).hexdigest()[:16]
