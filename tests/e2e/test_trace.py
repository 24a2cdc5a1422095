"""What the API tells of each call is what the model and the tools of a real operator really saw, and what they said."""

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
    """A script that remembers what it said to whom."""

    said: dict[tuple[keys.Key, str], list[tuple[script.Turn, model.Reply]]] = field(default_factory=dict)

    def __call__(self, turn: model.Turn) -> model.Reply:
        first = (turn.key.agent, turn.iteration, turn.repeats) == ("Native", 1, 0)
        reply = OVERLOADED if first else LIMITED(turn)
        assert isinstance(reply, model.Reply)
        self.said.setdefault((turn.key, turn.kind), []).append((turn, reply))
        return reply


def replies(turn: model.Turn) -> model.Reply:
    """By stage: calls that fail and write, ReAct, long results, a conclusion that is forced, another provider."""

    def calls(*names: str, **args: Any) -> tuple[model.Call, ...]:
        return model.keyed(turn, [model.Call(name=f"tools__{name}", args=args) for name in names])

    if turn.kind != "agent":
        return model.Answer(text=f"the {turn.kind}")
    match turn.key.agent, turn.iteration:
        case "Native", 0:
            found = (*calls("lookup", name="web-0"), *calls("nothing", name="x"), *calls("flaky"))
            return model.Answer(text="I look.", thoughts="Which pods?", calls=found)
        case "Native", 1:
            return model.Answer(calls=calls("restart", name="web-0"), thoughts="It hangs.")
        case "Acting", _:
            return model.Answer(text=acting(turn))
        case "Flooded", 0 | 1:
            return model.Answer(calls=calls("flood", size=LENGTH))
        case "Hasty" | "Left", 0:
            return model.Answer(calls=calls("lookup", name="web-2"))
        case "Hasty", 1 if turn.repeats == 0:
            return model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "late"}),))
    return model.Answer(text=f"{turn.key.agent} is done{HOSTILE}", thoughts="So.")


def acting(turn: model.Turn) -> str:
    key = str(keys.CallKey(*turn.key, turn.iteration, 0))
    given = json.dumps({"name": "web-1", "key": key})
    return (
        "I shall look at the pods.",
        f"Thought: so?\nAction: tools.lookup\nAction Input: {given}\nObservation: made up",
        "Thought: enough\nFinal Answer: web-1 exists [tool 1.0]",
    )[turn.iteration]


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
    """What the model saw, by its own reading of its protocol."""
    path = {"model": request.model, "method": "streamGenerateContent"}
    turn, _ = gemini.parse(path=path, headers={}, body=request.body)
    said = [
        (
            one.role,
            one.text,
            [(call.name, dict(call.args)) for call in one.calls],
            [(result.name, result.text, result.failed, result.reference) for result in one.results],
        )
        for one in turn.messages
    ]
    return turn.system, said, [(one.name, one.description, one.schema) for one in turn.tools], turn.native_tools


def of_trace(request: Mapping[str, Any]) -> tuple[Any, ...]:
    """The same of what the trace says that it was sent."""
    said: list[tuple[str, str, list[Any], list[Any]]] = []
    for one in request["messages"]:
        if one["role"] == "system":
            continue
        role = "model" if one["role"] == "assistant" else "user"
        if not said or said[-1][0] != role:
            said.append((role, "", [], []))
        _, text, calls, results = said[-1]
        calls += [(wire(call["name"]), json.loads(call["arguments"])) for call in one["tool_calls"]]
        if one["role"] == "tool":
            results.append((wire(tool(one)), one["text"], one["failed"], f"[tool {one['tool_call_id']}]"))
        else:
            said[-1] = (role, text + one["text"], calls, results)
    tools = [(wire(one["name"]), one["description"], one["parameters"]) for one in request["tools"]]
    system = "\n\n".join(one["text"] for one in request["messages"] if one["role"] == "system")
    return system, said, tools, tuple(request["native_tools"])


def tool(one: Mapping[str, Any]) -> str:
    return f"{one['server_name']}.{one['tool_name']}"


def wire(name: str) -> str:
    return name.replace(".", "__", 1)


async def get(process: Process, path: str) -> Any:
    status, found = await process.request("GET", path)
    assert status == 200, found
    assert not [word for word in SIGNED if word in json.dumps(found)], "what is a provider's own is told to nobody"
    return found


async def pages(process: Process, path: str, name: str, *, limit: int) -> list[Any]:
    """All pages of a list."""
    found: list[Any] = []
    page = {"last": 0, "more": True}
    while page["more"]:
        page = await get(process, f"{path}after={page['last']}&limit={limit}")
        found += page[name]
    return found


async def test_a_trace_and_an_export_tell_what_model_and_tools_saw(
    operator: Operator, llm: model.Server, first: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = recorder = Recorder()
    process = await operator.start(providers={"first": {"base_url": first.url}})
    await operator.apply(CHAIN, manifests.investigation())
    found = (await operator.finished("web-crash"))["web-crash"]
    assert found["status"]["phase"] == "Completed", found["status"]
    path = f"/api/v1/investigations/{found['metadata']['uid']}"

    trace = await pages(process, f"{path}/trace?", "calls", limit=7)
    assert trace == await pages(process, f"{path}/trace?", "calls", limit=500)
    asked = [await get(process, f"{path}/trace/llm/{one['n']}") for one in trace if one["type"] == "llm"]
    called = [await get(process, f"{path}/trace/tool/{one['n']}") for one in trace if one["type"] == "tool"]
    assert [one["n"] for one in asked] == list(range(1, len(asked) + 1))
    assert [one["n"] for one in called] == list(range(1, len(called) + 1))
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
        place: iter(list(group))
        for place, group in itertools.groupby(
            sorted(requests, key=lambda one: (one.key, one.kind, one.arrived)), key=lambda one: (one.key, one.kind)
        )
    }
    said = {place: iter(replies) for place, replies in recorder.said.items()}
    told = {"ok": 0, "fatal": 0, "rejected": 0}
    for one in asked:
        name = one["agent"]["name"]
        kind = {"SynthesisAgent": "synthesis", "ExecutiveSummary": "summary"}.get(name, "agent")
        (place,) = [place for place in seen if place[1] == kind and (kind != "agent" or place[0].agent == name)]
        for attempt in range(len(one["failed_requests"]) + 1):
            request = next(seen[place])
            assert of_wire(request) == of_trace(one["request"]), (name, one["n"])
            turn, reply = (None, None) if one["provider"] == "first" else next(said[place])
            if attempt < len(one["failed_requests"]):
                assert isinstance(reply, model.HttpError)
                assert one["failed_requests"][attempt]["code"] == str(reply.status)
                assert reply.message in one["failed_requests"][attempt]["error"]
        told[one["failure"] or "ok"] += 1
        if one["answer"]:
            assert isinstance(reply, model.Answer)
            assert turn is not None
            check_answer(one, turn, reply)
        elif isinstance(reply, model.HttpError):
            assert reply.message in one["failure_text"]
    assert [list(left) for left in seen.values()] == [[]] * len(seen), "every request is in the trace"
    assert told["fatal"] == 2, "one that was too large, and one that was left for another provider"
    assert told["rejected"] == 1, "calls instead of a conclusion"
    assert [len(one["failed_requests"]) for one in asked if one["failed_requests"]] == [1]
    assert [one["agent"]["name"] for one in asked if one["request"]["final"]] == [
        "SynthesisAgent",
        *("Hasty", "Hasty"),
        "ExecutiveSummary",
    ]
    assert any("[compacted" in text or "[cut" in text for one in asked for text in results(one))


def results(asked: Mapping[str, Any]) -> list[str]:
    return [message["text"] for message in asked["request"]["messages"] if message["role"] == "tool"]


def check_answer(asked: Mapping[str, Any], turn: script.Turn, reply: model.Answer) -> None:
    answer = asked["answer"]
    assert (answer["text"], answer["thinking"]) == (reply.text, reply.thoughts)
    if asked["agent"]["strategy"] == "native-thinking":
        assert [(wire(call["name"]), json.loads(call["arguments"])) for call in answer["tool_calls"]] == [
            (call.name, dict(call.args)) for call in reply.calls
        ]
    used = model.usage_of(turn, reply)
    assert (asked["input_tokens"], asked["output_tokens"], asked["thinking_tokens"]) == (
        used.input,
        used.output,
        used.thinking,
    )


def check_tool_calls(
    called: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], toolbox: mcp_server.Server
) -> None:
    """Each call that a server saw is in the trace as it saw it, and with what it answered."""
    shown = {
        "lookup": lambda args: f"{args['name']} exists",
        "restart": lambda args: f"restarted {args['name']}, 1 times now",
        "flood": lambda args: ("all work and no play\n" * LENGTH)[: args["size"]],
    }
    unknown = [one for one in called if one["tool_name"] == "nothing"]
    assert len(called) == len(toolbox.calls) + len(unknown)
    for one in called:
        by = asked[one["asked_by"] - 1]
        assert by["execution"] == one["execution"]
        (call,) = [call for call in by["answer"]["tool_calls"] if call["id"] == one["tool_call_id"]]
        assert (call["name"], call["arguments"]) == (tool(one), one["arguments"])
        if one in unknown:
            assert one["failed"]
            assert "There is no tool 'tools.nothing'" in one["result"]
            continue
        given = one["arguments_json"]
        (seen,) = toolbox.of(tool=one["tool_name"], key=given["key"])
        assert {name: value for name, value in given.items() if name != "key"}.items() <= seen.args.items()
        assert one["failed"] == (seen.answered != "result")
        assert not one["failed"] or "the backend is away" in one["result"]
        assert one["failed"] or one["result"] == shown[one["tool_name"]](given)
        assert not one["in_doubt"]
        assert not one["cut"]


def check_lines(
    trace: Sequence[Mapping[str, Any]], asked: Sequence[Mapping[str, Any]], called: Sequence[Mapping[str, Any]]
) -> None:
    """A line says what its call says."""
    assert [one["seq"] for one in trace] == sorted(one["seq"] for one in trace)
    for line in trace:
        is_model, whole = line["type"] == "llm", (asked if line["type"] == "llm" else called)[line["n"] - 1]
        alike = line.keys() & whole.keys() - {"failure"}
        assert alike > {"seq", "run", "stage", "execution", "execution_name", "seconds", "created_at"}
        assert {name: line[name] for name in alike} == {name: whole[name] for name in alike}
        assert line["outcome"] == ("failed" if whole["failure" if is_model else "failed"] else "ok")
        if is_model:
            assert (line["failure"], line["failed_attempts"]) == (whole["failure"], len(whole["failed_requests"]))


async def check_export(process: Process, path: str, trace: Sequence[Mapping[str, Any]]) -> None:
    """It holds what the other routes say, and they say it on pages of any size."""
    export, head = await get(process, f"{path}/export"), await get(process, path)
    assert export["version"] == 2
    messages = await pages(process, f"{path}/messages?", "messages", limit=11)
    assert messages == export["messages"] == await pages(process, f"{path}/messages?", "messages", limit=500)
    for execution in export["executions"]:
        own = f"{path}/messages?execution={execution['id']}&"
        of_it = [one for one in messages if one["execution"] == execution["id"]]
        assert await pages(process, own, "messages", limit=4) == of_it
        assert [one["position"] for one in of_it] == list(range(len(of_it)))
    status, problem = await process.request("GET", f"{path}/messages?execution=nobody")
    assert status == 422
    assert head["executions"][0]["id"] in problem["detail"]
    for name in ("%00", "", "x" * 101):
        assert (await process.request("GET", f"{path}/messages?execution={name}"))[0] == 422
    for kind, told in (("llm", export["llm_interactions"]), ("tool", export["mcp_interactions"])):
        for one in told:
            whole = await get(process, f"{path}/trace/{kind}/{one['n']}")
            assert one.items() <= whole.items(), "what has one name is one thing, wherever it is told"
        assert [one["n"] for one in told] == [one["n"] for one in trace if one["type"] == kind]
    events = await pages(process, f"{path}/timeline?", "events", limit=500)
    assert export["timeline"] == events
    assert {name: export[name] for name in ("phase", "summary", "alert_data", "chain", "runs", "unreadable")} == {
        name: head[name] for name in ("phase", "summary", "alert_data", "chain", "runs", "unreadable")
    }
    wholes = {one["id"]: one for one in export["executions"]}
    assert wholes.keys() == {one["id"] for one in head["executions"]}
    for light in head["executions"]:
        whole = wholes[light["id"]]
        alike = light.keys() & whole.keys()
        assert {name: light[name] for name in alike} == {name: whole[name] for name in alike}
        assert light["strategy"] == whole["agent"]["strategy"]
        of_it = [one for one in export["llm_interactions"] if one["execution"] == light["id"]]
        assert (light["iterations"], light["total_tokens"]) == (len(of_it), sum(one["total_tokens"] for one in of_it))
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
