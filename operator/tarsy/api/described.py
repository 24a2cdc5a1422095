"""How the API describes itself (OpenAPI): bodies that are read by hand, problems, and who is let in."""

from __future__ import annotations

from typing import Any


def body(schema: dict[str, Any]) -> dict[str, Any]:
    """How a JSON body that is read by hand is described."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
