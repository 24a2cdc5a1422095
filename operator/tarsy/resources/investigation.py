"""AlertInvestigation: one alert, investigated once.

The spec never changes; the status is written by the projector alone, as a pure function of the store.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from tarsy.resources import base

KIND = "AlertInvestigation"
PLURAL = "alertinvestigations"

ALERT_DATA_MAX = 64 * 1024
"""Characters of alert data that an object may hold."""

Phase = Literal["Queued", "Running", "Completed", "CompletedWithErrors", "Failed"]
StagePhase = Literal["Pending", "Running", "Completed", "Failed"]

Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(max_length=1024)]


class Spec(base.Model):
    """The alert."""

    alert_type: Annotated[base.AlertType, Field(description="Chooses the chain.")]
    alert_data: Annotated[
        str,
        Field(min_length=1, max_length=ALERT_DATA_MAX, description="The alert, as opaque text for the agents."),
    ]
    fingerprint: Annotated[
        str | None, Field(max_length=64, description="Alertmanager's fingerprint of the alert's labels.")
    ] = None
    starts_at: Annotated[datetime | None, Field(description="When the alert began to fire.")] = None


class Condition(base.Model):
    """A condition by the API conventions (metav1.Condition)."""

    type: Annotated[str, Field(max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=64)]
    message: Annotated[str, Field(max_length=2048)] = ""
    last_transition_time: datetime
    observed_generation: Count = 0


class Usage(base.Model):
    """Tokens and calls, counted as the providers report them."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    thinking_tokens: Count = 0
    total_tokens: Count = 0
    llm_calls: Count = 0
    tool_calls: Count = 0


class StageStatus(base.Model):
    """How far one stage is."""

    name: base.Name
    phase: StagePhase
    start_time: datetime | None = None
    completion_time: datetime | None = None
    iterations: Count = 0
    tool_calls: Count = 0
    tokens: Count = 0
    message: Text = ""


class ChainReference(base.Model):
    """Which chain, and which state of it, this investigation runs."""

    name: base.Reference
    namespace: base.Reference
    generation: Count


class Status(base.Model):
    """The compact result; everything else is in the transcript."""

    sequence: Annotated[Count, Field(description="Rises with every change of the transcript.")]
    observed_generation: int = -1
    phase: Phase
    conditions: Annotated[
        list[Condition],
        Field(
            max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        ),
    ]
    chain: ChainReference | None = None
    progress: Annotated[str, Field(max_length=16, description="Ended stages of all stages.")] = ""
    current_stage: base.Name | None = None
    stages: Annotated[
        list[StageStatus],
        Field(
            max_length=45, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
        ),
    ] = []
    usage: Usage = Usage()
    final_analysis: Annotated[str, Field(max_length=8192)] = ""
    final_analysis_truncated: bool = False
    message: Text = ""
    attempts: Count = 0
    start_time: datetime | None = None
    completion_time: datetime | None = None
    duration: Annotated[str, Field(max_length=32)] = ""


class AlertInvestigation(base.Model):
    """An investigation as it stands in the cluster, without its status: the store knows that better."""

    metadata: base.ObjectMeta
    spec: Spec
