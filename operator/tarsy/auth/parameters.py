"""The parameters of requests that name what a right is checked on: an investigation, namespaces, a server."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query
from pydantic import Field

NAMESPACES_MAX = 100
"""Namespaces that a request may name."""

InvestigationId = Annotated[
    str,
    Path(
        alias="identity",
        description="The investigation's id: its object's uid.",
        examples=["6f1c3a52-8d0e-4b7a-9a53-0c7d5b1e2f64"],
        json_schema_extra={"format": "uuid", "maxLength": 36},  # not checked: others are not found
    ),
]
Namespaces = Annotated[
    list[Annotated[str, Field(json_schema_extra={"maxLength": 63})]] | None,
    Query(
        alias="namespace",
        description=(
            "The namespace; if repeated, all of these. By default all that are served and in which the caller has the "
            "right."
        ),
        examples=[["shop"]],
        json_schema_extra={"maxItems": NAMESPACES_MAX},  # checked, as the names are, once the caller is known
    ),
]
ObjectNamespace = Annotated[str, Path(alias="namespace", description="The namespace of an object.", examples=["shop"])]
ObjectName = Annotated[str, Path(alias="name", description="The name of an object.", examples=["web-crash"])]
ServedNamespace = Annotated[
    str,
    Path(
        alias="namespace",
        description="A namespace that is served, and that the token is listed for (`ingest.tokens`).",
        examples=["shop"],
        json_schema_extra={"maxLength": 63},  # not checked: others are not served
    ),
]
NewNamespace = Annotated[
    str | None,
    Query(
        alias="namespace",
        description="The namespace of the investigation, one that is served; by default `ingest.namespace`.",
        examples=["shop"],
        json_schema_extra={"maxLength": 63},  # checked once the caller is known
    ),
]
ServerName = Annotated[
    str,
    Path(
        description="The name of an MCP server in the platform file.",
        examples=["kubernetes-server"],
        json_schema_extra={"maxLength": 253},  # not checked: others are not found
    ),
]
