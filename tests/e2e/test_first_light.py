"""One alert from webhook to analysis; what happened is told by the logs of the model and of the tools."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest
from support import manifests
from tarsy_dev import keys, mcp_server, model, tools

if TYPE_CHECKING:
    from support.operators import Operator, Process

WEBHOOK = "/api/v1/webhooks/alertmanager"
CHAIN = manifests.chain(stages=[manifests.stage("collect"), manifests.stage("analysis")])
NOTIFICATION = (tools.ROOT / "tests/captures/alertmanager/alertmanager-0.33-webhook-firing.json").read_bytes()


def investigate(model_call: model.Turn) -> model.Answer:
    """Each of the two stages calls two tools, then one, then concludes; the second one's first call writes."""
    if model_call.iteration == 0:
        calls = {
            "collect": [
                model.Call(name="tools__lookup", args={"name": "wéb-0"}),
                model.Call(name="tools__flaky", args={"times": 0}),
            ],
            "analysis": [
                model.Call(name="tools__restart", args={"name": "web"}),
                model.Call(name="tools__lookup", args={"name": "web-1"}),
            ],
        }[model_call.key.stage]
        return model.Answer(
            text="Let me look.", thoughts="Erst die Pods 🔍", calls=model.keyed(model_call, calls), chunk=5
        )
    if model_call.iteration == 1:
        return model.Answer(calls=model.keyed(model_call, [model.Call(name="tools__lookup", args={"name": "web-2"})]))
    return model.Answer(text=f"Findings of {model_call.key.stage}: größer als 0 🚨", thoughts="Done.", chunk=7)


class Recorder:
    """A script that keeps what it was asked and what it answered, by execution and in order."""

    def __init__(self, script: model.Script) -> None:
        self._script = script
        self.exchanges: list[tuple[model.Turn, model.Answer]] = []

    def __call__(self, model_call: model.Turn) -> model.Reply:
        answer = self._script(model_call)
        assert isinstance(answer, model.Answer)
        self.exchanges.append((model_call, answer))
        return answer

    def exchanges_of(self, investigation: str, stage: str) -> list[tuple[model.Turn, model.Answer]]:
        return [
            (model_call, answer)
            for model_call, answer in self.exchanges
            if (model_call.key.investigation, model_call.key.stage) == (investigation, stage)
        ]


def without_ids(message: model.Message) -> model.Message:
    """Ids on the wire are the provider's; the transcript has ours."""
    return dataclasses.replace(
        message,
        calls=tuple(dataclasses.replace(call, args=dict(call.args), id=None) for call in message.calls),
        results=tuple(dataclasses.replace(result, id=None) for result in message.results),
    )


def wire(name: str) -> str:
    return name.replace(".", "__", 1)


def as_sent(rows: Sequence[dict[str, Any]]) -> tuple[str, tuple[model.Message, ...]]:
    """Return what a model is sent for these messages of a transcript: the system prompt and the conversation."""
    system = "\n\n".join(row["text"] for row in rows if row["role"] == "system")
    conversation: list[model.Message] = []
    for role, group in itertools.groupby((row for row in rows if row["role"] != "system"), key=lambda row: row["role"]):
        messages = list(group)
        if role == "tool":
            results = [
                model.Result(
                    name=f"{r['server_name']}__{r['tool_name']}",
                    text=r["text"],
                    failed=r["failed"],
                    reference=f"[tool {r['tool_call_id']}]",
                )
                for r in messages
            ]
            conversation.append(model.Message(role="user", results=tuple(results)))
            continue
        (row,) = messages
        calls = [model.Call(name=wire(c["name"]), args=json.loads(c["arguments"]), id=None) for c in row["tool_calls"]]
        conversation.append(
            model.Message(
                role="model" if role == "assistant" else "user",
                text=row["text"],
                thoughts=row["thinking"],
                calls=tuple(calls),
            )
        )
    return system, tuple(conversation)


def check_execution(
    exchanges: Sequence[tuple[model.Turn, model.Answer]], rows: list[dict[str, Any]], calls: list[dict[str, Any]]
) -> Counter[str]:
    """Compare an execution's transcript with what its model saw and said; return the tokens that the model counted."""
    counted: Counter[str] = Counter()
    assert len(exchanges) == len(calls)
    for (model_call, answer), call in zip(exchanges, calls, strict=True):
        context_messages = call["context_messages"]
        assert (model_call.system, tuple(map(without_ids, model_call.messages))) == as_sent(rows[:context_messages])
        sent_message = model.Message(role="model", text=answer.text, thoughts=answer.thoughts, calls=answer.calls)
        assert (without_ids(sent_message),) == as_sent(rows[context_messages : context_messages + 1])[1]
        usage = model.usage_of(model_call, answer)
        tokens = {
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "thinking_tokens": usage.thinking,
            "total_tokens": usage.input + usage.output + usage.thinking,
        }
        assert {name: call[name] for name in tokens} == tokens
        assert (call["provider"], call["model"], call["failure"]) == ("scripted", "gemini-2.5-flash", None)
        counted.update(tokens)
    assert len(rows) == calls[-1]["context_messages"] + 1
    return counted


async def test_a_notification_is_investigated_and_its_transcript_is_what_the_model_saw(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = recorder = Recorder(investigate)
    await operator.apply(CHAIN)
    process = await operator.start(
        providers={"scripted": {"requests_per_minute": 1000, "tokens_per_minute": 1_000_000}}, as_installed=True
    )

    status, problem = await process.request("POST", WEBHOOK, body=NOTIFICATION, token="guessed")
    assert (status, problem["status"]) == (401, 401)
    assert await operator.kubectl("get", "inv", "-o", "name") == ""

    status, receipt = await process.request("POST", WEBHOOK, body=NOTIFICATION)
    assert status == 200
    assert [alert["outcome"] for alert in receipt["alerts"]] == ["created", "created"]
    by_name = await operator.finished()
    expected = {(operator.namespace, name, manifest["metadata"]["uid"]) for name, manifest in by_name.items()}
    assert expected == {(a["namespace"], a["name"], a["id"]) for a in receipt["alerts"]}
    for alert, sent in zip(receipt["alerts"], json.loads(NOTIFICATION)["alerts"], strict=True):
        name = alert["name"]
        alert_data = json.loads(by_name[name]["spec"]["alertData"])
        assert sent.items() <= alert_data.items()
        assert by_name[name]["spec"]["fingerprint"] == sent["fingerprint"]
        await check_investigation(process, by_name[name], recorder=recorder)
    assert {(call.tool, call.answered) for call in toolbox.calls} == {
        ("lookup", "result"),
        ("flaky", "tool error"),
        ("restart", "result"),
    }
    assert len({call.key for call in toolbox.calls}) == len(toolbox.calls) == 2 * 6

    uid = next(iter(by_name.values()))["metadata"]["uid"]
    assert (await process.request("GET", f"/api/v1/investigations/{uid}", token=""))[0] == 401
    await check_repeat(process, receipt, operator.database_url)
    assert len(llm.requests) == len(recorder.exchanges) == 2 * 6
    await check_throttle(operator.database_url, requests=2 * 6)
    await process.stop()


async def check_investigation(process: Process, manifest: dict[str, Any], *, recorder: Recorder) -> None:
    """Compare the transcript and the status of one investigation with what its model saw and said."""
    metadata, status = manifest["metadata"], manifest["status"]
    code, transcript = await process.request("GET", f"/api/v1/investigations/{metadata['uid']}/export")
    assert code == 200
    counted: Counter[str] = Counter()
    for stage in ("collect", "analysis"):
        exchanges = recorder.exchanges_of(f"{metadata['namespace']}/{metadata['name']}", stage)
        rows, calls = (
            [row for row in transcript[table] if row["stage"] == stage] for table in ("messages", "llm_interactions")
        )
        assert metadata["name"] in rows[1]["text"]
        counted += check_execution(exchanges, rows, calls)
    assert counted.items() <= transcript.items()
    authors = (manifest["spec"]["author"], status["author"], transcript["author"])
    assert authors == ("api-client",) * 3, "the webhook's token has no name"
    assert status["phase"] == "Completed"
    assert status["progress"] == "2/2"
    assert status["finalAnalysis"] == transcript["final_analysis"] == recorder.exchanges[-1][1].text
    assert status["usage"] == {
        "inputTokens": counted["input_tokens"],
        "outputTokens": counted["output_tokens"],
        "thinkingTokens": counted["thinking_tokens"],
        "totalTokens": counted["total_tokens"],
        "llmCalls": 6,
        "toolCalls": 6,
    }
    assert len(transcript["mcp_interactions"]) == 6
    assert transcript["phase"] == "Completed"
    assert transcript["alert_data"] == manifest["spec"]["alertData"]
    assert [stage["name"] for stage in transcript["chain"]["stages"]] == ["collect", "analysis"]
    assert [(execution["stage"], execution["outcome"]) for execution in transcript["executions"]] == [
        ("collect", "Completed"),
        ("analysis", "Completed"),
    ]


async def check_throttle(database_url: str, *, requests: int) -> None:
    """Every request stands in the row of its provider."""
    connection = await asyncpg.connect(database_url)
    summed = "SELECT provider, sum(r), sum(t) > 0 FROM throttles, unnest(requests, tokens) AS one (r, t) GROUP BY 1"
    assert [tuple(row) for row in await connection.fetch(summed)] == [("scripted", requests, True)]
    await connection.close()


async def check_repeat(process: Process, receipt: Any, database_url: str) -> None:
    """Send the notification again: it is counted as what it is, and nothing waits or runs."""
    status, again = await process.request("POST", WEBHOOK, body=NOTIFICATION)
    assert status == 200
    assert [alert["outcome"] for alert in again["alerts"]] == ["repeated", "repeated"]
    assert [(a["id"], a["name"]) for a in again["alerts"]] == [(a["id"], a["name"]) for a in receipt["alerts"]]
    connection = await asyncpg.connect(database_url)
    work = await connection.fetch("SELECT state, attempts FROM work JOIN runs USING (investigation)")
    await connection.close()
    assert [tuple(row) for row in work] == [("ended", 1), ("ended", 1)]


def requests(llm: model.Server) -> Counter[tuple[str, int]]:
    """How often the model was asked, by stage and iteration."""
    return Counter((request.key.stage, request.iteration) for request in llm.requests)


ONCE = dict.fromkeys([(stage, iteration) for stage in ("collect", "analysis") for iteration in range(3)], 1)


def calls(toolbox: mcp_server.Server) -> Counter[str]:
    """How often tools were called, by the key of the call."""
    return Counter(call.key for call in toolbox.calls)


async def test_a_killed_operators_run_goes_on_in_the_same_conversation(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    def script(model_call: model.Turn) -> model.Reply:
        first = (model_call.key.stage, model_call.iteration, model_call.repeats) == ("analysis", 1, 0)
        return model.Hang() if first else investigate(model_call)

    llm.script = script
    await operator.apply(CHAIN)
    process = await operator.start()
    await operator.apply(manifests.investigation())
    await llm.wait_for(lambda _: llm.requests_of(stage="analysis", iteration=1))
    await process.kill()
    await operator.let_leases_pass()
    await operator.start()
    manifest = (await operator.finished("web-crash"))["web-crash"]

    assert (manifest["status"]["phase"], manifest["status"]["attempts"]) == ("Completed", 2)
    assert requests(llm) == ONCE | {("analysis", 1): 2}
    asked, again = llm.requests_of(stage="analysis", iteration=1)
    assert asked.body == again.body
    assert (asked.end, again.end) == ("client closed", "completed")
    assert set(calls(toolbox).values()) == {1}
    assert toolbox.restarts == {"web": 1}


@pytest.mark.parametrize(
    ("tool", "sent"),
    [
        pytest.param("restart", 1, id="that writes"),
        pytest.param("lookup", 2, id="that reads"),
    ],
)
async def test_a_call_of_a_tool_that_was_under_way_at_a_kill_is_repeated_only_if_it_may_be(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, tool: str, sent: int
) -> None:
    released = asyncio.Event()

    def of_analysis() -> list[mcp_server.Call]:
        return [call for call in toolbox.calls_of(tool=tool) if keys.CallKey.parse(call.key).stage == "analysis"]

    async def hold(call: mcp_server.Call) -> None:
        if of_analysis() == [call]:
            await released.wait()

    llm.script = investigate
    toolbox.hold = hold
    await operator.apply(CHAIN)
    process = await operator.start()
    await operator.apply(manifests.investigation())
    await toolbox.wait_for(lambda _: of_analysis())
    held = of_analysis()[0].key
    await process.kill()
    await operator.let_leases_pass()
    successor = await operator.start()
    manifest = (await operator.finished("web-crash"))["web-crash"]
    released.set()

    assert (manifest["status"]["phase"], manifest["status"]["attempts"]) == ("Completed", 2)
    assert requests(llm) == ONCE
    assert calls(toolbox) == dict.fromkeys(calls(toolbox), 1) | {held: sent}
    _, transcript = await successor.request("GET", f"/api/v1/investigations/{manifest['metadata']['uid']}/export")
    doubted = [row["tool_name"] for row in transcript["messages"] if row["in_doubt"]]
    assert doubted == (["restart"] if tool == "restart" else [])


async def test_stopped_operator_releases_its_run_and_another_operator_finishes_at_once(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    def script(model_call: model.Turn) -> model.Reply:
        first = (model_call.key.stage, model_call.iteration, model_call.repeats) == ("analysis", 1, 0)
        return model.Hang(after=2) if first else investigate(model_call)

    llm.script = script
    await operator.apply(CHAIN)
    process = await operator.start()
    await operator.apply(manifests.investigation())
    await llm.wait_for(
        lambda _: [request for request in llm.requests_of(stage="analysis", iteration=1) if request.pieces == 2]
    )
    await process.stop()
    assert "action=released" in process.log
    (asked,) = llm.requests_of(stage="analysis", iteration=1)
    assert await llm.wait_for(lambda _: asked.end) == "client closed"
    await operator.start()
    manifest = (await operator.finished("web-crash"))["web-crash"]

    assert (manifest["status"]["phase"], manifest["status"]["attempts"]) == ("Completed", 1)
    assert requests(llm) == ONCE | {("analysis", 1): 2}
    assert set(calls(toolbox).values()) == {1}
    assert toolbox.restarts == {"web": 1}
