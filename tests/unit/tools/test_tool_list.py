"""The part that is taken of the tools that a server offers."""

from __future__ import annotations

import json
import math

import pytest
from mcp import types
from tarsy.tools.servers import listing
from tarsy.tools.transports import wire

NAMED = {"type": "object", "properties": {"name": {"type": "string"}}}


def tool(name: str, **fields: object) -> types.Tool:
    return types.Tool.model_validate({"name": name, "inputSchema": NAMED, **fields})


def offered(*tools: types.Tool) -> listing.ToolList:
    offer = listing.ToolList("k8s")
    offer.add(tools)
    return offer


@pytest.mark.parametrize("name", ["get", "pods.list", "a-b:c_d", "9", "x" * 59])
def test_tool_is_listed_with_all_its_fields(name: str) -> None:
    hints = types.ToolAnnotations(read_only_hint=True)
    offer = offered(tool(name, description="It gets.", annotations=hints))
    assert (offer.problem, offer.left_out) == ("", [])
    [listed] = offer.tools
    assert (listed.name, listed.description, listed.input_schema) == (name, "It gets.", NAMED)
    assert listed.annotations == hints


def test_a_title_stands_for_a_missing_description() -> None:
    assert offered(tool("get", title="Get")).tools[0].description == "Get"


@pytest.mark.parametrize(
    "name", ["", "x" * 60, "x" * 300, "get pods", "get/pods", "gét", "get\n", "a\x00b", "\u202eget"]
)
def test_tool_with_name_refused_by_providers_is_left_out_and_reported(name: str) -> None:
    offer = offered(tool("get"), tool(name), tool("list"))
    assert [listed.name for listed in offer.tools] == ["get", "list"]
    assert offer.problem == "has 1 tool that is left out, because of its name"
    assert all(text.isprintable() and len(text) < 400 for text in offer.left_out)


def test_a_name_that_is_there_twice_is_left_out() -> None:
    offer = offered(tool("get", description="first"), tool("get", description="second"))
    assert [listed.description for listed in offer.tools] == ["first"]
    assert offer.problem


@pytest.mark.parametrize(("over", "full"), [(0, False), (1, True), (9000, True)])
def test_tool_list_holds_at_most_a_thousand_tools(over: int, full: bool) -> None:
    offer = offered(*(tool(f"get{number}") for number in range(wire.TOOLS_MAX + over)))
    assert (len(offer.tools), offer.is_full) == (wire.TOOLS_MAX, full)
    assert offer.problem == ("offers too many tools, those after the first 1000 are left out" if full else "")


def test_a_long_description_is_cut() -> None:
    text = offered(tool("get", description="x" * 10**6)).tools[0].description
    assert text == "x" * listing.DESCRIPTION_MAX + " [cut]"


@pytest.mark.parametrize(
    "default", [math.nan, json.loads(200 * "[" + 200 * "]"), "x" * listing.SCHEMA_MAX], ids=["nan", "deep", "long"]
)
def test_unstorable_or_too_long_tool_schema_is_replaced_by_schema_of_any_object(default: object) -> None:
    """It would break the commit that it is stored with, or each read of that."""
    odd = tool("get").model_copy(update={"input_schema": NAMED | {"default": default}})
    assert [listed.input_schema for listed in offered(odd, tool("list")).tools] == [{"type": "object"}, NAMED]


def test_other_fields_of_a_tool_are_dropped() -> None:
    """Icons, metadata and the schema of its results may be as large as a message."""
    large = {"x": "y" * 10**6}
    [listed] = offered(tool("get", outputSchema={"type": "object", **large}, _meta=large)).tools
    assert len(listed.model_dump_json()) < 1000
