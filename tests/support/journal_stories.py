"""Stories of a run, as entries of its log: each kind of entry, with odd texts and values."""

from __future__ import annotations

from dataclasses import replace

from tarsy.config import resolve
from tarsy.resources import chains
from tarsy.transcript import entries, messages, record

UID = "6f1c2f9e-3a55-4f0e-8c4e-0d6a7f0f4a11"
ALERT = 'pod "wéb-0" startet neu\n\t{"a": "\\u0000"} 🚨 \u2028 \ufffd'
CHAIN = chains.Spec(
    alert_types=["kubernetes"],
    stages=[chains.Stage(name=name, agent="KubernetesAgent", mcp_servers=[]) for name in ("collect", "analysis")],
)
SNAPSHOT = record.Snapshot(
    id=UID,
    namespace="tarsy",
    name="web-crash",
    alert_type="kubernetes",
    alert_data=ALERT,
    chain_name="pod-crash",
    chain_namespace="tarsy",
    chain=CHAIN,
)
TOOLS = (
    messages.ToolSpec(name="kubernetes-server.pods_list"),
    messages.ToolSpec(
        name="kubernetes-server.pods_log",
        description="Log of a pod; größer als 0",
        parameters={
            "type": "object",
            "properties": {
                "name": {"type": "string", "description": "naïve \u0000 \ud83d"},
                "tail": {"type": "integer", "minimum": 1, "default": None},
            },
            "required": ["name"],
            "additionalProperties": False,
        },
        idempotent=True,
    ),
)
STATE = messages.ProviderState(
    provider="google-default",
    data=[
        {"thought": True, "text": "erst die Pods 🔍"},
        {"thought_signature": "q83vAAD/", "function_call": {"name": "k__pods_log", "args": {"n": [1, 2.5, None]}}},
        {"text": "\u0000 and \ud83d and \\u0000", "deep": {"er": [{"est": [[], {}]}]}, "yes": True, "": -0.0},
    ],
)
CALL = entries.ModelCall(
    provider="google-default",
    model="gemini-2.5-flash",
    seconds=1.25,
    usage=messages.Usage(input_tokens=7, output_tokens=5, thinking_tokens=3, total_tokens=15),
    attempts=(
        entries.Attempt(
            error="503 UNAVAILABLE: überlastet",
            usage=messages.Usage(input_tokens=7),
            provider="google-default",
            code="503",
        ),
    ),
    cost=0.1 + 0.2,
)
SEARCHED = messages.NativeResult(
    tool="google_search", content="größer\n", details={"queries": [], "sources": [{"title": "ü", "url": "https://a"}]}
)
CONCLUDE = messages.Message(role="user", text="Conclude now.")


def started(stage: str = "collect", *, number: int = 1) -> entries.ExecutionStarted:
    return entries.ExecutionStarted(
        stage=stage,
        execution=f"{stage}/{number}",
        index=number - 1,
        name=f"KubernetesAgent-{number}",
        agent=resolve.ResolvedAgent(
            name="KubernetesAgent",
            provider="google-default",
            strategy="native-thinking",
            max_iterations=20,
            servers=("kubernetes-server", "prometheus"),
            custom_instructions="Sei gründlich.",
            server_instructions=(("kubernetes-server", "Prefer namespaced queries."),),
        ),
        tools=TOOLS,
        messages=(
            messages.Message(role="system", text=f"You are agent {number}."),
            messages.Message(role="user", text=ALERT),
        ),
    )


FALLBACKS = (
    resolve.Fallback(provider="größer", native=resolve.NativeTools(offered=("web_search",))),
    resolve.Fallback(provider="openai-default"),
)


def with_fallbacks(entry: entries.ExecutionStarted) -> entries.ExecutionStarted:
    assert entry.agent
    return replace(entry, agent=replace(entry.agent, fallbacks=FALLBACKS))


def answered(*added: messages.Message, execution: str = "collect/1", call_number: int = 0) -> entries.Answered:
    return entries.Answered(execution=execution, turn=call_number, messages=added, call=CALL)


def unanswered(failure: messages.Failure, *added: messages.Message, call_number: int = 0) -> entries.Unanswered:
    call = replace(CALL, attempts=())
    return entries.Unanswered(execution="collect/1", turn=call_number, failure=failure, call=call, messages=added)


def ended(outcome: entries.Outcome = "Completed", error: str = "", *, execution: str = "collect/1") -> entries.Entry:
    return entries.ExecutionEnded(execution=execution, outcome=outcome, error=error)


def ran(*runs: entries.ToolRun) -> entries.ToolsAnswered:
    return entries.ToolsAnswered(execution="collect/1", runs=runs)


def asks(*ids: str, text: str = "") -> messages.Message:
    calls = tuple(messages.ToolCall(id=name, name=TOOLS[1].name, arguments='{"name": "wéb-0"}') for name in ids)
    return messages.Message(role="assistant", text=text, calls=calls)


def result(name: str, text: str = "r", *, failed: bool = False, in_doubt: bool = False) -> entries.ToolRun:
    call = messages.ToolCall(id=name, name=TOOLS[1].name, arguments='{"name": "wéb-0"}')
    sent = messages.Message(role="tool", text=text, call_id=name, tool_name=call.name, failed=failed, in_doubt=in_doubt)
    return entries.ToolRun(call=call, result=sent, seconds=0.5)


def summed_up(name: str, *, text: str = "", failure: messages.Failure | None = None) -> entries.ToolSummarised:
    return entries.ToolSummarised(
        execution="collect/1",
        turn=1,
        call_id=name,
        tool=TOOLS[1].name,
        word="0123abcd",
        text=text,
        failure=failure,
        call=CALL,
    )


ANSWER = messages.Message(role="assistant", text="root cause: a bad image")
TIMEOUT = messages.Failure(kind="timeout", text="the model did not answer within 120 s")
REJECTED = messages.Failure(kind="rejected", text="")
OVERLOADED = messages.Failure(kind="fatal", text="überlastet", code="503")
FATAL = messages.Failure(kind="fatal", text="400 INVALID_ARGUMENT: ungültig")
OPENING: tuple[entries.Entry, ...] = (entries.StageStarted(stage="collect", clock=0.25), started())

COSTLY = replace(CALL, provider="größer", retries=1, cost=0.125)
WHOLE = "größer 💥\n" * 100_000
DUE = entries.SummaryDue(provider="größer", tokens=1000, reads=400_000)

STORIES: dict[str, tuple[entries.Entry, ...]] = {
    "nothing yet": (),
    "a conversation that opened": OPENING,
    "a runbook before it": (
        entries.RunbookRead(
            url="https://github.com/o/r/blob/main/a.md", origin="url", text="# Zuerst\n\u2028 💥", problem=""
        ),
        *OPENING,
    ),
    "a runbook that could not be read": (
        entries.RunbookRead(url="https://x.example", origin="builtin", text="", problem="überlastet"),
        *OPENING,
    ),
    "an answer with all that an answer may have": (
        *OPENING,
        answered(
            replace(
                asks("0.0", "0.1", text="Let me look."),
                thinking="erst die Pods 🔍",
                provider_state=STATE,
                native=(SEARCHED, SEARCHED),
            )
        ),
    ),
    "a provider that was given up for the next ones": (
        *OPENING,
        entries.FellBack(execution="collect/1", turn=0, provider="zweiter", failure=OVERLOADED, call=CALL),
        entries.FellBack(execution="collect/1", turn=0, provider="third", failure=TIMEOUT, call=CALL),
        answered(asks("0.0")),
        ran(result("0.0")),
        entries.ContextCompacted(execution="collect/1", turn=1, results=("0.0",), tokens=200_000, limit=128_000),
        answered(ANSWER, call_number=1),
    ),
    "servers that were away, and a request that was sent again": (
        *OPENING,
        entries.ServersAway(execution="collect/1", servers=("größer", "k8s")),
        entries.ModelRetried(
            execution="collect/1",
            turn=0,
            provider="google-default",
            model="m",
            attempt=1,
            error="429 zu schnell 💥",
            code="429",
            seconds=1.5,
        ),
        answered(asks("0.0")),
        entries.ServersAway(execution="collect/1", servers=("k8s",), calls=("0.0",)),
        ran(result("0.0", "not called", failed=True)),
        answered(ANSWER),
        ended(),
    ),
    "empty texts": (
        *OPENING,
        answered(replace(asks("0.0"), provider_state=messages.ProviderState(provider="", data=None))),
        ran(result("0.0", "")),
        unanswered(REJECTED),
        ended("Failed", ""),
        entries.StageEnded(stage="collect", outcome="Failed", message=""),
    ),
    "parallel results in one entry": (
        *OPENING,
        answered(asks("0.0", "0.1", "0.2")),
        ran(result("0.2"), result("0.0", "[]"), result("0.1", "no such pod", failed=True)),
    ),
    "a result in doubt": (
        *OPENING,
        answered(asks("0.0", "0.1")),
        ran(result("0.0", "unknown", failed=True, in_doubt=True)),
        ran(result("0.1")),
    ),
    "failures between messages": (
        *OPENING,
        unanswered(REJECTED),
        answered(asks("1.0")),
        ran(result("1.0")),
        unanswered(TIMEOUT),
        answered(asks("3.0")),
        ran(result("3.0")),
        answered(ANSWER),
    ),
    "a failure at the end": (*OPENING, answered(asks("0.0")), ran(result("0.0")), unanswered(FATAL)),
    "a conclusion that was asked for in vain at first": (
        *OPENING,
        unanswered(TIMEOUT),
        answered(asks("1.0")),
        ran(result("1.0")),
        unanswered(REJECTED, CONCLUDE),
        unanswered(TIMEOUT),
        answered(ANSWER),
        ended(),
    ),
    "a conclusion that was asked for in vain": (
        *OPENING,
        answered(asks("0.0")),
        ran(result("0.0")),
        unanswered(FATAL, CONCLUDE),
        ended("Failed", FATAL.text),
    ),
    "an answer that only came when its conclusion was asked for": (*OPENING, answered(CONCLUDE, ANSWER)),
    "executions side by side": (
        *OPENING,
        started(number=2),
        answered(replace(ANSWER, text="two"), execution="collect/2"),
        answered(asks("0.0")),
        ended(execution="collect/2"),
        ran(result("0.0")),
        unanswered(FATAL),
        ended("Failed", FATAL.text),
    ),
    "a stage that failed before its agent began": (
        OPENING[0],
        replace(started(), agent=None, tools=(), messages=()),
        ended("Failed", "references unknown agent 'Größe'"),
        entries.StageEnded(stage="collect", outcome="Failed", message="references unknown agent 'Größe'"),
        entries.StageStarted(stage="analysis", clock=1e6),
        started("analysis"),
        answered(ANSWER, execution="analysis/1"),
        ended(execution="analysis/1"),
        entries.StageEnded(stage="analysis", outcome="Completed", lacks=("MCP server 'größe' is away",)),
        entries.RunEnded(ending="Completed", reason="StagesCompleted", final_analysis=ANSWER.text),
    ),
    "a stage that timed out in the middle of a call, and one that was skipped for it": (
        *OPENING,
        answered(asks("0.0", text="erst die Pods")),
        ended("TimedOut", "Stage collect timed out after 60 s"),
        entries.StageEnded(stage="collect", outcome="TimedOut", message="Stage collect timed out after 60 s"),
        entries.StageEnded(stage="analysis", outcome="Skipped", message="skipped, größer"),
    ),
    "providers that were left for others": (
        OPENING[0],
        with_fallbacks(started()),
        unanswered(REJECTED),
        entries.FellBack(
            execution="collect/1",
            turn=1,
            provider="größer",
            failure=messages.Failure(kind="fatal", text="401: ungültig", code="401"),
            call=replace(CALL, attempts=(entries.Attempt(error="503", provider="google-default", code="503"),)),
        ),
        entries.Answered(execution="collect/1", turn=1, messages=(asks("1.0"),), call=COSTLY),
        ran(result("1.0")),
        entries.FellBack(
            execution="collect/1", turn=2, provider="openai-default", failure=TIMEOUT, call=replace(COSTLY, retries=3)
        ),
        answered(ANSWER, call_number=2),
        ended(),
    ),
    "results of which a part is in the log, and their summaries": (
        *OPENING,
        answered(asks("0.0", "0.1", "0.2")),
        ran(replace(result("0.1"), length=len(WHOLE), whole=WHOLE)),
        ran(
            replace(result("0.0"), length=len(WHOLE), whole=f"{WHOLE}!", summary=DUE),
            replace(result("0.2"), summary=DUE),
        ),
        summed_up("0.2", text="größer, 3 times"),
        summed_up("0.0", failure=TIMEOUT),
        answered(ANSWER, call_number=1),
    ),
}
