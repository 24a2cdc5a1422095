"""The base of both kinds: group and version, camel case on the wire, bounded field types.

Every string and list is bounded, because the API server refuses CEL rules over unbounded ones and because a status
write stores the whole object again.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

GROUP = "tarsy.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

MESSAGE_MAX = 1024
"""Characters of a condition's message; longer ones are cut."""

_INITIALISMS = {"Url": "URL"}


def camel(name: str) -> str:
    """`alert_type` to `alertType`, with the API conventions' initialisms (`runbookURL`).

    Source: Kubernetes API conventions, "Naming conventions".
    """
    alias = to_camel(name)
    for plain, upper in _INITIALISMS.items():
        if alias.endswith(plain):
            alias = alias.removesuffix(plain) + upper
    return alias


class Model(BaseModel):
    """A part of a kind: camel case on the wire, unknown fields refused, immutable here."""

    model_config = ConfigDict(alias_generator=camel, populate_by_name=True, extra="forbid", frozen=True)


class ObjectMeta(BaseModel):
    """The parts of `metadata` that TARSY reads; the API server's other fields pass unseen."""

    model_config = ConfigDict(alias_generator=camel, populate_by_name=True, extra="ignore", frozen=True)

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: str | None = None


Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
"""A DNS-1123 label."""

Reference = Annotated[str, Field(min_length=1, max_length=253)]
"""The name of an agent, MCP server or provider of the platform file."""

AlertType = Annotated[str, Field(min_length=1, max_length=253)]
"""An alert type as labels spell it; an Alertmanager label value has no other rule."""

Count = Annotated[int, Field(ge=0)]

Seconds = Annotated[int, Field(ge=0, le=10 * 365 * 24 * 3600)]
"""A time to live, ten years at most."""


class Condition(Model):
    """A condition by the API conventions (metav1.Condition)."""

    type: Annotated[str, Field(max_length=64)]
    status: Literal["True", "False", "Unknown"]
    reason: Annotated[str, Field(max_length=64)]
    message: Annotated[str, Field(max_length=MESSAGE_MAX)] = ""
    last_transition_time: datetime
    observed_generation: Count = 0


Conditions = Annotated[
    list[Condition],
    Field(max_length=16, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]
