"""AgentChain: for some alert types, the stages that investigate them, in order."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import Field

from tarsy.resources import base

KIND = "AgentChain"
PLURAL = "agentchains"

IterationStrategy = Literal["native-thinking"]
Iterations = Annotated[int, Field(ge=1, le=100)]
Servers = Annotated[list[base.Reference], Field(max_length=20)]


class Stage(base.Model):
    """One stage: an agent with what it overrides of its own settings."""

    name: Annotated[base.Name, Field(description="Unique in the chain.")]
    agent: Annotated[base.Reference, Field(description="An agent of the platform configuration.")]
    llm_provider: Annotated[base.Reference | None, Field(description="Replaces the chain's provider.")] = None
    iteration_strategy: Annotated[IterationStrategy | None, Field(description="How the agent iterates.")] = None
    max_iterations: Annotated[Iterations | None, Field(description="Model calls before the agent must conclude.")] = (
        None
    )
    mcp_servers: Annotated[Servers | None, Field(description="Replaces the agent's servers; [] means none.")] = None


class Spec(base.Model):
    """What the chain takes and what it does."""

    alert_types: Annotated[
        list[base.AlertType],
        Field(
            min_length=1,
            max_length=50,
            description="The alert types that this chain investigates.",
            json_schema_extra={"x-kubernetes-list-type": "set"},
        ),
    ]
    description: Annotated[str | None, Field(max_length=1024, description="For people.")] = None
    llm_provider: Annotated[base.Reference | None, Field(description="A provider of the platform configuration.")] = (
        None
    )
    iteration_strategy: Annotated[IterationStrategy | None, Field(description="How the agents iterate.")] = None
    max_iterations: Annotated[Iterations | None, Field(description="Model calls before an agent must conclude.")] = None
    active_deadline_seconds: Annotated[
        int | None,
        Field(ge=1, le=7 * 24 * 3600, description="Seconds from the first claim; 900 where nothing is said."),
    ] = None
    on_resolved: Annotated[
        Literal["Continue", "Cancel"],
        Field(description="What becomes of a running investigation when its alert resolves."),
    ] = "Continue"
    ttl_seconds_after_finished: Annotated[
        base.Seconds | None,
        Field(description="How long ended investigations stay in the cluster; 7 days where nothing is said."),
    ] = None
    mcp_servers: Annotated[Servers | None, Field(description="Replaces the agents' servers; [] means none.")] = None
    stages: Annotated[
        list[Stage],
        Field(
            min_length=1,
            max_length=20,
            description="The stages, run in this order.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        ),
    ]


class Status(base.Model):
    """What TARSy says of the chain."""

    observed_generation: int = -1
    hash: Annotated[str, Field(max_length=64, description="Of the spec, as investigations record it.")] = ""
    conditions: base.Conditions = []


class AgentChain(base.Model):
    """A chain as it stands in the cluster."""

    metadata: base.ObjectMeta
    spec: Spec
    status: Status | None = None

    def digest(self) -> str:
        """16 hex digits that change with the spec."""
        return hashlib.sha256(self.spec.model_dump_json(by_alias=True, exclude_none=True).encode()).hexdigest()[:16]
