"""Trace of each call in the API: equal to what the model and the tools of a real operator really saw and answered."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from support import manifests
from tarsy_dev import keys, mcp_server, model
from tarsy_dev.model import gemini, script

if TYPE_CHECKING:
    from support.operators import Operator, Process

TAKES = 8_000
"""Tokens that the model takes."""
LENGTH = 20_000
"""Characters of a result of which two are too many."""
HOSTILE = "\n```\n# no heading\n<b>[x](http://evil.test)</b>"
SIGNED = ("provider_state", "thoughtSignature", "thought_signature", "opaque")


@pytest.fixture
async def first() -> AsyncIterator[model.Server]:
    """A provider that is asked before `scripted`, and refuses."""
    async with model.serve(lambda _: model.HttpError(status=401, message="the key was revoked")) as server:
        yield server


@dataclass
class Recorder:
    """A script that remembers its replies by call."""

    replies_by_key: dict[tuple[keys.Key, str], list[tuple[script.Turn, model.Reply]]] = field(default_factory=dict)

    def __call__(self, model_call: model.Turn) -> model.Reply:
        first = (model_call.key.agent, model_call.iteration, model_call.repeats) == ("Native", 1, 0)
        reply = OVERLOADED if first else LIMITED(model_call)
        assert isinstance(reply, model.Reply)
        self.replies_by_key.setdefault((model_call.key, model_call.kind), []).append((model_call, reply))
        return reply


def replies(model_call: model.Turn) -> model.Reply:
    """By stage: calls that fail and write, ReAct, long results, a conclusion that is forced, another provider."""

    def calls(*names: str, **args: Any) -> tuple[model.Call, ...]:
        return model.keyed(model_call, [model.Call(name=f"tools__{name}", args=args) for name in names])

    if model_call.kind != "agent":
        return model.Answer(text=f"the {model_call.kind}")
    match model_call.key.agent, model_call.iteration:
        case "Native", 0:
            several_calls = (*calls("lookup", name="web-0"), *calls("nothing", name="x"), *calls("flaky"))
            return model.Answer(text="I look.", thoughts="Which pods?", calls=several_calls)
        case "Native", 1:
            return model.Answer(calls=calls("restart", name="web-0"), thoughts="It hangs.")
        case "Acting", _:
            return model.Answer(text=acting(model_call))
        case "Flooded", 0 | 1:
            return model.Answer(calls=calls("flood", size=LENGTH))
        case "Hasty" | "Left", 0:
            return model.Answer(calls=calls("lookup", name="web-2"))
        case "Hasty", 1 if model_call.repeats == 0:
            return model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "late"}),))
    return model.Answer(text=f"{model_call.key.agent} is done{HOSTILE}", thoughts="So.")


def acting(model_call: model.Turn) -> str:
    key = str(keys.CallKey(*model_call.key, model_call.iteration, 0))
    action_input = json.dumps({"name": "web-1", "key": key})
    return (
        "I shall look at the pods.",
        f"Thought: so?\nAction: tools.lookup\nAction Input: {action_input}\nObservation: made up",
        "Thought: enough\nFinal Answer: web-1 exists [tool 1.0]",
    )[model_call.iteration]


OVERLOADED = model.HttpError(status=503, message="overloaded ```", retry_after=0)
LIMITED = model.limited(replies, TAKES)


def own(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "mcpServers": ["tools"], **fields}


CHAIN = manifests.chain(
    agents=[own("Native"), own("Acting", iterationStrategy="react"), own("Flooded"), own("Hasty"), own("Left")],
    stages=[
        {"name": "collect", "agents": [{"name": "Native"}, {"name": "Acting"}]},
        {"name": "flood", "agent": "Flooded"},
        {"name": "haste", "agent": "Hasty", "maxIterations": 1},
        {"name": "leave", "agent": "Left", "llmProvider": "first", "fallbackProviders": ["scripted"]},
    ],
    executiveSummary={"enabled": True},
)


def of_wire(request: model.Request) -> tuple[Any, ...]:
    """Return what the model saw, by its own reading of its protocol."""
    path = {"model": request.model, "method": "streamGenerateContent"}
    model_call, _ = gemini.parse(path=path, headers={}, body=request.body)
    messages = [
        (
            message.role,
            message.text,
            [(call.name, dict(call.args)) for call in message.calls],
            [(result.name, result.text, result.failed, result.reference) for result in message.results],
        )
        for message in model_call.messages
    ]
    return (
        model_call.system,
        messages,
        [(declared.name, declared.description, declared.schema) for declared in model_call.tools],
        model_call.native_tools,
    )


def of_trace(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same of what the trace says that it was sent."""
    messages: list[tuple[str, str, list[Any], list[Any]]] = []
    for message in request["messages"]:
        if message["role"] == "system":
            continue
        role = "model" if message["role"] == "assistant" else "user"
        if not messages or messages[-1][0] != role:
            messages.append((role, "", [], []))
        _, text, calls, results = messages[-1]
        calls += [(wire(call["name"]), json.loads(call["arguments"])) for call in message["tool_calls"]]
        if message["role"] == "tool":
            results.append(
                (wire(tool(message)), message["text"], message["failed"], f"[tool {message['tool_call_id']}]")
            )
        else:
            messages[-1] = (role, text + message["text"], calls, results)
    tools = [(wire(declared["name"]), declared["description"], declared["parameters"]) for declared in request["tools"]]
    system = "\n\n".join(message["text"] for message in request["messages"] if message["role"] == "system")
    return system, messages, tools, tuple(request["native_tools"])


def tool(call: Mapping[str, Any]) -> str:
    return f"{call['server_name']}.{call['tool_name']}"


def wire(name: str) -> str:
    return name.replace(".", "__", 1)


async def get(process: Process, path: str) -> Any:
    status, answer = await process.request("GET", path)
    assert status == 200, answer
    assert not [word for word in SIGNED if word in json.dumps(answer)], "what is a provider's own is told to nobody"
    return answer


async def pages(process: Process, path: str, name: str, *, limit: int) -> list[Any]:
    """All pages of a list."""
    rows: list[Any] = []
    page = {"last": 0, "more": True}
    while page["more"]:
        page = await get(process, f"{path}after={page['last']}&limit={limit}")
        rows += page[name]
    return rows


async def test_a_trace_and_an_export_tell_what_model_and_tools_saw(
    operator: Operator, llm: model.Server, first: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = recorder = Recorder()
    process = await operator.start(providers={"first": {"base_url": first.url}})
    await operator.apply(CHAIN, manifests.investigation())
    manifest = (await operator.finished("web-crash"))["web-crash"]
    assert manifest["status"]["phase"] == "Completed", manifest["status"]
    path = f"/api/v1/investigations/{manifest['metadata']['uid']}"

    trace = await pages(process, f"{path}/trace?", "calls", limit=7)
    assert trace == await pages(process, f"{path}/trace?", "calls", limit=500)
    asked = [await get(process, f"{path}/trace/llm/{line['n']}") for line in trace if line["type"] == "llm"]
    called = [await get(process, f"{path}/trace/tool/{line['n']}") for line in trace if line["type"] == "tool"]
    assert [call["n"] for call in asked] == list(range(1, len(asked) + 1))
    assert [call["n"] for call in called] == list(range(1, len(called) + 1))
    status, problem = await process.request("GET", f"{path}/trace/llm/{len(asked) + 1}")
    assert (status, problem["detail"]) == (404, f"the trace has no llm call {len(asked) + 1} yet")

    check_model_calls(asked, [*first.requests, *llm.requests], recorder)
    check_tool_calls(called, asked, toolbox)
    check_lines(trace, asked, called)
    await check_export(process, path, trace)
    await check_markdown(process, path)
    await process.stop()


def check_model_calls(
    asked: Sequence[Mapping[str, Any]], requests: Sequence[model.Request], recorder: Recorder
) -> None:
    """Each call was sent what its trace says, as often as that says, and answered with what that says."""
    seen = {
        group_key: iter(list(group))
        for group_key, group in itertools.groupby(
            sorted(requests, key=lambda sent: (sent.key, sent.kind, sent.arrived)),
            key=lambda sent: (sent.key, sent.kind),
        )
    }
    recorded = {group_key: iter(replies) for group_key, replies in recorder.replies_by_key.items()}
    failures = {"ok": 0, "fatal": 0, "rejected": 0}
    for call in asked:
        name = call["agent"]["name"]
        kind = {"SynthesisAgent": "synthesis", "ExecutiveSummary": "summary"}.get(name, "agent")
        (group_key,) = [
            candidate for candidate in seen if candidate[1] == kind and (kind != "agent" or candidate[0].agent == name)
        ]
        for attempt in range(len(call["failed_requests"]) + 1):
            request = next(seen[group_key])
            assert of_wire(request) == of_trace(call["request"]), (name, call["n"])
            model_call, reply = (None, None) if call["provider"] == "first" else next(recorded[group_key])
            if attempt < len(call["failed_requests"]):
                assert isinstance(reply, model.HttpError)
                assert call["failed_requests"][attempt]["code"] == str(reply.status)
                assert reply.message in call["failed_requests"][attempt]["error"]
        failures[call["failure"] or "ok"] += 1
        if call["answer"]:
            assert isinstance(reply, model.Answer)
            assert model_call is not None
            check_answer(call, model_call, reply)
        elif isinstance(reply, model.HttpError):
            assert reply.message in call["failure_text"]
    assert [list(left) for left in seen.values()] == [[]] * len(seen), "every request is in the trace"
    assert failures["fatal"] == 2, "one that was too large, and one that was left for another provider"
    assert failures["rejected"] == 1, "calls instead of a conclusion"
    assert [len(call["failed_requests"]) for call in asked if call["failed_requests"]] == [1]
    assert [call["agent"]["name"] for call in asked if call["request"]["final"]] == [
        "SynthesisAgent",
        *("Hasty", "Hasty"),
        "ExecutiveSummary",
    ]
    assert any("[compacted" in text or "[cut" in text for call in asked for text in results(call))


def results(asked: Mapping[str, Any]) -> list[str]:
    return [message["text"] for message in asked["request"]["messages"] if message["role"] == "tool"]


def check_answer(asked: Mapping[str, Any], model_call: script.Turn, reply: model.Answer) -> None:
    answer = asked["answer"]
    assert (answer["text"], answer["thinking"]) == (reply.text, reply.thoughts)
    if asked["agent"]["strategy"] == "native-thinking":
        assert [(wire(call["name"]), json.loads(call["arguments"])) for call in answer["tool_calls"]] == [
            (call.name, dict(call.args)) for call in reply.calls
        ]
    used = model.usage_of(model_call, reply)
    assert (asked["input_tokens"], asked["output_tokens"], asked["thinking_tokens"]) == (
        used.input,
        used.output,
        used.thinking,
    )


def check_tool_calls(
    called: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], toolbox: mcp_server.Server
) -> None:
    """Each call that a server saw is in the trace as it saw it, and with what it answered."""
    expected_results = {
        "lookup": lambda args: f"{args['name']} exists",
        "restart": lambda args: f"restarted {args['name']}, 1 times now",
        "flood": lambda args: ("all work and no play\n" * LENGTH)[: args["size"]],
    }
    unknown = [tool_call for tool_call in called if tool_call["tool_name"] == "nothing"]
    assert len(called) == len(toolbox.calls) + len(unknown)
    for tool_call in called:
        by = asked[tool_call["asked_by"] - 1]
        assert by["execution"] == tool_call["execution"]
        (call,) = [call for call in by["answer"]["tool_calls"] if call["id"] == tool_call["tool_call_id"]]
        assert (call["name"], call["arguments"]) == (tool(tool_call), tool_call["arguments"])
        if tool_call in unknown:
            assert tool_call["failed"]
            assert "There is no tool 'tools.nothing'" in tool_call["result"]
            continue
        arguments = tool_call["arguments_json"]
        (seen,) = toolbox.calls_of(tool=tool_call["tool_name"], key=arguments["key"])
        assert {name: value for name, value in arguments.items() if name != "key"}.items() <= seen.args.items()
        assert tool_call["failed"] == (seen.answered != "result")
        assert not tool_call["failed"] or "the backend is away" in tool_call["result"]
        assert tool_call["failed"] or tool_call["result"] == expected_results[tool_call["tool_name"]](arguments)
        assert not tool_call["in_doubt"]
        assert not tool_call["cut"]


def check_lines(
    trace: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], called: Sequence[Mapping[str, Any]]
) -> None:
    """A line says what its call says."""
    assert [row["seq"] for row in trace] == sorted(row["seq"] for row in trace)
    for line in trace:
        is_model, full_call = line["type"] == "llm", (asked if line["type"] == "llm" else called)[line["n"] - 1]
        alike = line.keys() & full_call.keys() - {"failure"}
        assert alike > {"seq", "run", "stage", "execution", "execution_name", "seconds", "created_at"}
        assert {name: line[name] for name in alike} == {name: full_call[name] for name in alike}
        assert line["outcome"] == ("failed" if full_call["failure" if is_model else "failed"] else "ok")
        if is_model:
            assert (line["failure"], line["failed_attempts"]) == (
                full_call["failure"],
                len(full_call["failed_requests"]),
            )


async def check_export(process: Process, path: str, trace: Sequence[Mapping[str, Any]]) -> None:
    """It holds what the other routes say, and they say it on pages of any size."""
    export, head = await get(process, f"{path}/export"), await get(process, path)
    assert export["version"] == 2
    messages = await pages(process, f"{path}/messages?", "messages", limit=11)
    assert messages == export["messages"] == await pages(process, f"{path}/messages?", "messages", limit=500)
    for execution in export["executions"]:
        own = f"{path}/messages?execution={execution['id']}&"
        of_it = [message for message in messages if message["execution"] == execution["id"]]
        assert await pages(process, own, "messages", limit=4) == of_it
        assert [message["position"] for message in of_it] == list(range(len(of_it)))
    status, problem = await process.request("GET", f"{path}/messages?execution=nobody")
    assert status == 422
    assert head["executions"][0]["id"] in problem["detail"]
    for name in ("%00", "", "x" * 101):
        assert (await process.request("GET", f"{path}/messages?execution={name}"))[0] == 422
    for kind, interactions in (("llm", export["llm_interactions"]), ("tool", export["mcp_interactions"])):
        for interaction in interactions:
            full_view = await get(process, f"{path}/trace/{kind}/{interaction['n']}")
            assert interaction.items() <= full_view.items(), "what has one name is one thing, wherever it is told"
        assert [interaction["n"] for interaction in interactions] == [
            line["n"] for line in trace if line["type"] == kind
        ]
    events = await pages(process, f"{path}/timeline?", "events", limit=500)
    assert export["timeline"] == events
    assert {name: export[name] for name in ("phase", "summary", "alert_data", "chain", "runs", "unreadable")} == {
        name: head[name] for name in ("phase", "summary", "alert_data", "chain", "runs", "unreadable")
    }
    wholes = {full["id"]: full for full in export["executions"]}
    assert wholes.keys() == {brief["id"] for brief in head["executions"]}
    for light in head["executions"]:
        full_view = wholes[light["id"]]
        alike = light.keys() & full_view.keys()
        assert {name: light[name] for name in alike} == {name: full_view[name] for name in alike}
        assert light["strategy"] == full_view["agent"]["strategy"]
        of_it = [interaction for interaction in export["llm_interactions"] if interaction["execution"] == light["id"]]
        assert (light["iterations"], light["total_tokens"]) == (
            len(of_it),
            sum(interaction["total_tokens"] for interaction in of_it),
        )
    assert "messages" not in head
    assert len(json.dumps(head)) < len(json.dumps(export)) / 3


async def check_markdown(process: Process, path: str) -> None:
    """People read it in the order in which they want to know."""
    token = {"Authorization": f"Bearer {process.editor}"}
    async with (
        aiohttp.ClientSession(process.url, headers=token) as session,
        session.get(f"{path}/export?format=markdown") as response,
    ):
        assert (response.status, response.content_type) == (200, "text/markdown")
        assert response.headers["Content-Disposition"].startswith('attachment; filename="web-crash-')
        assert response.headers["Content-Disposition"].endswith('.md"')
        text = await response.text()
    order = [
        "| Phase | Completed",
        "## Final analysis",
        "## Alert",
        "## Stage `collect`",
        "### Agent `Native`",
        "## Stage `leave`",
    ]
    places = [text.index(title) for title in [*order, "## Stage `leave`", "## How it was summed up"]]
    assert places == sorted(places)
    assert text.index("Left is done") < places[2], "the analysis comes first"
    assert "\n###### no heading" not in text, "it stands in a fence that is not closed"
    assert text.index("Prompt (system)") < text.index("Prompt (user)")
    assert "From here on `scripted` is asked." in text
    assert "Failed attempt (`503`)" in text
    status, problem = await process.request("GET", f"{path}/export?format=pdf")
    assert (status, problem["detail"]) == (422, "query.format: give 'json' or 'markdown'")
