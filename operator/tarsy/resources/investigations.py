"""AlertInvestigation: one alert, investigated once.

The spec never changes, but for what stops it and how long it stays; the status is written by the projector alone, as a
pure function of the store.
"""

from __future__ import annotations

import decimal
import hashlib
import json
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, ConfigDict, Field, StrictBool, WithJsonSchema

from tarsy.resources import base, chains, tool_patterns

KIND = "AlertInvestigation"
PLURAL = "alertinvestigations"

DEFAULT_TTL_SECONDS = 7 * 24 * 3600
"""Seconds for which an ended investigation stays in the cluster, unless it or its chain says otherwise."""
MUTABLE = ("cancel", "suspend", "ttlSecondsAfterFinished")
"""The spec's fields that the API server lets people change."""

ALERT_DATA_MAX = 64 * 1024
"""Characters of alert data that an object may hold."""

LABEL_NAME_MAX = 253
"""Characters of the name of an alert's label."""

TARGET_MAX = 253
"""Characters of the line that names the subject of an alert."""

ALERT_SUMMARY_MAX = 253
"""Characters of the first line of an alert's annotation `summary`."""

HEADLINE_MAX = 120
"""Characters of the headline: the columns of kubectl cannot cut."""

AUTHOR_MAX = 253
"""Characters of an author's name."""

OpenPhase = Literal["Queued", "Running", "Suspended", "Cancelling"]
EndedPhase = Literal["Completed", "CompletedWithErrors", "Failed", "Cancelled", "TimedOut"]
Phase = Literal[OpenPhase, EndedPhase]
UNFINISHED = ",".join(f"status.phase!={phase}" for phase in get_args(EndedPhase))
"""The field selector of objects whose status shows no end; those that have none yet are among them."""
StagePhase = Literal[
    "Pending", "Running", "Completed", "CompletedWithErrors", "Failed", "TimedOut", "Cancelled", "Skipped"
]

Text = Annotated[str, Field(max_length=base.MESSAGE_MAX)]
Duration = Annotated[str, Field(max_length=32)]


class AlertDataRef(base.Model):
    """Alert data that is too large for an object: it is in the store, for this object alone."""

    name: Annotated[str, Field(max_length=63, pattern="^[0-9a-f]+$", description="The reference that ingest gave out.")]
    size: Annotated[base.Count, Field(description="Bytes of UTF-8.")]


class ChainRef(base.Model):
    """A chain by name."""

    name: base.Reference


class Source(base.Model):
    """Where the alert came from."""

    type: Annotated[str, Field(max_length=63, description="alertmanager, grafana or api.")]
    receiver: Annotated[str | None, Field(max_length=253)] = None
    group_key: Annotated[str | None, Field(max_length=4096)] = None
    generator_url: Annotated[str | None, Field(max_length=2048)] = None
    external_url: Annotated[str | None, Field(max_length=2048)] = None
    receipt: Annotated[
        str | None,
        Field(max_length=64, description="Written by TARSy's webhooks: it tells their objects from those of people."),
    ] = None


class MCPServer(base.Model):
    """An MCP server whose tools the agents may have, and which of them."""

    name: Annotated[base.Reference, Field(description="One that the chain's agents have, or one that is selectable.")]
    tools: Annotated[
        list[tool_patterns.OwnPattern] | None,
        Field(
            min_length=1,
            max_length=50,
            description="Shell-style patterns over the names of its tools, without the server's; all if missing.",
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
    """The part of its chain's tools that one investigation gets: never more."""

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
            description="In the place of the agents' servers: of these each agent has those that it has anyway, and "
            "those that the platform configuration marks selectable; [] means none.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ] = None
    tools: Annotated[
        chains.Tools | None, Field(description="Which of the tools that the chain leaves its agents get.")
    ] = None
    native_tools: Annotated[
        dict[chains.NativeTool, StrictBool] | None,
        Field(max_length=10, description="false switches a tool of the providers' own off; true changes nothing."),
    ] = None


_YEARS = "a time that can be kept is of the years 1 to 9999, in UTC and as it is written"


def checked_time(value: datetime) -> datetime:
    """`value`; a ValueError if it is outside of the years 1 to 9999 in UTC, which neither Python nor Postgres has."""
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
"""A time by RFC 3339. The API server's format `date-time` takes offsets of a day and more, which Python does not."""


class Spec(base.Model):
    """The alert."""

    alert_type: Annotated[base.AlertType, Field(description="Chooses the chain, unless chainRef does.")]
    alert_data: Annotated[
        str | None,
        Field(min_length=1, max_length=ALERT_DATA_MAX, description="The alert, as opaque text for the agents."),
    ] = None
    alert_data_ref: Annotated[
        AlertDataRef | None, Field(description="Made by ingest for alerts that are too large for an object.")
    ] = None
    chain_ref: Annotated[ChainRef | None, Field(description="Chooses the chain, whatever alert types it takes.")] = None
    priority: Annotated[
        int | None, Field(ge=-1000, le=1000, description="Of those that wait, the highest runs first; 0 by default.")
    ] = None
    cancel: Annotated[bool | None, Field(description="true stops the investigation, for good.")] = None
    suspend: Annotated[
        bool | None,
        Field(description="true keeps it from running: it stops after the call under way; false lets it go on."),
    ] = None
    ttl_seconds_after_finished: Annotated[
        base.Seconds | None, Field(description="How long it stays in the cluster once it has ended; else the chain's.")
    ] = None
    severity: Annotated[str | None, Field(max_length=63, description="As the alert says.")] = None
    author: Annotated[
        str | None, Field(max_length=AUTHOR_MAX, description="Who asked for it; the API writes who called it.")
    ] = None
    runbook_url: Annotated[str | None, Field(max_length=2048, description="Told to the agents.")] = None
    mcp: Annotated[MCP | None, Field(description="Narrows what tools the chain's agents have.")] = None
    source: Annotated[Source | None, Field(description="Where the alert came from.")] = None
    labels: Annotated[
        dict[Annotated[str, Field(max_length=LABEL_NAME_MAX)], Annotated[str, Field(max_length=1024)]] | None,
        Field(
            max_length=64,
            description="The alert's labels, cut to their bounds.",
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
        str | None, Field(max_length=64, description="Alertmanager's fingerprint of the alert's labels.")
    ] = None
    starts_at: Annotated[Time | None, Field(description="When the alert began to fire.")] = None


COST_PATTERN = r"^[0-9]+(\.[0-9]+)?$"


def cost_text(cost: float) -> str:
    """A cost as a decimal number without exponent, with 14 digits and 12 decimals at most.

    That tells the product of tokens and a price of six decimals exactly; the ends that floats add to sums are left out.
    """
    exact = f"{decimal.Decimal(f'{cost:.14g}'):.12f}"
    return exact.rstrip("0").removesuffix(".")


class Usage(base.Model):
    """Tokens and calls, counted as the providers report them, and what they cost by the providers' prices."""

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
            description="In the currency of the providers' prices; absent where no model call had a price.",
        ),
    ] = None


class StageStatus(base.Model):
    """How far one stage is."""

    name: base.Name
    phase: StagePhase
    agents: Annotated[str | None, Field(max_length=16, description="Agents that completed, of all.")] = None
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
    """The investigation of the same alert that this one follows."""

    name: base.Reference
    uid: Annotated[str, Field(max_length=64, description="Its id in the API, too.")]


class ChainReference(base.Model):
    """Which chain, and which state of it, this investigation runs."""

    name: base.Reference
    namespace: base.Reference
    generation: base.Count
    hash: Annotated[str, Field(max_length=64)] = ""


class Status(base.Model):
    """The compact result; everything else is in the transcript."""

    sequence: Annotated[base.Count, Field(description="Rises with every change that it shows.")]
    observed_generation: int = -1
    phase: Phase
    conditions: base.Conditions
    author: Annotated[str | None, Field(max_length=AUTHOR_MAX, description="Who asked for it.")] = None
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
            description="The result in one short line; of what has failed or waits, its message.",
        ),
    ] = None
    summary: Annotated[str | None, Field(max_length=1024, description="The final analysis in one to four lines.")] = (
        None
    )
    gaps: Annotated[list[Gap], Field(max_length=10, description="What could not be inspected.")] = []
    final_analysis: Annotated[str | None, Field(max_length=8192)] = None
    final_analysis_truncated: bool | None = None
    message: Text | None = None
    attempts: base.Count = 0
    duplicates: Annotated[
        base.Count, Field(description="Repeats of this alert that were counted here and not run.")
    ] = 0
    alert_status: Annotated[Literal["firing", "resolved"] | None, Field(description="As its source last said.")] = None
    previous: Annotated[
        Previous | None,
        Field(
            description="The investigation of this alert that this one follows: it failed, timed out, met MCP servers "
            "that were away, or was purged."
        ),
    ] = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    duration: Duration | None = None
    transcript: Annotated[
        str | None,
        Field(max_length=1024, description="Where all of it is: the address of its page, or the path of the API."),
    ] = None


class AlertInvestigation(base.Model):
    """An investigation as it stands in the cluster, without its status: the store knows that better."""

    metadata: base.ObjectMeta
    spec: Spec

    def digest(self) -> str:
        """The digest of the spec that it was made with, as far as that can still be seen.

        In the first generation the spec is as it was made, whole; later, but for what may be changed.
        """
        return digest(self.spec, without=MUTABLE if self.metadata.generation > 1 else ())


def digest(spec: Spec, *, without: Collection[str] = ()) -> str:
    """The digest of a spec without its receipt, and without those fields."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"source": {"receipt"}})
    counted = {name: value for name, value in dumped.items() if name not in without}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()
