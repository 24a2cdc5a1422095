"""The payload of `POST /api/v1/alerts`: one alert in TARSy's own format."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

from tarsy.ingest import payload
from tarsy.resources import base, investigations, tool_patterns


class Alert(BaseModel):
    """An alert to investigate. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alert_type: base.AlertType
    data: Annotated[
        JsonValue,
        payload.refuse_blank("say what is wrong"),
        WithJsonSchema({}),  # any JSON; the default schema is a reference that dangles in the API's description
        Field(description="The alert, as text or as JSON; the agents get it unchanged."),
    ]
    runbook: Annotated[
        str | None,
        Field(
            max_length=2048,
            description="The URL of a runbook, whose text is fetched from there; else `runbook` of a JSON object in "
            "`data`. An invalid URL only loses the runbook.",
        ),
    ] = None
    severity: Annotated[str | None, Field(max_length=63)] = None
    mcp: Annotated[
        investigations.MCP | None,
        Field(description="Narrows the tools of the chain's agents: `servers`, `tools`, `native_tools`."),
    ] = None

    @property
    def runbook_url(self) -> str:
        """The URL of the runbook: `runbook`, or else the string `runbook` of a JSON object in `data`, or else "".

        Source: `get_runbook_url` of the founding documents (002).
        """
        runbook = self.runbook or (self.data.get("runbook") if isinstance(self.data, dict) else None)
        return runbook if isinstance(runbook, str) else ""

    def text(self) -> str:
        """Return the data as the agents read it."""
        if isinstance(self.data, str):
            return self.data
        return "".join(payload.compact(self.data))


def parse(body: bytes) -> Alert:
    """Parse an alert. Raise payload.PayloadError if `body` is not JSON, else pydantic.ValidationError.

    Large bodies take so long that they belong in a thread.
    """
    return Alert.model_validate(payload.load(body), context=tool_patterns.AS_WRITTEN)


def unknown_names(error: pydantic.ValidationError) -> str:
    """Return a message that names unknown native tools and the known ones; "" if there are other problems.

    Names of servers and tools are not checked here.
    """
    problems = error.errors(include_input=False, include_url=False)
    if any((fault["loc"][:1], fault["type"]) != (("mcp",), "literal_error") for fault in problems):
        return ""
    return payload.places(error, describe=lambda fault: f"no such native tool: there is {fault['ctx']['expected']}")


def schema() -> dict[str, Any]:
    """Return the payload's JSON schema, for the API's description."""
    schema_with_references = Alert.model_json_schema(by_alias=False)
    document: dict[str, Any] = _inlined(schema_with_references, schema_with_references.pop("$defs"))
    return document


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with its references replaced, and without the API server's extensions."""
    if isinstance(node, list):
        return [_inlined(node_part, definitions) for node_part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = definitions[node["$ref"].removeprefix("#/$defs/")] | {k: node[k] for k in node if k != "$ref"}
    return {
        key: _inlined(node_part, definitions) for key, node_part in node.items() if not key.startswith("x-kubernetes-")
    }
