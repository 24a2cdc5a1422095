"""The names of tools: `server.tool`."""

from __future__ import annotations


def split(name: str) -> tuple[str, str]:
    """Return the MCP server and the tool of a name; the server is "" if the name has no dot."""
    server, dot, tool = name.partition(".")
    return (server, tool) if dot else ("", name)


def fields(name: str) -> dict[str, str]:
    """Return the fields by which events and the API show a name."""
    server, tool = split(name)
    return {"server_name": server, "tool_name": tool}
