"""The base of both kinds: group and version, camel case on the wire, bounded field types.

Every string and list has a limit, because the API server refuses CEL rules over unlimited ones, and because each write
of the status stores the whole object again.
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
"""The maximum length of a condition's message, in characters; longer ones are cut."""

_INITIALISMS = {"Url": "URL"}


def camel(name: str) -> str:
    """Return a name in camel case, such as `alertType`, with the initialisms of the API conventions (`runbookURL`).

    Source: Kubernetes API conventions, "Naming conventions".
    """
    alias = to_camel(name)
    for plain, upper in _INITIALISMS.items():
        if alias.endswith(plain):
            alias = alias.removesuffix(plain) + upper
    return alias


class Model(BaseModel):
    """The base of the parts of a kind: camel case in JSON, unknown fields refused, immutable."""

    model_config = ConfigDict(alias_generator=camel, populate_by_name=True, extra="forbid", frozen=True)


class ObjectMeta(BaseModel):
    """The fields of `metadata` that TARSy reads; the API server's other fields are ignored."""

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
"""An alert type: any text that can be the value of an Alertmanager label."""

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
