"""The payload of `POST /api/v1/alerts`: an alert from anybody who is not Alertmanager."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, WithJsonSchema

from tarsy.resources import base

COMPACT = (",", ":")
"""How data is written as JSON: never longer than it came. Indentation grows with its depth, a hundredfold and more."""


class Alert(BaseModel):
    """What to investigate. Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    alert_type: base.AlertType
    data: Annotated[
        JsonValue,
        WithJsonSchema({}),  # anything; its own would be a reference that dangles inside the API's description
        Field(description="What is known, as text or as JSON; passed on as it is."),
    ]
    runbook: Annotated[str | None, Field(max_length=2048, description="The URL of a runbook.")] = None
    severity: Annotated[str | None, Field(max_length=63)] = None

    def text(self) -> str:
        """The data as the agents read it."""
        if isinstance(self.data, str):
            return self.data
        return json.dumps(self.data, ensure_ascii=False, separators=COMPACT)


def schema() -> dict[str, Any]:
    """The payload's JSON schema, for the API's description."""
    return Alert.model_json_schema()
