"""The kind AlertInvestigation: one alert, investigated once.

Its spec cannot change, except the fields in `MUTABLE`. Its status is written only by the projector, and is a pure
function of the store.
"""

from __future__ import annotations

import decimal
import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema

from tarsy.resources import base, chains, tool_patterns

KIND = "AlertInvestigation"
PLURAL = "alertinvestigations"

DEFAULT_TTL_SECONDS = 7 * 24 * 3600
"""Seconds for which an ended investigation stays in the cluster, unless it or its chain says otherwise."""
MUTABLE = ("cancel", "suspend", "ttlSecondsAfterFinished")
"""The spec's fields that the API server lets people change."""

ALERT_DATA_MAX = 64 * 1024
"""The maximum length of alert data in an object, in characters."""

LABEL_NAME_MAX = 253
"""The maximum length of the name of an alert's label, in characters."""

TARGET_MAX = 253
"""The maximum length of the line that names the subject of an alert, in characters."""

ALERT_SUMMARY_MAX = 253
"""The maximum length of the first line of an alert's annotation `summary`, in characters."""

HEADLINE_MAX = 120
"""The maximum length of the headline, in characters: kubectl does not cut its columns."""

ALERTS_MAX, ALERT_TYPES_MAX = 10, 20
"""The alerts of a group, and the types, that a status names."""

AUTHOR_MAX = 253
"""The maximum length of an author's name, in characters."""

TRACEPARENT = "^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"
"""A span by W3C Trace Context, section 3.2, "Traceparent Header", in its only version so far."""

DEPTH_MAX = 3
"""Investigations in a row that may have started one another."""
DEPTH_META = "tarsy.dev/depth"
"""The key in the `_meta` of a call to an MCP server with the depth of an investigation that the call starts."""

OpenPhase = Literal["Queued", "Running", "Waiting", "Suspended", "Cancelling"]
EndedPhase = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
Phase = Literal[OpenPhase, EndedPhase]
UNFINISHED = ",".join(f"status.phase!={phase}" for phase in get_args(EndedPhase))
"""The field selector of objects whose status shows no end, or that have no status yet."""
StagePhase = Literal[
    "Pending", "Running", "Completed", "CompletedWithErrors", "Failed", "TimedOut", "Cancelled", "Skipped"
]

Text = Annotated[str, Field(max_length=base.MESSAGE_MAX)]
Duration = Annotated[str, Field(max_length=32)]


class AlertDataRef(base.Model):
    """The reference to alert data that is too large for an object, and is in the store for this object only."""

    name: Annotated[str, Field(max_length=63, pattern="^[0-9a-f]+$", description="The reference that ingest created.")]
    size: Annotated[base.Count, Field(description="Bytes of UTF-8.")]


class ChainRef(base.Model):
    """A chain by name."""

    name: base.Reference


class Source(base.Model):
    """The source of the alert."""

    type: Annotated[str, Field(max_length=63, description="alertmanager, grafana or api.")]
    receiver: Annotated[str | None, Field(max_length=253)] = None
    group_key: Annotated[str | None, Field(max_length=4096)] = None
    generator_url: Annotated[str | None, Field(max_length=2048)] = None
    external_url: Annotated[str | None, Field(max_length=2048)] = None
    receipt: Annotated[
        str | None,
        Field(
            max_length=64,
            description="Written by TARSy's webhooks, to distinguish their objects from objects of other authors.",
        ),
    ] = None


class MCPServer(base.Model):
    """An MCP server that is selected for the agents, and the selected tools."""

    name: Annotated[base.Reference, Field(description="A server of the chain's agents, or a selectable server.")]
    tools: Annotated[
        list[tool_patterns.OwnPattern] | None,
        Field(
            min_length=1,
            max_length=50,
            description="Shell-style patterns over names of its tools, without the server; all tools if missing.",
        ),
    ] = None


def _named_once(servers: list[MCPServer]) -> list[MCPServer]:
    names = [server.name for server in servers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"MCP server {twice!r} is named twice: name each once, with all its tools")
    return servers


MCPServers = Annotated[list[MCPServer], Field(max_length=20), AfterValidator(_named_once)]

_NATIVE_TOOLS = ", ".join(f"'{name}'" for name in get_args(chains.NativeTool))


class MCP(base.Model):
    """The tool selection of an investigation, which narrows the tools of its chain."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-validations": [
                {
                    "rule": f"!has(self.nativeTools) || self.nativeTools.all(name, name in [{_NATIVE_TOOLS}])",
                    "message": f"a native tool is one of {', '.join(get_args(chains.NativeTool))}",
                    "fieldPath": ".nativeTools",
                }
            ]
        }
    )

    servers: Annotated[
        MCPServers | None,
        Field(
            description="Replaces the agents' servers. Each agent gets those of these servers that its chain gives it "
            "or that the platform configuration marks as selectable; [] means none.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    tools: Annotated[chains.Tools | None, Field(description="Narrows the tools that the chain gives its agents.")] = (
        None
    )
    native_tools: Annotated[
        dict[chains.NativeTool, StrictBool] | None,
        Field(
            max_length=10, description="false disables a tool of the LLM providers themselves; true changes nothing."
        ),
    ] = None


class RetryOf(base.Model):
    """The ended investigation that this one runs again."""

    name: base.Reference
    uid: Annotated[
        str,
        Field(
            max_length=36, pattern="^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", description="Its id in the API, too."
        ),
    ]
    from_stage: Annotated[
        base.Name | None,
        Field(description="The first stage that runs again: the work of the earlier ones is copied. All if missing."),
    ] = None
    chain: Annotated[
        Literal["Snapshot", "Current"] | None,
        Field(description="Snapshot (default): the chain as it was at that time. Current: the chain as it is now."),
    ] = None


_YEARS = "a time that can be kept is of the years 1 to 9999, in UTC and as it is written"


def checked_time(value: datetime) -> datetime:
    """Return `value`; raises ValueError if it is outside of the years 1 to 9999 in UTC, the limits of Python."""
    try:
        value.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(_YEARS) from error
    return value


Time = Annotated[
    datetime,
    AfterValidator(checked_time),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 64,
            "x-kubernetes-validations": [
                {
                    "rule": "self.matches('^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
                    "([.][0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$')",
                    "message": "write a time by RFC 3339, such as 2026-11-21T20:29:42Z or 2026-11-21T22:29:42.5+02:00",
                },
                {
                    "rule": "!self.startsWith('0000') && timestamp(self).getFullYear() > 0"
                    " && timestamp(self).getFullYear() < 10000",
                    "message": _YEARS,
                },
            ],
        }
    ),
]
"""A time by RFC 3339. The API server's format `date-time` accepts offsets of a day and more, but Python does not."""


class Spec(base.Model):
    """The alert, and the control of its investigation."""

    alert_type: Annotated[base.AlertType, Field(description="Selects the chain, unless chainRef is set.")]
    alert_data: Annotated[
        str | None,
        Field(min_length=1, max_length=ALERT_DATA_MAX, description="The alert, as opaque text for the agents."),
    ] = None
    alert_data_ref: Annotated[
        AlertDataRef | None, Field(description="Created by TARSy for alerts that are too large for an object.")
    ] = None
    chain_ref: Annotated[
        ChainRef | None, Field(description="Selects the chain, even if it does not list the alert type.")
    ] = None
    priority: Annotated[
        int | None,
        Field(
            ge=-1000,
            le=1000,
            description="The queued investigation with the highest priority runs first; 0 by default.",
        ),
    ] = None
    cancel: Annotated[bool | None, Field(description="true stops the investigation permanently.")] = None
    suspend: Annotated[
        bool | None,
        Field(description="true pauses it after the call in progress; false lets it continue."),
    ] = None
    ttl_seconds_after_finished: Annotated[
        base.Seconds | None, Field(description="Its time to live in the cluster after its end; the chain's if missing.")
    ] = None
    severity: Annotated[str | None, Field(max_length=63, description="The severity that the alert states.")] = None
    author: Annotated[
        str | None,
        Field(max_length=AUTHOR_MAX, description="The author of the request; the API sets it to its caller."),
    ] = None
    runbook_url: Annotated[
        str | None, Field(max_length=2048, description="The URL of the runbook that the agents get.")
    ] = None
    mcp: Annotated[MCP | None, Field(description="Narrows the tools of the chain's agents.")] = None
    traceparent: Annotated[
        str | None,
        Field(
            max_length=55,
            pattern=TRACEPARENT,
            description="The span of another system, by W3C Trace Context, to which the investigation's trace is "
            "linked.",
        ),
    ] = None
    depth: Annotated[
        int | None,
        Field(
            ge=0,
            le=DEPTH_MAX,
            description="The number of investigations, of this TARSy and others, that led to this one: the agents of "
            "each started the next one. The limit ends loops.",
        ),
    ] = None
    source: Annotated[Source | None, Field(description="The source of the alert.")] = None
    retry_of: Annotated[
        RetryOf | None,
        Field(description="Written by TARSy's API, which checks that the author may read the former investigation."),
    ] = None
    labels: Annotated[
        dict[Annotated[str, Field(max_length=LABEL_NAME_MAX)], Annotated[str, Field(max_length=1024)]] | None,
        Field(
            max_length=64,
            description="The alert's labels, cut to their limits.",
            json_schema_extra={
                "x-kubernetes-validations": [
                    {
                        "rule": f"self.all(name, size(name) <= {LABEL_NAME_MAX})",
                        "message": f"a label's name has {LABEL_NAME_MAX} characters at most",
                    }
                ]
            },
        ),
    ] = None
    fingerprint: Annotated[
        str | None,
        Field(
            max_length=64,
            description="Alertmanager's fingerprint of the alert's labels, or a hash of it and its source.",
        ),
    ] = None
    starts_at: Annotated[Time | None, Field(description="The time at which the alert began to fire.")] = None


COST_PATTERN = r"^[0-9]+(\.[0-9]+)?$"


def cost_text(cost: float) -> str:
    """Return a cost as a decimal number without exponent, with at most 14 digits and 12 decimals.

    So the product of tokens and a price of six decimals is exact, and rounding errors of float sums disappear.
    """
    exact = f"{decimal.Decimal(f'{cost:.14g}'):.12f}"
    return exact.rstrip("0").removesuffix(".")


class Usage(base.Model):
    """The tokens and calls that the providers report, and their cost by the providers' prices."""

    input_tokens: base.Count = 0
    output_tokens: base.Count = 0
    thinking_tokens: base.Count = 0
    total_tokens: base.Count = 0
    llm_calls: base.Count = 0
    tool_calls: base.Count = 0
    cost: Annotated[
        str | None,
        Field(
            max_length=32,
            pattern=COST_PATTERN,
            description="In the currency of the providers' prices; absent if no model call had a price.",
        ),
    ] = None


class StageStatus(base.Model):
    """The progress of one stage."""

    name: base.Name
    phase: StagePhase
    agents: Annotated[str | None, Field(max_length=16, description="Completed agents of all agents.")] = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    duration: Duration | None = None
    iterations: base.Count = 0
    tool_calls: base.Count = 0
    tokens: base.Count = 0
    message: Text | None = None


class Gap(base.Model):
    """Something that the agents could not inspect."""

    tool: Annotated[str, Field(max_length=253, description="The tool, or the server.")]
    reason: Annotated[str, Field(max_length=253)]


class Previous(base.Model):
    """Another investigation of the same alert."""

    name: base.Reference
    uid: Annotated[str, Field(max_length=64, description="Also its id in the API.")]


AlertType = Annotated[str, Field(max_length=253)]


class AlertTypeCount(base.Model):
    """The number of alerts of a type."""

    alert_type: AlertType
    count: base.Count = 0


class JoinedAlert(base.Model):
    """One alert of a group."""

    alert_type: AlertType
    fingerprint: Annotated[str, Field(max_length=64)]
    target: Annotated[str | None, Field(max_length=TARGET_MAX, description="The subject, on one line.")] = None
    status: Literal["firing", "resolved"]
    starts_at: datetime


class Alerts(base.Model):
    """The alerts of an investigation that others have joined."""

    total: base.Count = 0
    firing: base.Count = 0
    types: Annotated[
        list[AlertTypeCount], Field(max_length=ALERT_TYPES_MAX, description="The most frequent types.")
    ] = []
    newest: Annotated[list[JoinedAlert], Field(max_length=ALERTS_MAX, description="The newest, the newest first.")] = []


class ChainReference(base.Model):
    """The chain that this investigation runs, and its generation."""

    name: base.Reference
    namespace: base.Reference
    generation: base.Count
    hash: Annotated[str, Field(max_length=64)] = ""


class Status(base.Model):
    """The compact result; everything else is in the transcript."""

    sequence: Annotated[base.Count, Field(description="The version of the status: it rises with each change.")]
    observed_generation: int = -1
    phase: Phase
    conditions: base.Conditions
    author: Annotated[str | None, Field(max_length=AUTHOR_MAX, description="The author of the request.")] = None
    chain: ChainReference | None = None
    progress: Annotated[str | None, Field(max_length=16, description="Ended stages of all stages.")] = None
    current_stage: base.Name | None = None
    stages: Annotated[
        list[StageStatus],
        Field(
            max_length=45, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = []
    usage: Usage = Usage()
    target: Annotated[
        str | None, Field(max_length=TARGET_MAX, description="The subject of the alert, such as shop/web-0.")
    ] = None
    headline: Annotated[
        str | None,
        Field(
            max_length=HEADLINE_MAX,
            description="The result in one short line, or the message of a failure or a wait.",
        ),
    ] = None
    summary: Annotated[str | None, Field(max_length=1024, description="The final analysis in one to four lines.")] = (
        None
    )
    gaps: Annotated[list[Gap], Field(max_length=10, description="The things that could not be inspected.")] = []
    final_analysis: Annotated[str | None, Field(max_length=8192)] = None
    final_analysis_truncated: bool | None = None
    message: Text | None = None
    attempts: base.Count = 0
    duplicates: Annotated[
        base.Count, Field(description="Repeats of this alert that got no investigation of their own.")
    ] = 0
    alert_status: Annotated[
        Literal["firing", "resolved"] | None,
        Field(description="The last status that the source of the alert reported."),
    ] = None
    alerts: Annotated[Alerts | None, Field(description="Its alerts, if some have joined it (grouping).")] = None
    previous: Annotated[
        Previous | None,
        Field(
            description="The earlier investigation of this alert: it failed, timed out, could not reach MCP servers, "
            "or was purged. Of a group: the one whose result did not cover the alert. With the reason Unchanged: the "
            "one whose result still holds."
        ),
    ] = None
    retry_of: Annotated[RetryOf | None, Field(description="The ended investigation that this one runs again.")] = None
    retried_by: Annotated[Previous | None, Field(description="The newest investigation that runs this one again.")] = (
        None
    )
    split_from: Annotated[
        Previous | None, Field(description="The investigation of a group that this one's alert was taken out of.")
    ] = None
    split_into: Annotated[
        list[Previous] | None,
        Field(
            max_length=10, description="The newest investigations of alerts that were taken out of this one's group."
        ),
    ] = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    duration: Duration | None = None
    transcript: Annotated[
        str | None,
        Field(max_length=1024, description="The address of its page, or the API path of the transcript."),
    ] = None


class WrittenStatus(BaseModel):
    """The part of a status in the cluster that orders it among others."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    sequence: int = 0
    """The revision of the store that it shows; 0 if no store has written one."""
    phase: str | None = None

    @property
    def has_ended(self) -> bool:
        """Whether it shows an end."""
        return self.phase in get_args(EndedPhase)


class AlertInvestigation(base.Model):
    """An investigation as an object in the cluster, without its status: the store is the source of that."""

    metadata: base.ObjectMeta
    spec: Spec
    written: WrittenStatus = WrittenStatus()
    """The status that was written last, by which a restored database or cluster is noticed."""

    def digest(self) -> str:
        """Return the digest of the original spec, as far as it can still be known.

        The first generation is the original. In later generations the mutable fields may have changed: they are left
        out.
        """
        return digest(self.spec, without=MUTABLE if self.metadata.generation > 1 else ())


def digest(spec: Spec, *, without: Collection[str] = ()) -> str:
    """Return the digest of a spec without its receipt and without these fields."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"source": {"receipt"}})
    remaining = {name: value for name, value in dumped.items() if name not in without}
    return hashlib.sha256(json.dumps(remaining, sort_keys=True).encode()).hexdigest()
