"""The tools as a client lists them and a model reads them."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest
from tarsy.api import app
from tarsy.mcp_endpoint import endpoint, tools
from tarsy_dev import tools as dev_tools

LISTED_MAX = 25_000
"""Bytes of the list: each agent that connects has it in its context."""


@pytest.fixture
async def listed() -> list[mcp_types.Tool]:
    application = app.bare()
    server = endpoint._Server("tarsy")
    tools.Tools(application, subscribing=application.services.subscribing, pages=lambda: None).add_to(server)
    return await server.list_tools()


def schemas(part: Any) -> list[dict[str, Any]]:
    """All objects of a schema."""
    inner = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return [*([part] if isinstance(part, dict) else []), *(schema for each in inner for schema in schemas(each))]


async def test_each_argument_has_one_type_and_a_description(listed: list[mcp_types.Tool]) -> None:
    for tool in listed:
        assert tool.input_schema["additionalProperties"] is False
        for name, argument in tool.input_schema["properties"].items():
            assert isinstance(argument["type"], str), (tool.name, name)
            assert argument["description"], (tool.name, name)
        optional = set(tool.input_schema["properties"]) - set(tool.input_schema.get("required", ()))
        assert all(tool.input_schema["properties"][name].get("default", 0) is not None for name in optional)
        assert not [part for part in schemas(tool.input_schema) if "anyOf" in part]
        assert not [part for part in schemas([tool.input_schema, tool.output_schema]) if type(part.get("title")) is str]


async def test_the_list_is_small(listed: list[mcp_types.Tool]) -> None:
    assert len(json.dumps([tool.model_dump(mode="json", exclude_none=True) for tool in listed])) < LISTED_MAX


async def test_instructions_and_documentation_name_every_tool(listed: list[mcp_types.Tool]) -> None:
    page = (dev_tools.ROOT / "docs/agents.md").read_text(encoding="utf-8")
    for tool in listed:
        assert f"`{tool.name}`" in page
        assert f"`{tool.name}`" in tools.INSTRUCTIONS or tool.name == "investigation_get"
