"""Reachability of the MCP servers that a chain needs, by the reports of the workers.

This is a condition of its own, neither Ready nor Stalled: a server that is down keeps no alert from its chain, and is
often back before a person has looked. A tool that is stopped because it differs from its pin is reported beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from tarsy.store.fleet import catalogue

CONDITION = "MCPServersReachable"

Said: TypeAlias = Mapping[str, Sequence[catalogue.Said]]
"""The reports of all processes on each server, by its name."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on the servers of one chain."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""


def by_name(facts: Iterable[catalogue.Said]) -> Said:
    """Group reports by the names of the servers."""
    facts_by_name: dict[str, list[catalogue.Said]] = {}
    for fact in facts:
        facts_by_name.setdefault(fact.name, []).append(fact)
    return facts_by_name


def states(facts: Said) -> Mapping[str, object]:
    """All of it that a verdict depends on."""
    return {
        name: ([(fact.state, fact.detail.problem) for fact in places], _stopped(name, places))
        for name, places in facts.items()
    }


def judged(needed: Sequence[str], facts: Said) -> Verdict:
    """The verdict on servers of which one at least is needed."""
    down, silent = [], []
    for name in needed:
        places = facts.get(name, ())
        away = [fact for fact in places if fact.state == "unreachable"]
        if away:
            where = "" if len(away) == len(places) else f" (in {len(away)} of {len(places)} processes)"
            down.append(f"MCP server '{name}'{where} {away[0].detail.problem}")
        elif not any(fact.state == "connected" for fact in places):
            silent.append(f"MCP server '{name}' has not been connected to yet")
    stopped = [problem for name in needed for problem in _stopped(name, facts.get(name, ()))]
    if down:
        return Verdict(status="False", reason="ServersUnreachable", message="; ".join([*down, *stopped]))
    if silent:
        return Verdict(status="Unknown", reason="ServersNotConnected", message="; ".join(silent))
    if stopped:
        return Verdict(status="True", reason="ToolsStopped", message="; ".join(stopped))
    return Verdict(status="True", reason="ServersReachable")


def _stopped(name: str, places: Iterable[catalogue.Said]) -> list[str]:
    """The tools of a server that are stopped, a sentence each, each said once."""
    problems = (
        f"tool '{name}.{tool.tool}' is stopped: pinned {tool.pinned or 'never'}, now {tool.offered}"
        for fact in places
        for tool in fact.detail.stopped
    )
    return list(dict.fromkeys(problems))
