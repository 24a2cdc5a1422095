"""The offer of an MCP server: listed, masked, and reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import mcp
from mcp import types

from tarsy.telemetry import details, standing
from tarsy.tools.calls import offered_tools, results
from tarsy.tools.servers import toolbox
from tarsy.tools.transports import bounds, wire

PAGES_MAX = 100
"""Pages of one list; a server that offers as many tools as are taken has had room for ten on each."""
BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the messages that one list comes in."""
TOLD_MAX = 500
"""Characters of a tool's description that are told to people."""


class TooLongError(ValueError):
    """A list of tools that is longer than is read; the message says which bound it is beyond."""


def is_too_long(error: BaseException) -> bool:
    """Return whether `error` is a TooLongError, in any groups that the SDK has put it into."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_too_long, error.exceptions))
    return isinstance(error, TooLongError)


async def offer(server: str, client: mcp.Client, *, mask: toolbox.Mask) -> bounds.Offer:
    """Return the tools of a server, masked; its hashes are of what the server said.

    A TooLongError where the whole list is beyond a bound: another attempt would cost as much again.
    """
    offered = bounds.Offer(server)
    cursor: str | None = None
    read = 0
    for _ in range(PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        read += (page.meta or {}).get(wire.LIST_BYTES, 0)
        if read > BYTES_MAX:
            raise TooLongError(f"its list of tools has more than {BYTES_MAX // 2**20} MiB")
        offered.add(page.tools)
        cursor = page.next_cursor
        if not cursor or offered.full:
            break
    else:
        raise TooLongError(f"its list of tools has more than {PAGES_MAX} pages")
    offered.tools = await asyncio.to_thread(_masked, offered.tools, mask)
    return offered


def offer_fact(server: str, offer: bounds.Offer, *, before: standing.Fact | None) -> standing.Fact:
    """Return the offer of a server as a fact; the same as `before` if it has not changed."""
    tools = tuple(
        details.OfferedTool(
            name=tool.name,
            description=(tool.description or "")[:TOLD_MAX],
            read_only=offered_tools.reads_only(tool),
            hash=offer.hashes[tool.name],
        )
        for tool in offer.tools
    )
    if before is not None and before.detail == details.Tools(tools=tools):
        return before
    return standing.Fact(
        kind="tools", name=server, state="listed", since=datetime.now(UTC), detail=details.Tools(tools=tools)
    )


def _masked(tools: Sequence[types.Tool], mask: toolbox.Mask) -> list[types.Tool]:
    return [results.masked(tool, mask) for tool in tools]
