"""A sample of each kind of entry and of each of its shapes: `unit/recorded` has their rows, which are read for ever."""

from __future__ import annotations

from dataclasses import replace

from tarsy.config import resolve
from tarsy.config.model import tool_filters
from tarsy.resources import chains, investigations
from tarsy.transcript import entries, line_excerpts, messages

ID = "0123456789abcdef"
"""An execution."""
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
        execution=ID,
        index=2,
        parent="fedcba9876543210",
        name="KubernetesAgent-3",
        agent=AGENT,
        tools=TOOLS,
        messages=PROMPT,
    ),
    "ExecutionStarted, which never got that far": entries.ExecutionStarted(
        stage="look", execution=ID, index=0, name="Nobody", agent=None
    ),
    "Answered": entries.Answered(execution=ID, turn=4, messages=(ASKS,), call=CALL),
    "Answered, a conclusion": entries.Answered(
        execution=ID,
        turn=20,
        messages=(CONCLUDE, messages.Message(role="assistant", text="It is out of memory.")),
        call=entries.ModelCall(provider="google-default", model="gemini-2.5-flash", seconds=0.0),
    ),
    "Unanswered": entries.Unanswered(
        execution=ID,
        turn=5,
        failure=messages.Failure(kind="rejected", text="an empty answer"),
        call=CALL,
        messages=(CONCLUDE,),
    ),
    "Unanswered, small": entries.Unanswered(
        execution=ID,
        turn=0,
        failure=messages.Failure(kind="fatal", text=""),
        call=entries.ModelCall(provider="p", model="m", seconds=3.0),
    ),
    "ToolsAnswered": entries.ToolsAnswered(
        execution=ID,
        runs=tuple(
            entries.ToolRun(call=call, result=result, seconds=0.5) for call, result in zip(CALLS, RESULTS, strict=True)
        ),
    ),
    "ExecutionEnded": entries.ExecutionEnded(execution=ID, outcome="Failed", error="the key is bad"),
    "ExecutionEnded, small": entries.ExecutionEnded(execution=ID, outcome="Completed"),
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
        execution=ID,
        kind="summary",
        index=0,
        name="ExecutiveSummary",
        agent=replace(AGENT, strategy="synthesis", servers=(), server_instructions=()),
        messages=PROMPT,
    ),
    "ExecutionEnded, ungrounded": entries.ExecutionEnded(execution=ID, outcome="Completed", ungrounded=True),
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
        execution=ID,
        index=0,
        name="KubernetesAgent",
        agent=replace(AGENT, budget=resolve.Budget(at_once=8, calls=200, of_one_tool=50, failed=5)),
        messages=PROMPT,
    ),
    # Since fallbacks, native tools and costs:
    "ExecutionStarted, with fallbacks": entries.ExecutionStarted(
        stage="look",
        execution=ID,
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
        execution=ID,
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
        execution=ID,
        turn=2,
        provider="anthropic-default",
        failure=messages.Failure(kind="fatal", text="google-default: 401 überholt", code="401"),
        call=CALL,
    ),
    "ContextCompacted": entries.ContextCompacted(
        execution=ID, turn=7, results=("0.0", "0.1"), tokens=131_072, limit=128_000
    ),
    "ContextCompacted, of a refused request": entries.ContextCompacted(
        execution=ID,
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
        execution=ID,
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
        execution=ID,
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
        execution=ID,
        turn=1,
        call_id="0.0",
        tool="kubernetes-server.pods_log",
        word="0123abcd",
        text="FATAL 💥, 3 times",
        call=CALL,
    ),
    "ToolSummarised, in vain": entries.ToolSummarised(
        execution=ID,
        turn=1,
        call_id="0.0",
        tool="kubernetes-server.pods_log",
        word="0123abcd",
        failure=messages.Failure(kind="rejected", text="a summary of 9,000 characters, größer"),
        call=CALL,
    ),
    # Since providers' names of responses are kept:
    "Answered, by a version of the model": entries.Answered(
        execution=ID,
        turn=0,
        messages=(messages.Message(role="assistant", text="It is out of memory."),),
        call=replace(CALL, response_model="gemini-2.5-flash-preview-09-2025 💥", response_id="Zx3kaMbxA_fX7M8P"),
    ),
    # Since servers that are away, and retries, are told as they happen:
    "AlertJoined": entries.AlertJoined(
        execution=ID,
        number=42,
        alerts=3,
        clock=61.5,
        messages=(messages.Message(role="user", text="3 more alerts: 💥"),),
    ),
    "ServersAway": entries.ServersAway(execution=ID, servers=("kubernetes-server", "prometheus")),
    "ServersAway, for calls": entries.ServersAway(execution=ID, servers=("kubernetes-server",), calls=("0.0", "0.1")),
    "ModelRetried": entries.ModelRetried(
        execution=ID,
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
        stage="", execution=ID, kind="recheck", index=0, name="Recheck", agent=None, tools=TOOLS
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
        execution=ID,
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
        execution=ID,
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
