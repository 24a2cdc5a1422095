"""How entries are stored: what is written comes back, for ever; and what cannot be read is said and never raised.

`recorded/shapes.json` holds a digest of each stored shape by its version, `recorded/entries-v1.json` and the like rows
as they were written since some kinds came into that version. All are only ever added to.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest
from tarsy.config import resolve
from tarsy.config.model import tool_filters
from tarsy.resources import chains, investigations
from tarsy.transcript import entries, entry_versions, line_excerpts, messages, record, timeline

RECORDED = Path(__file__).parents[1] / "recorded"

NOT_STORABLE = "\x00 and \ud83d and \\u0000"
AGENT = resolve.ResolvedAgent(
    name="KubernetesAgent",
    provider="google-default",
    strategy="native-thinking",
    max_iterations=20,
    servers=("kubernetes-server", "prometheus"),
    custom_instructions="Be brief.\nBé brîef. 💥",
    server_instructions=(("kubernetes-server", "Prefer namespaced queries."),),
    problems=("MCP server 'prometheus' is not connected yet",),
)
TOOLS = (
    messages.ToolSpec(name="kubernetes-server.pods_list"),
    messages.ToolSpec(
        name="kubernetes-server.pods_log",
        description="Log of a pod; größer als 0",
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": NOT_STORABLE},
                "tail": {"type": "integer", "minimum": 1, "maximum": 2**70, "default": None, "examples": [1, 2.5]},
            },
            "required": ["name"],
            "additionalProperties": False,
            "\x00": {},
        },
        idempotent=True,
    ),
)
STATE = messages.ProviderState(
    provider="google-default",
    data=[
        {"thought": True, "text": "erst die Pods 🔍"},
        {"thoughtSignature": "q83vAAD/", "functionCall": {"name": "k__pods_log", "args": {"n": [1, 2.5, None]}}},
        {"text": NOT_STORABLE, "deep": {"er": [{"est": [[], {}]}]}, "yes": True, "": -0.0, "\x00": 10**30},
    ],
)
PROMPT = (
    messages.Message(role="system", text="You are KubernetesAgent."),
    messages.Message(role="user", text='pod "wéb-0" startet neu\n\t{"a": "\\u0000"} 🚨 \u2028 \ufffd'),
)
CALLS = (
    messages.ToolCall(id="0.0", name="kubernetes-server.pods_log", arguments='{"name": "web-0", "tail": 5}'),
    messages.ToolCall(id="0.1", name="made up", arguments="{"),
)
ASKS = messages.Message(role="assistant", text="I look.", thinking="hm\n", calls=CALLS, provider_state=STATE)
CALL = entries.ModelCall(
    provider="google-default",
    model="gemini-2.5-flash",
    seconds=1.25,
    usage=messages.Usage(input_tokens=7, output_tokens=5, thinking_tokens=3, total_tokens=15),
    attempts=(
        entries.Attempt(error="503 UNAVAILABLE: überlastet", usage=messages.Usage(input_tokens=7)),
        entries.Attempt(error="429"),
    ),
)
CONCLUDE = messages.Message(role="user", text="Conclude now.")
RESULTS = (
    messages.Message(role="tool", call_id="0.0", tool_name="kubernetes-server.pods_log", text="FATAL 💥\n"),
    messages.Message(role="tool", call_id="0.1", tool_name="made up", text="unknown", failed=True, in_doubt=True),
)

SAMPLES: dict[str, entries.Entry] = {
    "StageStarted": entries.StageStarted(run=3, stage="look", clock=12.75),
    "StageStarted, small": entries.StageStarted(stage="look", clock=0.0),
    "ExecutionStarted": entries.ExecutionStarted(
        run=3,
        stage="look",
        execution="0123456789abcdef",
        index=2,
        parent="fedcba9876543210",
        name="KubernetesAgent-3",
        agent=AGENT,
        tools=TOOLS,
        messages=PROMPT,
    ),
    "ExecutionStarted, which never got that far": entries.ExecutionStarted(
        stage="look", execution="0123456789abcdef", index=0, name="Nobody", agent=None
    ),
    "Answered": entries.Answered(execution="0123456789abcdef", turn=4, messages=(ASKS,), call=CALL),
    "Answered, a conclusion": entries.Answered(
        execution="0123456789abcdef",
        turn=20,
        messages=(CONCLUDE, messages.Message(role="assistant", text="It is out of memory.")),
        call=entries.ModelCall(provider="google-default", model="gemini-2.5-flash", seconds=0.0),
    ),
    "Unanswered": entries.Unanswered(
        execution="0123456789abcdef",
        turn=5,
        failure=messages.Failure(kind="rejected", text="an empty answer"),
        call=CALL,
        messages=(CONCLUDE,),
    ),
    "Unanswered, small": entries.Unanswered(
        execution="0123456789abcdef",
        turn=0,
        failure=messages.Failure(kind="fatal", text=""),
        call=entries.ModelCall(provider="p", model="m", seconds=3.0),
    ),
    "ToolsAnswered": entries.ToolsAnswered(
        execution="0123456789abcdef",
        runs=tuple(
            entries.ToolRun(call=call, result=result, seconds=0.5) for call, result in zip(CALLS, RESULTS, strict=True)
        ),
    ),
    "ExecutionEnded": entries.ExecutionEnded(execution="0123456789abcdef", outcome="Failed", error="the key is bad"),
    "ExecutionEnded, small": entries.ExecutionEnded(execution="0123456789abcdef", outcome="Completed"),
    "StageEnded": entries.StageEnded(
        run=3, stage="look", outcome="Completed", message="A-2: no", lacks=("no tools", "nor those")
    ),
    "StageEnded, skipped": entries.StageEnded(stage="look", outcome="Skipped", message="skipped"),
    "RunEnded": entries.RunEnded(
        run=3,
        ending="CompletedWithErrors",
        reason="StagesFailed",
        message="stage 'look' failed: no",
        final_analysis="#### Agent 1: A-1\n\nIt is out of memory. 💥",
    ),
    "RunEnded, small": entries.RunEnded(ending="Cancelled", reason="CancelledByUser"),
    # Since version 2 of their kinds:
    "RunStarted": entries.RunStarted(run=2, question="Why, in Düsseldorf? 💥"),
    "ExecutionStarted, of a summary": entries.ExecutionStarted(
        stage="",
        execution="0123456789abcdef",
        kind="summary",
        index=0,
        name="ExecutiveSummary",
        agent=replace(AGENT, strategy="synthesis", servers=(), server_instructions=()),
        messages=PROMPT,
    ),
    "ExecutionEnded, ungrounded": entries.ExecutionEnded(
        execution="0123456789abcdef", outcome="Completed", ungrounded=True
    ),
    "StageEnded, with errors": entries.StageEnded(stage="look", outcome="CompletedWithErrors", message="synthesis: no"),
    "RunEnded, with grounds": entries.RunEnded(
        ending="Completed",
        reason="StagesCompleted",
        final_analysis="It is out of memory.",
        summary="web-0 is out of memory.\nRaise its limit.",
        gaps=(entries.Gap(tool="kubernetes-server.pods_log", reason="403 💥"),),
        grounds="InspectedWithGaps",
    ),
    # Since budgets:
    "ExecutionStarted, with a budget": entries.ExecutionStarted(
        stage="look",
        execution="0123456789abcdef",
        index=0,
        name="KubernetesAgent",
        agent=replace(AGENT, budget=resolve.Budget(at_once=8, calls=200, of_one_tool=50, failed=5)),
        messages=PROMPT,
    ),
    # Since fallbacks, native tools and costs:
    "ExecutionStarted, with fallbacks": entries.ExecutionStarted(
        stage="look",
        execution="0123456789abcdef",
        index=0,
        name="KubernetesAgent",
        agent=replace(
            AGENT,
            native=resolve.NativeTools(left_out=("google_search", "url_context"), mixes=False),
            fallbacks=(
                resolve.Fallback(provider="anthropic-default", native=resolve.NativeTools(offered=("web_search",))),
                resolve.Fallback(provider="other"),
            ),
        ),
        messages=PROMPT,
    ),
    "Answered, with native results": entries.Answered(
        execution="0123456789abcdef",
        turn=1,
        messages=(
            messages.Message(
                role="assistant",
                text="4, as they say",
                native=(
                    messages.NativeResult(
                        tool="code_execution",
                        content="4\n",
                        details={"code": "print(2 + 2)", "language": "PYTHON", "outcome": "OUTCOME_OK"},
                    ),
                    messages.NativeResult(
                        tool="google_search",
                        content="Sums 💥: https://example.com/sums",
                        details={
                            "queries": ["2 + 2"],
                            "sources": [{"title": "Sums 💥", "url": "https://example.com/sums"}],
                        },
                    ),
                ),
            ),
        ),
        call=replace(
            CALL,
            attempts=(entries.Attempt(error="429 slow down", provider="google-default", code="429"),),
            retries=1,
            cost=0.0125,
        ),
    ),
    "FellBack": entries.FellBack(
        execution="0123456789abcdef",
        turn=2,
        provider="anthropic-default",
        failure=messages.Failure(kind="fatal", text="google-default: 401 überholt", code="401"),
        call=CALL,
    ),
    "ContextCompacted": entries.ContextCompacted(
        execution="0123456789abcdef", turn=7, results=("0.0", "0.1"), tokens=131_072, limit=128_000
    ),
    "ContextCompacted, of a refused request": entries.ContextCompacted(
        execution="0123456789abcdef",
        turn=7,
        cut=("6.0", "6.1"),
        shown=1_200,
        tokens=131_072,
        limit=0,
        failure=messages.Failure(kind="fatal", text="google-default: 400 zu groß", code=messages.CONTEXT_OVERFLOW),
        call=CALL,
    ),
    # Since each level takes away from the tools:
    "ExecutionStarted, with filters": entries.ExecutionStarted(
        stage="look",
        execution="0123456789abcdef",
        index=0,
        name="KubernetesAgent",
        agent=replace(
            AGENT,
            tools=(
                tool_filters.Filter(allow=("kubernetes-server.pods_*",), deny=("*_log",)),
                tool_filters.Filter(allow=()),
            ),
        ),
        messages=PROMPT,
    ),
    "ToolsSelected": entries.ToolsSelected(
        mcp=investigations.MCP(
            servers=[
                investigations.MCPServer(name="kubernetes-server", tools=["pods_list", "größe*"]),
                investigations.MCPServer(name="prometheus"),
            ],
            tools=chains.Tools(allow=["*.pods_*"], deny=["*.pods_log"]),
            native_tools={"google_search": False, "url_context": True},
        )
    ),
    "ToolsSelected, small": entries.ToolsSelected(mcp=investigations.MCP()),
    # Since runbooks:
    "RunbookRead": entries.RunbookRead(
        run=0, url="https://github.com/o/r/blob/main/a.md", origin="url", text="# Zuerst\n\n1. Schau nach 🔍"
    ),
    "RunbookRead, of another place": entries.RunbookRead(
        run=0,
        url="https://example.com/a.md",
        origin="builtin",
        text="1. Look.",
        problem="example.com is not among runbooks.allowed_domains: github.com",
    ),
    # Since results are kept whole, and summed up:
    "ToolsAnswered, of which more is kept": entries.ToolsAnswered(
        execution="0123456789abcdef",
        runs=(
            entries.ToolRun(
                call=CALLS[0],
                result=RESULTS[0],
                seconds=0.5,
                length=200_000,
                summary=entries.SummaryDue(provider="größer", tokens=1000, reads=400_000),
            ),
        ),
    ),
    "ToolSummarised": entries.ToolSummarised(
        execution="0123456789abcdef",
        turn=1,
        call_id="0.0",
        tool="kubernetes-server.pods_log",
        word="0123abcd",
        text="FATAL 💥, 3 times",
        call=CALL,
    ),
    "ToolSummarised, in vain": entries.ToolSummarised(
        execution="0123456789abcdef",
        turn=1,
        call_id="0.0",
        tool="kubernetes-server.pods_log",
        word="0123abcd",
        failure=messages.Failure(kind="rejected", text="a summary of 9,000 characters, größer"),
        call=CALL,
    ),
    # Since providers' names of responses are kept:
    "Answered, by a version of the model": entries.Answered(
        execution="0123456789abcdef",
        turn=0,
        messages=(messages.Message(role="assistant", text="It is out of memory."),),
        call=replace(CALL, response_model="gemini-2.5-flash-preview-09-2025 💥", response_id="Zx3kaMbxA_fX7M8P"),
    ),
    # Since servers that are away, and retries, are told as they happen:
    "AlertJoined": entries.AlertJoined(
        execution="0123456789abcdef",
        number=42,
        alerts=3,
        clock=61.5,
        messages=(messages.Message(role="user", text="3 more alerts: 💥"),),
    ),
    "ServersAway": entries.ServersAway(execution="0123456789abcdef", servers=("kubernetes-server", "prometheus")),
    "ServersAway, for calls": entries.ServersAway(
        execution="0123456789abcdef", servers=("kubernetes-server",), calls=("0.0", "0.1")
    ),
    "ModelRetried": entries.ModelRetried(
        execution="0123456789abcdef",
        turn=2,
        provider="google-default",
        model="gemini-2.5-flash",
        attempt=3,
        error="429 zu schnell",
        code="429",
        seconds=12.5,
    ),
    "RunEnded, while servers were away": entries.RunEnded(
        ending="CompletedWithErrors",
        reason="StagesFailed",
        message="stage 'look' completed with errors: KubernetesAgent: none of its MCP servers could be reached: k8s",
        final_analysis="Could not be looked at: MCP server k8s could not be reached (stage look).",
        grounds="ServersAway",
    ),
    # Since rechecks:
    "Rechecked": entries.Rechecked(
        former="7d1c0b2e-0000-4000-8000-000000000001",
        name="web-crash",
        ended="2026-11-25 07:22 UTC",
        calls=("pods_get (name web-0, namespace shop)",),
    ),
    "Rechecked, with differences": entries.Rechecked(
        former="7d1c0b2e-0000-4000-8000-000000000001",
        name="web-crash",
        ended="2026-11-25 07:22 UTC",
        calls=("pods_get (name wéb-0)", "events_list"),
        differences=("pods_get (name wéb-0): spec.image: 'a' -> '💥'",),
        more=3,
    ),
    # Since the log says why there is no recheck:
    "Rechecked, not made": entries.Rechecked(
        former="7d1c0b2e-0000-4000-8000-000000000001",
        name="web-crash",
        ended="2026-11-25 07:22 UTC",
        calls=(),
        problem="the masking has changed since",
    ),
    "ExecutionStarted, of a recheck": entries.ExecutionStarted(
        stage="", execution="0123456789abcdef", kind="recheck", index=0, name="Recheck", agent=None, tools=TOOLS
    ),
    "RunEnded, unchanged": entries.RunEnded(
        ending="Completed",
        reason="Unchanged",
        message="Unchanged since web-crash",
        final_analysis="It is out of memory.",
        grounds="Inspected",
        former="7d1c0b2e-0000-4000-8000-000000000001",
        masking="0123456789abcdef",
    ),
    # Since excerpts:
    "ExecutionStarted, with tools for results": entries.ExecutionStarted(
        stage="look",
        execution="0123456789abcdef",
        index=0,
        name="KubernetesAgent",
        agent=AGENT,
        tools=TOOLS,
        result_tools=(
            messages.ToolSpec(name="result.read", description="Größer", parameters={"type": "object"}, idempotent=True),
        ),
        messages=PROMPT,
    ),
    "ToolsAnswered, an excerpt": entries.ToolsAnswered(
        execution="0123456789abcdef",
        runs=(
            entries.ToolRun(
                call=CALLS[0],
                result=replace(RESULTS[0], text="[an excerpt]\nFATAL 💥\n[left out: lines 2-9]\nend"),
                seconds=0.5,
                length=120,
                excerpt=line_excerpts.Excerpt(
                    lines=10,
                    length=120,
                    spans=(
                        line_excerpts.Span(first=1, last=1, begin=0, end=8, at=13),
                        line_excerpts.Span(first=10, last=10, begin=117, end=120, at=43),
                    ),
                ),
            ),
        ),
    ),
}


def columns(entry: entries.Entry) -> dict[str, Any]:
    """Return the values of the log's columns that say where an entry belongs."""
    return {
        "run": getattr(entry, "run", 3),
        "stage": getattr(entry, "stage", "look"),
        "execution": getattr(entry, "execution", ""),
    }


def decoded(stored: entry_versions.Stored, entry: entries.Entry) -> entries.Entry | entries.Unreadable:
    return entry_versions.decode(stored, **columns(entry))


def test_there_is_a_sample_of_every_kind() -> None:
    assert {type(entry).__name__ for entry in SAMPLES.values()} == entry_versions.VERSIONS.keys()


@pytest.mark.parametrize("entry", SAMPLES.values(), ids=SAMPLES)
def test_stored_entry_comes_back_as_it_was(entry: entries.Entry) -> None:
    stored = entry_versions.encode(entry)
    assert (stored.kind, stored.version) == (type(entry).__name__, entry_versions.VERSIONS[type(entry).__name__])
    assert decoded(stored, entry) == entry


@pytest.mark.parametrize("name", ["ExecutionStarted", "Answered"])
def test_key_that_is_no_unicode_comes_back_as_it_was(name: str) -> None:
    odd = {"\ud83d": 1}
    entry = SAMPLES[name]
    if isinstance(entry, entries.Answered):
        entry = replace(entry, messages=(replace(ASKS, provider_state=replace(STATE, data=odd)),))
    elif isinstance(entry, entries.ExecutionStarted):
        entry = replace(entry, tools=(replace(TOOLS[0], parameters=odd),))
    assert decoded(entry_versions.encode(entry), entry) == entry


@pytest.mark.parametrize("entry", SAMPLES.values(), ids=SAMPLES)
def test_a_body_is_json_that_postgres_can_take_apart(entry: entries.Entry) -> None:
    stored = entry_versions.encode(entry)
    stored.body.encode()
    assert all(messages.storable(text) == text for text in strings(json.loads(stored.body)))
    assert not {"run", "stage", "execution", "final_analysis"} & json.loads(stored.body).keys(), "they are columns"
    if stored.opaque is not None:
        assert stored.opaque.isascii(), "what Postgres' UTF-8 cannot hold stays escaped"
        assert "\x00" not in stored.opaque


def strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for key, inner in value.items():
                yield key
                yield from strings(inner)
        case list():
            for inner in value:
                yield from strings(inner)


@pytest.mark.parametrize(
    ("name", "opaque"),
    [
        ("ExecutionStarted", {"parameters"}),
        ("Answered", {"provider_states"}),
        ("Answered, a conclusion", None),
        ("ToolsAnswered", None),
        ("StageEnded", None),
    ],
)
def test_opaque_parts_are_those_alone_that_providers_and_servers_wrote(name: str, opaque: set[str] | None) -> None:
    stored = entry_versions.encode(SAMPLES[name])
    assert (None if stored.opaque is None else set(json.loads(stored.opaque))) == opaque


def test_the_final_analysis_is_stored_once_and_outside_the_body() -> None:
    entry = entries.RunEnded(ending="Completed", reason="StagesCompleted", final_analysis="It is out of memory.")
    stored = entry_versions.encode(entry)
    assert stored.final_analysis == "It is out of memory."
    assert "out of memory" not in stored.body + (stored.opaque or "")
    assert decoded(replace(stored, final_analysis=""), entry) == replace(entry, final_analysis="")


@pytest.mark.parametrize(
    ("kind", "version", "problem"),
    [
        ("Dreamt", 1, "its kind is unknown here"),
        ("", 0, "its kind is unknown here"),
        ("Answered", 4, "version 3 is the newest that is known here"),
        ("RunEnded", 5, "version 4 is the newest that is known here"),
        ("StageStarted", 99, "version 1 is the newest that is known here"),
        ("StageStarted", 0, "version 1 is the newest that is known here"),
    ],
)
def test_an_unknown_kind_and_a_newer_version_are_unreadable_and_told_as_such(
    kind: str, version: int, problem: str
) -> None:
    stored = entry_versions.Stored(kind=kind, version=version, body="not even JSON")
    decoded_entry = entry_versions.decode(stored, run=0, stage="look", execution="e0")
    assert decoded_entry == entries.Unreadable(kind=kind, version=version, problem=problem)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("StageStarted", {"body": "{"}, "JSONDecodeError: "),
        ("StageStarted", {"body": ""}, "JSONDecodeError: "),
        ("StageStarted", {"body": "{}"}, "clock: Field required"),
        ("StageStarted", {"body": "[]"}, "TypeError: "),
        ("StageStarted", {"body": "null"}, "TypeError: "),
        ("StageStarted", {"body": '{"clock": "soon"}'}, "clock: Input should be a valid number"),
        ("StageStarted", {"body": '{"clock": 1, "colour": 2}'}, "colour: Unexpected keyword argument"),
        ("StageStarted", {"body": '{"clock": ' + "[" * 100_000}, "RecursionError: "),
        ("StageStarted", {"body": '{"clock": ' + "9" * 5_000 + "}"}, "ValueError: "),
        ("ExecutionEnded", {"body": '{"outcome": "Dreamt", "error": ""}'}, "outcome: Input should be 'Completed', "),
        ("Answered", {"opaque": "{"}, "JSONDecodeError: "),
        ("Answered", {"opaque": "5"}, "TypeError: "),
        ("Answered", {"opaque": '"provider_states"'}, "TypeError: "),
        ("Answered", {"opaque": '{"provider_states": []}'}, "ValueError: "),
        ("Answered", {"opaque": '{"provider_states": 5}'}, "TypeError: "),
        ("Answered", {"opaque": '{"provider_states": [5]}'}, "messages.0.provider_state: "),
        ("Answered", {"body": '{"messages": "x"}'}, "TypeError: "),
        ("Answered", {"body": '{"messages": 5}'}, "TypeError: "),
        ("Answered", {"body": '{"turn": 0}'}, "KeyError: "),
        ("Unanswered", {"body": '{"turn": 0}'}, "failure: Field required"),
        ("ExecutionStarted", {"opaque": '{"parameters": [{}]}'}, "ValueError: "),
        ("ExecutionStarted", {"opaque": '{"parameters": [{}, 5]}'}, "tools.1.parameters: "),
    ],
)
def test_a_row_that_is_not_what_it_should_be_is_unreadable_and_says_where(
    name: str, change: dict[str, Any], problem: str
) -> None:
    stored = replace(entry_versions.encode(SAMPLES[name]), **change)
    decoded_entry = decoded(stored, SAMPLES[name])
    assert isinstance(decoded_entry, entries.Unreadable)
    assert (decoded_entry.kind, decoded_entry.version) == (stored.kind, stored.version)
    assert decoded_entry.problem.startswith(f"it does not have its shape: {problem}")


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The places of all objects in some JSON."""
    if isinstance(value, dict):
        yield at
        for key, inner in value.items():
            yield from places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*at, index))


@pytest.mark.parametrize("name", ["ExecutionStarted", "Answered", "Unanswered", "ToolsAnswered"])
def test_a_field_that_is_unknown_here_is_not_dropped_however_deep_it_stands(name: str) -> None:
    """A shape that has grown has another version; a row that says otherwise was not written by us."""
    stored = entry_versions.encode(SAMPLES[name])
    tried = 0
    for path in places(json.loads(stored.body)):
        body = json.loads(stored.body)
        inner = body
        for step in path:
            inner = inner[step]
        inner["colour"] = "blue"
        decoded_entry = decoded(replace(stored, body=json.dumps(body)), SAMPLES[name])
        assert isinstance(decoded_entry, entries.Unreadable), path
        tried += 1
    assert tried >= 3


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    2.5,
    10**30,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\x00",
    "\ud83d",
    [],
    [[]],
    {},
]
JUNK += [{"": None}, [{}] * 3, {"messages": None}, {"provider_states": None}, "Completed", 0.0, "9" * 5000, b"x".hex()]


def bent(value: Any, source: random.Random) -> Any:
    """Some JSON, of which something is missing, or junk, or of another kind."""
    if source.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return source.choice(JUNK)
    if isinstance(value, list):
        changed = list(value)
        index = source.randrange(len(changed))
        match source.randrange(4):
            case 0:
                del changed[index]
            case 1:
                changed.insert(index, source.choice(JUNK))
            case _:
                changed[index] = bent(changed[index], source)
        return changed
    bowed = dict(value)
    key = source.choice(sorted(bowed))
    match source.randrange(5):
        case 0:
            del bowed[key]
        case 1:
            bowed[source.choice(["colour", "\x00", "\ud83d", "run", "execution", "final_analysis"])] = source.choice(
                JUNK
            )
        case _:
            bowed[key] = bent(bowed[key], source)
    return bowed


@pytest.mark.parametrize("name", SAMPLES)
def test_whatever_junk_a_row_holds_it_is_decoded_or_unreadable_and_never_raises(name: str) -> None:
    source = random.Random(name)  # noqa: S311 - it mixes, it guards nothing
    entry = SAMPLES[name]
    stored = entry_versions.encode(entry)
    body, opaque = json.loads(stored.body), json.loads(stored.opaque or "null")
    unreadable = 0
    for _ in range(400):
        change: dict[str, Any] = {"body": json.dumps(bent(body, source))}
        match source.randrange(4):
            case 0:
                change = {"body": change["body"][: source.randrange(40)]}
            case 1:
                change["opaque"] = json.dumps(bent(opaque, source))
            case 2:
                change = {"opaque": json.dumps(bent(opaque, source))}
        decoded_entry = decoded(replace(stored, **change), entry)
        logged = entries.Logged(seq=1, at=datetime.now(UTC), claim=1, entry=decoded_entry, **columns(entry))
        assert all(event.seq == 1 for event in timeline.fold([logged])), "its timeline can be told"
        if isinstance(decoded_entry, entries.Unreadable):
            unreadable += 1
            assert decoded_entry.problem
        else:
            assert type(decoded_entry) is type(entry)
    assert unreadable > 50


def test_full_results_stored_beside_the_log_are_not_in_it() -> None:
    entry = SAMPLES["ToolsAnswered, of which more is kept"]
    assert isinstance(entry, entries.ToolsAnswered)
    sent = replace(entry, runs=(replace(entry.runs[0], whole="all of it"),))
    assert entry_versions.encode(sent) == entry_versions.encode(entry)
    decoded_entry = decoded(entry_versions.encode(sent), entry)
    assert isinstance(decoded_entry, entries.ToolsAnswered)
    assert (decoded_entry, decoded_entry.runs[0].whole) == (sent, None)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("line\n[cut: 4 of 5000 characters are shown; ask for less]", 5000),
        ("line\n[cut: 4 of 5000 characters are shown; ask for less]\n", None),
        ("a log that says [cut: 4 of 5000 characters are shown; ask for less]", None),
        ("line", None),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_result_cut_before_its_length_was_stored_has_the_length_of_its_last_line(
    text: str, length: int | None, version: int
) -> None:
    entry = SAMPLES["ToolsAnswered"]
    assert isinstance(entry, entries.ToolsAnswered)
    stored = entry_versions.encode(
        replace(entry, runs=(replace(entry.runs[0], result=replace(RESULTS[0], text=text)),))
    )
    body = json.loads(stored.body)
    for run in body["runs"]:
        del run["length"], run["excerpt"], run["summary"]
    old = replace(stored, version=version, body=json.dumps(body))
    decoded_entry = decoded(old, entry)
    assert isinstance(decoded_entry, entries.ToolsAnswered)
    assert decoded_entry.runs[0].length == length
    newer = decoded(stored, entry)
    assert isinstance(newer, entries.ToolsAnswered)
    assert newer.runs[0].length is None, "since then it is said"


def test_an_answer_that_holds_no_message_is_unreadable() -> None:
    stored = entry_versions.encode(SAMPLES["Answered"])
    body = {**json.loads(stored.body), "messages": []}
    decoded_entry = decoded(replace(stored, body=json.dumps(body), opaque=None), SAMPLES["Answered"])
    assert isinstance(decoded_entry, entries.Unreadable)
    assert decoded_entry.problem.startswith("it does not have its shape: messages: ")


@pytest.mark.parametrize("body", ['{"clock": 1, "a\\u0000b": 2}'])
def test_reason_why_an_entry_cannot_be_read_is_text_that_can_be_stored(body: str) -> None:
    """It is: the work row says what it waits for."""
    decoded_entry = entry_versions.decode(
        entry_versions.Stored(kind="StageStarted", version=1, body=body), run=0, stage="look", execution=""
    )
    assert isinstance(decoded_entry, entries.Unreadable)
    assert decoded_entry.problem == messages.storable(decoded_entry.problem)


def test_a_build_is_told_by_what_it_can_read(monkeypatch: pytest.MonkeyPatch) -> None:
    build = record.build()
    assert build == record.build()
    assert len(build) == 16
    grown = {**entry_versions.DECODERS, ("Answered", 99): entry_versions.DECODERS["Answered", 1]}
    monkeypatch.setattr(entry_versions, "DECODERS", grown)
    assert record.build() != build


def test_a_build_is_told_by_the_snapshots_that_it_can_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    build = record.build()
    monkeypatch.setitem(record.CHAIN_DECODERS, record.CHAIN_VERSION + 1, chains.Spec.model_validate)
    assert record.build() != build


# What follows is for ever.


def rows(version: int) -> dict[str, dict[str, Any]]:
    samples: dict[str, dict[str, Any]] = json.loads((RECORDED / f"entries-v{version}.json").read_text(encoding="utf-8"))
    return samples


def stored_of(row: Mapping[str, Any]) -> entry_versions.Stored:
    return entry_versions.Stored(
        kind=row["kind"],
        version=row["version"],
        body=row["body"],
        opaque=row["opaque"],
        final_analysis=row["final_analysis"],
    )


def row_of(entry: entries.Entry) -> dict[str, Any]:
    stored = entry_versions.encode(entry)
    names = ("kind", "version", "body", "opaque", "final_analysis")
    return {**{name: getattr(stored, name) for name in names}, **columns(entry)}


RECORDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
WRITTEN = [(name, record) for record in RECORDS for name in rows(record)]


@pytest.mark.parametrize(("name", "record"), WRITTEN, ids=[f"{name}, {record}" for name, record in WRITTEN])
def test_rows_mean_for_ever_what_they_meant_when_they_were_written(name: str, record: int) -> None:
    row = rows(record)[name]
    entry = entry_versions.decode(stored_of(row), run=row["run"], stage=row["stage"], execution=row["execution"])
    assert entry == SAMPLES[name], "this is what is in the databases: keep a decoder of its version that reads it"


def test_recorded_rows_exist_for_each_kind_and_version() -> None:
    recorded = {(row["kind"], row["version"]) for record in RECORDS for row in rows(record).values()}
    assert recorded == set(entry_versions.DECODERS)
    assert {name for name, _ in WRITTEN} == SAMPLES.keys()


@pytest.mark.parametrize("name", SAMPLES)
def test_entries_are_written_as_they_were_recorded(name: str) -> None:
    entry = SAMPLES[name]
    kind = type(entry).__name__
    newest = [rows(record)[name] for record in RECORDS if name in rows(record)][-1]
    assert row_of(entry) == newest, f"what is written of {kind} has changed: it needs a new version"


def bare(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A JSON schema without what is for people, and with its definitions where they are used."""
    if isinstance(node, list):
        return [bare(part, definitions) for part in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        node = {**definitions[node["$ref"].rpartition("/")[2]], **{key: node[key] for key in node if key != "$ref"}}
    named = node.get("type") == "object" and "properties" in node
    relevant = {key: part for key, part in node.items() if key not in ("$defs", "title", "description")}
    return {
        key: {name: bare(inner, definitions) for name, inner in part.items()}
        if named and key == "properties"
        else bare(part, definitions)
        for key, part in relevant.items()
        if not key.startswith("x-kubernetes-")
    }


def digest(kind: Any) -> str:
    """16 hex digits of a stored shape, all that is nested in it included."""
    schema = pydantic.TypeAdapter(kind).json_schema()
    shape = bare(schema, schema.get("$defs", {}))
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:16]


SHAPES: dict[str, dict[str, str]] = json.loads((RECORDED / "shapes.json").read_text(encoding="utf-8"))
CURRENT: dict[str, tuple[int, Any]] = {
    **{kind: (version, getattr(entries, kind)) for kind, version in entry_versions.VERSIONS.items()},
    "snapshot": (record.CHAIN_VERSION, chains.Spec),
}


def what_to_do(kind: str, version: int, hashed: str) -> str:
    """Return the advice to a developer who has changed a stored shape."""
    if str(version) not in SHAPES.get(kind, {}):
        return f"version {version} of {kind} is new: add its digest {hashed!r} to recorded/shapes.json, and rows of it"
    where = "record.CHAIN_VERSION" if kind == "snapshot" else f"entry_versions.VERSIONS[{kind!r}]"
    return (
        f"the stored shape of {kind} is another one than that of its version {version}, which is in databases. Raise "
        f"{where}, keep a decoder for version {version} (entry_versions.DECODERS, or record.CHAIN_DECODERS), record "
        f"rows of the new version beside entries-v1.json, and add the digest {hashed!r} under the new version to "
        "recorded/shapes.json. Never change what is there already."
    )


@pytest.mark.parametrize("kind", CURRENT)
def test_no_stored_shape_changes_without_a_new_version(kind: str) -> None:
    version, shape = CURRENT[kind]
    hashed = digest(shape)
    assert SHAPES.get(kind, {}).get(str(version)) == hashed, what_to_do(kind, version, hashed)


def test_every_version_that_was_ever_recorded_has_its_decoder() -> None:
    recorded = {(kind, int(version)) for kind, versions in SHAPES.items() for version in versions}
    lost = sorted(
        recorded - entry_versions.DECODERS.keys() - {("snapshot", version) for version in record.CHAIN_DECODERS}
    )
    assert lost == [], "rows of these versions are in databases"
    assert recorded.issuperset(entry_versions.DECODERS)


def test_a_shape_is_another_one_when_anything_in_it_changes_but_words_for_people() -> None:
    class Inner(pydantic.BaseModel):
        """Some words."""

        name: str = "x"

    class Described(pydantic.BaseModel):
        """Other words."""

        name: str = pydantic.Field(default="x", description="Words.", title="A name")

    class Changed(pydantic.BaseModel):
        name: str = "y"

    class Grown(pydantic.BaseModel):
        name: str = "x"
        title: str = ""

    assert digest(list[Inner]) == digest(list[Described])
    assert len({digest(list[Inner]), digest(list[Changed]), digest(list[Grown])}) == 3
