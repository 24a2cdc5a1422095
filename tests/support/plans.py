"""Reads of a statement, by the plan that Postgres has run: they do not depend on the machine's speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def rows_read(plan: Mapping[str, Any]) -> dict[str, int]:
    """The rows that each scan of a table or an index has read, by its table or index."""
    read: dict[str, int] = {}
    for node in nodes(plan):
        name = node.get("Index Name") or node.get("Relation Name")
        if name and "Scan" in node["Node Type"] and node["Node Type"] != "Bitmap Index Scan":  # that one has dead rows
            seen = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            read[name] = max(read.get(name, 0), round(seen * node["Actual Loops"]))
    return read
