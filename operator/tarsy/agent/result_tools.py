"""TARSy's own tools, which look into results of the same investigation: result.search and result.read.

A model has read an excerpt of a long result, or a part, or nothing of what a compaction took away or an earlier agent
saw. The whole is committed already, masked, so these tools ask no server, repeat no call, and work after a takeover, in
later stages and in answers to questions. They are called, counted, limited and committed like any tool.

An execution that begins after others have called tools has them from its start. Any other gets them with the first
result that its model has not read whole: most never need them, and their descriptions cost tokens in each request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from tarsy.agent import excerpting, templates
from tarsy.config import resolve
from tarsy.resources import tool_patterns
from tarsy.telemetry import metrics
from tarsy.transcript import excerpts, full_results, messages, ports, record, result_lookup, tool_names

SEARCH, READ = tool_patterns.RESULT_TOOLS
OUTPUT_MAX = 16_000
"""The limit of a result of these tools, in characters; a provider's limit of tool results may be lower."""
CONTEXT = 2
"""The default of lines around a match."""
CALLS_LISTED = 20
"""The last calls of an execution that an error lists."""
_NAMED_MAX = 100
"""Characters of a wrong argument in an error."""
_CALL = {
    "type": "string",
    "description": "The call that gave the result, as execution/2.1; 2.1 is a call of your own",
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    SEARCH: {
        "type": "object",
        "properties": {
            "call": _CALL,
            "pattern": {
                "type": "string",
                "description": "A regular expression in RE2's syntax, matched within lines; (?i) ignores case",
            },
            "context": {
                "type": "integer",
                "description": f"Lines to show on either side of a match, {CONTEXT} by default",
                "minimum": 0,
                "maximum": result_lookup.CONTEXT_MAX,
            },
            "from": {"type": "integer", "description": "The first line to search, 1 by default", "minimum": 1},
        },
        "required": ["call", "pattern"],
        "additionalProperties": False,
    },
    READ: {
        "type": "object",
        "properties": {
            "call": _CALL,
            "from": {"type": "integer", "description": "The first line to show, 1 by default", "minimum": 1},
            "to": {"type": "integer", "description": "The last line to show; as many as fit by default", "minimum": 1},
            "character": {
                "type": "integer",
                "description": "The character of the first line to begin at, for a long line; 1 by default",
                "minimum": 1,
            },
        },
        "required": ["call"],
        "additionalProperties": False,
    },
}
_DESCRIPTIONS = {SEARCH: "result-search", READ: "result-read"}


def specs(agent: resolve.ResolvedAgent) -> tuple[messages.ToolSpec, ...]:
    """Return the tools that look into results, without those that the agent's tool selection denies."""
    return tuple(
        messages.ToolSpec(
            name=name, description=templates.text(_DESCRIPTIONS[name]), parameters=_PARAMETERS[name], idempotent=True
        )
        for name in tool_patterns.RESULT_TOOLS
        if agent.admits(name)
    )


def is_own(name: str) -> bool:
    """Return whether a tool of this name would be one of these."""
    return tool_names.split(name)[0] == tool_patterns.RESULT_SERVER


async def run(
    call: messages.ToolCall, *, execution: record.Execution, journal: ports.Journal, limit: int
) -> ports.ToolOutput:
    """Run a call of one of these tools for `execution`, in at most `limit` characters. Errors are its output."""
    began, outcome = time.monotonic(), "cancelled"
    try:
        output = await _output(call, execution, journal, min(limit, OUTPUT_MAX))
        outcome = "failed" if output.failed else "answered"
    finally:
        labels = tool_names.split(call.name)
        metrics.TOOL_CALLS.add(*labels, outcome)
        metrics.TOOL_CALL_SECONDS.observe(time.monotonic() - began, *labels)
    return output


async def _output(
    call: messages.ToolCall, execution: record.Execution, journal: ports.Journal, limit: int
) -> ports.ToolOutput:
    try:
        arguments = _arguments(call)
        lookup = _lookup(call.name, arguments, limit)
        text, failed = await _whole(str(arguments["call"]), execution, journal)
        if len(text) <= excerpting.ON_LOOP_MAX:
            answer_text = lookup(text)
        else:
            answer_text = await asyncio.to_thread(lookup, text)
    except result_lookup.RequestError as error:
        return ports.ToolOutput(text=messages.storable(str(error)), failed=True)
    return ports.ToolOutput(text=messages.storable(answer_text), failed=failed)


def _lookup(name: str, arguments: Mapping[str, Any], limit: int) -> Callable[[str], str]:
    """Return the search or the reading that the arguments ask for."""
    first = arguments.get("from", 1)
    if name == SEARCH:
        rule, context = result_lookup.compile_pattern(arguments["pattern"]), arguments.get("context", CONTEXT)
        return lambda text: result_lookup.search(text, rule, context=context, first=first, limit=limit)
    last, character = arguments.get("to"), arguments.get("character", 1)
    return lambda text: result_lookup.read(text, first=first, last=last, character=character, limit=limit)


def _arguments(call: messages.ToolCall) -> dict[str, Any]:
    """Return the arguments of a call by the tool's schema; raises RequestError with what would be right."""
    schema = _PARAMETERS[call.name]
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise result_lookup.RequestError(
            f"The arguments of {call.name} must be a JSON object, such as {_example(call)}"
        )
    for name, value in arguments.items():
        if (expected := schema["properties"].get(name)) is None:
            known_names = ", ".join(schema["properties"])
            raise result_lookup.RequestError(f"{call.name} has no argument '{_short(name)}'. It has: {known_names}")
        least, most = expected.get("minimum", 0), expected.get("maximum", 10**9)
        if expected["type"] == "string" and not isinstance(value, str):
            raise result_lookup.RequestError(f"'{name}' must be a text, such as in {_example(call)}")
        if expected["type"] == "integer" and (
            isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most
        ):
            raise result_lookup.RequestError(f"'{name}' must be a whole number from {least} to {most}")
    if missing := [name for name in schema["required"] if name not in arguments]:
        raise result_lookup.RequestError(f"'{missing[0]}' is missing: give arguments such as {_example(call)}")
    return arguments


def _example(call: messages.ToolCall) -> str:
    example = {"call": "0.0", "pattern": "(?i)error"} if call.name == SEARCH else {"call": "0.0", "from": 1, "to": 100}
    return json.dumps(example)


async def _whole(reference: str, execution: record.Execution, journal: ports.Journal) -> tuple[str, bool]:
    """Return the whole result of the call that is meant, and whether it is an error; raises RequestError."""
    identity, _, call_id = reference.strip().rpartition("/")
    of_call = journal.record.executions.get(identity) if identity else execution
    result = next(
        (
            logged
            for logged in of_call.log
            if isinstance(logged, messages.Message) and logged.role == "tool" and logged.call_id == call_id
        )
        if of_call
        else iter(()),
        None,
    )
    if of_call is None or result is None:
        calls = [logged.call_id for logged in execution.log if isinstance(logged, messages.Message) and logged.call_id]
        raise result_lookup.RequestError(
            f"There is no result of a call '{_short(reference)}'. "
            f"Your own calls with results: {', '.join(calls[-CALLS_LISTED:]) or 'none yet'}; "
            "those of others are named with their execution, as execution/2.1"
        )
    if call_id in of_call.cut or call_id in of_call.excerpts:
        full_text = await journal.whole(of_call.started.execution, call_id)
        if full_text is not None:
            return full_text, result.failed
        if full_results.was_stored(of_call.text_of_result(call_id), is_excerpt=call_id in of_call.excerpts):
            length = of_call.cut.get(call_id) or of_call.excerpts[call_id].length
            deleted = full_results.Deleted(at=None, length=length)
            raise result_lookup.RequestError(f"{deleted.message} Only what was shown of it is left")
    return of_call.text_of_result(call_id), result.failed


def _short(text: str) -> str:
    return excerpts.one_line(text, _NAMED_MAX)
