"""The tree of `watch`: a row for each stage, and branches for the agents of running stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tarsy.cli.client import terminal, times, views

HEADER = ("STAGE", "STATUS", "AGENT", "ITER", "TOOLS", "TOKENS", "DURATION", "MESSAGE")
RUNNING = ("Running", "Cancelling")
Row = tuple[str, ...]


def rows(view: dict[str, Any]) -> Iterator[Row]:
    """Yield the rows of an investigation."""
    executions = [each for each in view.get("executions") or () if each["run"] == 0]
    for stage in view["stage_progress"]:
        within = [each for each in executions if each["stage"] == stage["name"]]
        running = stage["phase"] in RUNNING and len(within) > 1
        yield _stage_row(stage, within)
        for number, execution in enumerate(within if running else ()):
            last = number == len(within) - 1
            yield (f"{'└─' if last else '├─'} {execution['kind']}", *_execution_cells(execution))
    for execution in executions:
        if not execution["stage"]:
            yield (f"({execution['kind']})", *_execution_cells(execution))


def _stage_row(stage: dict[str, Any], executions: list[dict[str, Any]]) -> Row:
    """Return the row of a stage, with the counts of its executions or, without them, of its status."""
    agents = stage["agents"]
    if executions:
        ended = sum(1 for each in executions if each["outcome"])
        agents = executions[0]["name"] if len(executions) == 1 else f"{ended}/{len(executions)}"
    elif not isinstance(agents, str):
        agents = agents[0] if len(agents) == 1 else f"0/{len(agents)}" if agents else ""
    begun = stage["phase"] not in ("Pending", "Skipped")
    counts = (
        [sum(each[key] for each in executions) for key in ("iterations", "tool_calls", "total_tokens")]
        if executions
        else [stage.get(key) or 0 for key in ("iterations", "tool_calls", "total_tokens")]
    )
    seconds = stage["seconds"] if stage["seconds"] is not None else times.since(stage["started_at"])
    return (
        stage["name"],
        stage["phase"],
        agents,
        *((str(count) if begun else "") for count in counts),
        times.duration_text(seconds) if begun else "",
        stage["message"],
    )


def _execution_cells(execution: dict[str, Any]) -> Row:
    return (
        execution["outcome"] or "Running",
        execution["name"],
        *(str(execution[key]) for key in ("iterations", "tool_calls", "total_tokens")),
        times.duration_text(times.since(execution["started_at"], until=execution["ended_at"])),
        execution["error"],
    )


def title(view: dict[str, Any]) -> str:
    """Return the line above the tree."""
    parts = [
        f"{view['namespace']}/{view['name']}",
        view["alert_type"],
        f"chain {view['chain_name']}" if view["chain_name"] else "",
        view["phase"],
        view["progress"],
        views.duration(view),
        f"{view['total_tokens']} tokens" if view["total_tokens"] else "",
        f"takeovers: {view['attempts'] - 1}" if view["attempts"] > 1 else "",
    ]
    return "  ".join(terminal.clean_line(part) for part in parts if part)


def lines(view: dict[str, Any]) -> list[str]:
    """Return the whole tree, with colours on a terminal that has them."""
    waits = view.get("waits_for") or ("" if views.has_ended(view) else view["message"])
    tree_rows = list(rows(view))
    drawn = terminal.table(tree_rows, header=HEADER)
    for number, row in enumerate(tree_rows, start=1):
        # The search begins after the first cell, which may contain the same word.
        start = drawn[number].find(row[1], len(row[0])) if row[1] else -1
        if start >= 0:
            end = start + len(row[1])
            drawn[number] = drawn[number][:start] + terminal.coloured(row[1]) + drawn[number][end:]
    return [
        title(view),
        *([f"Message: {terminal.clean_line(waits)}"] if waits else []),
        *(drawn if tree_rows else []),
    ]


def states(view: dict[str, Any]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return status and message of the investigation, its stages and its agents, by kind and name."""
    by_key: dict[tuple[str, ...], tuple[str, str]] = {("investigation", view["name"]): (view["phase"], view["message"])}
    for stage in view["stage_progress"]:
        if stage["phase"] != "Pending":
            by_key["stage", stage["name"]] = (stage["phase"], stage["message"])
    for execution in view.get("executions") or ():
        if execution["run"] == 0:
            key = ("agent", execution["stage"], execution["name"], execution["id"])
            by_key[key] = (execution["outcome"] or "Running", execution["error"])
    if view["attempts"] > 1:
        by_key["takeover", str(view["attempts"])] = ("Running", "another worker continues")
    return by_key
