"""The evidence for a result: what its agents inspected, what they could not, and references to calls never made.

All of it is a pure function of the record.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from tarsy.agent import templates
from tarsy.transcript import entries, excerpts, messages, record, tool_names

GAPS_MAX = 10
REASON_MAX = 200
"""The limit of a gap's reason, and of its tool's name, in characters."""
NAMED_MAX = 5
"""The maximum number of servers, and of stages, that the notice lists."""
_REFERENCES = re.compile(r"\[tools?\b(?:[\s,;&.#\d]|tools?|calls?|results?|and){1,100}+\]", re.IGNORECASE)
"""References as prompts ask for them, `[tool 2.1]`, and as models write several."""
_ID = re.compile(r"(?<![\d.])\d{1,6}\.\d{1,6}(?![\d.])")


def gaps(run: record.Run) -> tuple[entries.Gap, ...]:
    """Return the first gaps: failed, denied, missing or cut results, and references to calls that were not made."""
    distinct: dict[entries.Gap, None] = {}
    for gap in itertools.chain(unknown_references(run), _uninspected(run)):
        distinct.setdefault(gap)
        if len(distinct) == GAPS_MAX:
            break
    return tuple(distinct)


def grounds(run: record.Run) -> entries.Grounds | None:
    """Return the grounds of the result of a run's stages; None if there is no result."""
    concluded = [execution for execution in _executions(run) if execution.ended and execution.analysis]
    if not concluded:
        return None
    is_blind = all(execution.ended and execution.ended.ungrounded for execution in concluded)
    if is_blind or not any(record.results(execution.log) for execution in _executions(run)):
        return "ServersAway" if any(map(servers_away, concluded)) else "NothingInspected"
    if any(True for _ in unknown_references(run)):
        return "UnknownReferences"
    return "InspectedWithGaps" if gaps(run) else "Inspected"


def servers_away(execution: record.Execution) -> tuple[str, ...]:
    """Return an execution's MCP servers if it could call none of them because all were away; else ().

    A server that answered a call, even with an error, was not away.
    """
    agent = execution.started.agent
    if agent is None or not agent.servers or record.results(execution.log):
        return ()
    pinned = {spec.name for spec in execution.started.tools}
    answered = {
        tool_names.split(entry.tool_name)[0]
        for entry in execution.log
        if isinstance(entry, messages.Message)
        and entry.role == "tool"
        and entry.tool_name in pinned
        and entry.call_id not in execution.unreached
        and not _is_refused(entry)
    }
    return agent.servers if set(agent.servers) <= execution.away - answered else ()


def away_notice(run: record.Run) -> str:
    """Return a line about the MCP servers that agents with an analysis could not call, with their stages; or ""."""
    servers_by_stage = {
        name: servers
        for name, stage in run.stages.items()
        for execution in stage.agents
        if execution.analysis and (servers := servers_away(execution))
    }
    if not servers_by_stage:
        return ""
    names = list(dict.fromkeys(name for servers in servers_by_stage.values() for name in servers))
    missing = f"MCP server{'s' * (len(names) > 1)} {_listed(names)}"
    stages = f"stage{'s' * (len(servers_by_stage) > 1)} {_listed(list(servers_by_stage))}"
    return f"Could not be looked at: {missing} could not be reached ({stages})."


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(names[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def _is_refused(result: messages.Message) -> bool:
    """Return whether the rules of the execution refused the call of a result."""
    refused = templates.text("refused").partition("{")[0]
    return result.failed and (result.text == templates.text("repeated") or result.text.startswith(refused))


def unknown_references(run: record.Run) -> Iterator[entries.Gap]:
    """Yield the references in analyses to tool calls that did not happen, or that the agent could not see."""
    seen: set[str] = set()
    for stage in run.stages.values():
        own = {
            execution.started.execution: {
                entry.call_id for entry in execution.log if isinstance(entry, messages.Message) and entry.role == "tool"
            }
            for execution in stage.agents
        }
        for execution in stage.agents:
            yield from _unknown(execution, seen | own[execution.started.execution])
        seen = seen.union(*own.values())
        if stage.synthesis:
            yield from _unknown(stage.synthesis, seen)


def _unknown(execution: record.Execution, seen: set[str]) -> Iterator[entries.Gap]:
    for match in _REFERENCES.finditer(execution.analysis):
        for reference in _ID.findall(match[0]):
            if reference not in seen:
                reason = f"there was no such call: it is named in the analysis of {execution.started.name}"
                yield _gap(f"[tool {reference}]", reason)


def _uninspected(run: record.Run) -> Iterator[entries.Gap]:
    for execution in _executions(run):
        agent = execution.started.agent
        for problem in agent.problems if agent else ():
            server, _, what = problem.partition("' ")
            yield _gap(server.partition("'")[2] or "tools", what or problem)
        yield from _failed(execution)
        if execution.ended and execution.ended.ungrounded:
            yield _gap("-", f"{execution.started.name} concluded without a result of its tools")


def _failed(execution: record.Execution) -> Iterator[entries.Gap]:
    """Yield the failed calls, except those that succeeded when repeated, and the cut results."""
    calls = {call.id: call for entry in execution.log if isinstance(entry, messages.Message) for call in entry.calls}
    results = [entry for entry in execution.log if isinstance(entry, messages.Message) and entry.role == "tool"]
    answered_calls = {
        (calls[result.call_id].name, calls[result.call_id].arguments) for result in results if not result.failed
    }
    for result in results:
        call = calls[result.call_id]
        if (
            result.failed
            and (call.name, call.arguments) not in answered_calls
            and result.text != templates.text("repeated")
        ):
            yield _gap(call.name, result.text)
        elif not result.failed and (
            result.call_id in execution.cut
            or (result.call_id in execution.excerpts and not execution.looks_into_results)
        ):
            yield _gap(call.name, "its result was cut")


def _gap(tool: str, reason: str) -> entries.Gap:
    return entries.Gap(tool=excerpts.one_line(tool, REASON_MAX), reason=excerpts.one_line(reason, REASON_MAX))


def _executions(run: record.Run) -> Iterator[record.Execution]:
    for stage in run.stages.values():
        yield from stage.agents
