"""The tools that a server offers, asked for page by page."""

from __future__ import annotations

import mcp
import pytest
from mcp import types
from mcp.server import Server
from tarsy.tools.servers import listing


async def endless(_: object, asked: types.PaginatedRequestParams | None) -> types.ListToolsResult:
    """A page without tools, and always another one behind it."""
    return types.ListToolsResult(tools=[], next_cursor=f"{asked.cursor if asked else ''}x")


async def test_endless_tool_list_is_given_up() -> None:
    async with mcp.Client(Server("odd", on_list_tools=endless)) as client:
        with pytest.raises(ValueError, match="its list of tools has more than 100 pages"):
            await listing.list_tools("odd", client, mask=lambda text, **_: text)
