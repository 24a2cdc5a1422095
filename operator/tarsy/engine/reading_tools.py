"""The tools whose calls a recheck makes again: those of kubernetes-mcp-server that read what the cluster holds.

Tools that measure (`pods_top`, `nodes_top`, `nodes_stats_summary`) are not among them: their results are never alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tarsy.engine.comparison import results


@dataclass(frozen=True, kw_only=True)
class ReadingTool:
    """A tool whose calls may be made again."""

    form: results.Form
    arguments: frozenset[str]
    """The arguments that it may have."""


def _tool(form: results.Form, *arguments: str) -> ReadingTool:
    return ReadingTool(form=form, arguments=frozenset(arguments))


READING_TOOLS: Mapping[str, ReadingTool] = {
    "events_list": _tool("events", "namespace", "fieldSelector"),
    "namespaces_list": _tool("list", "fieldSelector"),
    "projects_list": _tool("list"),
    "pods_get": _tool("object", "name", "namespace"),
    "pods_list": _tool("list", "fieldSelector", "labelSelector"),
    "pods_list_in_namespace": _tool("list", "namespace", "fieldSelector", "labelSelector"),
    "pods_log": _tool("log", "name", "namespace", "container", "previous", "tail"),
    "nodes_log": _tool("log", "name", "query", "tailLines"),
    "resources_get": _tool("object", "apiVersion", "kind", "name", "namespace"),
    "resources_list": _tool("list", "apiVersion", "kind", "namespace", "fieldSelector", "labelSelector"),
}
"""By their names. Source: kubernetes-mcp-server 0.0.67, `tools/list` with `--read-only --toolsets core`."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d|(?<!\d)1[5-9]\d{8}(?:\d{3})?(?!\d)")
"""A date, a time of day, or seconds or milliseconds since 1970."""


def problem(tool: str, arguments: str) -> str:
    """Return why a call cannot be made again; "" if it can. `tool` is without its server."""
    if (reading := READING_TOOLS.get(tool)) is None:
        return f"{tool} is none of the reading tools"
    try:
        named = json.loads(arguments)
    except (ValueError, RecursionError):
        named = None
    if not isinstance(named, dict):
        return f"the arguments of {tool} are no JSON object"
    if others := sorted(named.keys() - reading.arguments):
        return f"{tool} has the argument {others[0]}"
    return f"the arguments of {tool} name a time" if _TIME.search(arguments) else ""


def in_words(tool: str, arguments: str) -> str:
    """Return a call in words, such as `pods_get (name web-0, namespace shop)`."""
    named = ", ".join(f"{name} {value}" for name, value in json.loads(arguments).items())
    return f"{tool} ({named})" if named else tool
