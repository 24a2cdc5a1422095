"""Results of agents' work in a real operator: joined, in either dialect, summed up, and what they are based on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

LOOKUP = model.Call(name="tools__lookup", args={"name": "web-0"})
SUMMARISED = {"enabled": True}


def react(thought: str, *lines: str) -> model.Answer:
    return model.Answer(text="\n".join([f"Thought: {thought}", *lines]))


def act(name: str, action_input: str, *, thought: str = "I look.") -> model.Answer:
    return react(thought, f"Action: {name}", f"Action Input: {action_input}")


def final(text: str) -> model.Answer:
    return react("That is enough.", f"Final Answer: {text}")


def task(request: model.Request) -> str:
    """Return the text of the first user message."""
    return str(request.body["contents"][0]["parts"][0]["text"])


def last_user_text(request: model.Request) -> str:
    """Return the text of the last user message."""
    return "".join(part.get("text", "") for part in request.body["contents"][-1]["parts"])


def system(request: model.Request) -> str:
    return str(request.body["systemInstruction"]["parts"][0]["text"])


def condition(manifest: dict[str, Any], kind: str) -> tuple[str, str]:
    (matching,) = [candidate for candidate in manifest["status"]["conditions"] if candidate["type"] == kind]
    return matching["status"], matching["reason"]


async def events(process: Process, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    uid = manifest["metadata"]["uid"]
    status, page = await process.request("GET", f"/api/v1/investigations/{uid}/timeline?limit=500")
    assert (status, page["more"]) == (200, False)
    return list({event["id"]: event for event in page["events"]}.values())


async def test_agents_in_both_dialects_are_joined_concluded_from_and_summed_up(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    def script(model_call: model.Turn) -> model.Answer:
        match model_call.kind, model_call.key.agent, model_call.iteration:
            case "summary", _, _:
                return model.Answer(text="web-0 is there.\n\n  Restart it.  ")
            case "synthesis", _, 0:
                return model.Answer(text="Both saw web-0 [tool 0.0].", thoughts="They agree.")
            case _, "Native", 0:
                return model.Answer(calls=(LOOKUP,), thoughts="Erst schauen.")
            case _, "Native", 1:
                return model.Answer(text="native: web-0 exists [tool 0.0]")
            case _, "Acting", 0:
                return act("tools.lookup", '{"name": "web-1"}', thought="What of web-1?")
            case _, "Acting", 1:
                return final("react: web-1 exists [tool 0.0]")
            case _, "KubernetesAgent", 0:
                return model.Answer(text="1. Root cause: web-0")
        raise model.ScriptError(str(model_call.key))

    llm.script = script
    process = await operator.start()
    own = [
        {"name": "Native", "mcpServers": ["tools"]},
        {"name": "Acting", "mcpServers": ["tools"], "iterationStrategy": "react"},
    ]
    stages = [
        {"name": "collect", "agents": [{"name": "Native"}, {"name": "Acting"}]},
        manifests.stage("conclude", iterationStrategy="react-final-analysis"),
    ]
    chain = manifests.chain(agents=own, stages=stages, executiveSummary=SUMMARISED)
    await operator.apply(chain, manifests.investigation())
    manifest = (await operator.finished("web-crash"))["web-crash"]
    status = manifest["status"]
    assert (status["phase"], status["progress"]) == ("Completed", "2/2")
    assert [(stage["phase"], stage["agents"]) for stage in status["stages"]] == [
        ("Completed", "2/2"),
        ("Completed", "1/1"),
    ]
    assert status["summary"] == "web-0 is there.\nRestart it."
    assert status["finalAnalysis"] == "1. Root cause: web-0"
    assert status["gaps"] == []
    assert condition(manifest, "Grounded") == ("True", "Inspected")
    assert status["usage"]["llmCalls"] == len(llm.requests) == 7
    assert sorted(call.args["name"] for call in toolbox.calls) == ["web-0", "web-1"]

    first, second = llm.requests_of(agent="Acting")
    assert "tools" not in first.body
    assert "tools" not in second.body
    tools = re.search(r"## Tools\n\n<!-- DATA \w+ START -->\n(.*?)\n<!-- DATA", system(first), re.DOTALL)
    assert tools
    assert re.search(r"^tools\.lookup: Look up a thing by its name", tools[1], re.MULTILINE)
    assert last_user_text(second) == "Observation: [tool 0.0] web-1 exists"
    native = llm.requests_of(agent="Native")
    assert native[0].body["tools"]
    (response,) = native[1].body["contents"][-1]["parts"]
    assert response["functionResponse"]["response"] == {"output": "web-0 exists", "reference": "[tool 0.0]"}

    (joining,) = llm.requests_of(kind="synthesis")
    assert "tools" not in joining.body
    for excerpt in (
        "#### Agent 1: Native\n",
        "Thinking: Erst schauen.",
        "Observation: tools.lookup: web-0 exists",
        "native: web-0 exists [tool 0.0]",
        "#### Agent 2: Acting\n",
        "Thinking: What of web-1?",
        "Observation: tools.lookup: web-1 exists",
        "react: web-1 exists [tool 0.0]",
    ):
        assert excerpt in task(joining)

    (concluding,) = llm.requests_of(stage="conclude")
    assert "tools" not in concluding.body
    assert "Observation: tools.lookup: web-0 exists" in task(concluding)
    assert "Observation: tools.lookup: web-1 exists" in task(concluding)
    assert "Both saw web-0" in task(concluding)
    assert "Thinking: " not in task(concluding)
    (summing_up,) = llm.requests_of(kind="summary")
    assert "tools" not in summing_up.body
    assert "1. Root cause: web-0" in task(summing_up)

    told_of = await events(process, manifest)
    (summary,) = [event for event in told_of if event["type"] == "executive_summary"]
    assert (summary["content"].split(), summary["stage"]) == (["web-0", "is", "there.", "Restart", "it."], "")
    thoughts = [event for event in told_of if event["type"] == "llm_thinking"]
    assert {event["metadata"].get("source") for event in thoughts} >= {"react"}
    assert [event["content"] for event in thoughts if event["metadata"].get("source") == "react"] == [
        "What of web-1?",
        "That is enough.",
    ]
    uid = manifest["metadata"]["uid"]
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}")
    assert (read["summary"], read["gaps"], read["grounds"]) == (
        status["summary"],
        [],
        "Inspected",
    )
    assert [execution["ungrounded"] for execution in read["executions"]] == [False] * 5
    await process.stop()


async def test_result_is_reported_with_its_grounds(operator: Operator, llm: model.Server) -> None:
    """By investigation: who only announces, whose tools all fail, and who names a call that never was."""

    def script(model_call: model.Turn) -> model.Answer:
        match model_call.key.investigation.rpartition("/")[2], model_call.iteration:
            case "announces", 0 | 1:
                return model.Answer(text="I will look at the pods.")
            case "fails", 0:
                return model.Answer(calls=(model.Call(name="tools__flaky"), model.Call(name="tools__nothing")))
            case "fails", 1 | 2:
                return model.Answer(text="inconclusive")
            case "invents", 0:
                return model.Answer(calls=(LOOKUP,))
            case "invents", 1:
                return model.Answer(text="It exists [tool 0.0], and is broken [tools 0.0, 7.3].")
        raise model.ScriptError(str(model_call.key))

    llm.script = script
    process = await operator.start()
    names = ("announces", "fails", "invents")
    await operator.apply(manifests.chain(), *map(manifests.investigation, names))
    by_name = await operator.finished(*names)
    assert {
        name: (manifest["status"]["phase"], *condition(manifest, "Grounded")) for name, manifest in by_name.items()
    } == {
        "announces": ("Completed", "False", "NothingInspected"),
        "fails": ("Completed", "False", "NothingInspected"),
        "invents": ("Completed", "False", "UnknownReferences"),
    }
    gaps = {
        name: [(gap["tool"], gap["reason"]) for gap in manifest["status"]["gaps"]] for name, manifest in by_name.items()
    }
    assert gaps["announces"] == [("-", "KubernetesAgent concluded without a result of its tools")]
    assert [tool for tool, _ in gaps["fails"]] == ["tools.flaky", "tools.nothing", "-"]
    assert "the backend is away" in gaps["fails"][0][1]
    assert [tool for tool, _ in gaps["invents"]] == ["[tool 7.3]"]

    first, second = llm.requests_of(investigation=f"{operator.namespace}/announces")
    assert last_user_text(second).startswith("No tool has shown you anything yet.")
    assert first.body["tools"] == second.body["tools"]
    uid = by_name["announces"]["metadata"]["uid"]
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}")
    assert [execution["ungrounded"] for execution in read["executions"]] == [True]
    await process.stop()


async def test_account_of_the_stages_comes_first_after_a_failure(operator: Operator, llm: model.Server) -> None:
    def script(model_call: model.Turn) -> model.Reply:
        if model_call.kind == "summary":
            return model.Answer(text="two of three")
        if model_call.key.stage == "middle":
            return model.HttpError(status=400, message="the request is too long")
        return (
            model.Answer(calls=(LOOKUP,))
            if model_call.iteration == 0
            else model.Answer(text=f"of {model_call.key.stage}")
        )

    llm.script = script
    process = await operator.start()
    stages = [manifests.stage(name) for name in ("first", "middle", "last")]
    await operator.apply(manifests.chain(stages=stages, executiveSummary=SUMMARISED), manifests.investigation())
    manifest = (await operator.finished("web-crash"))["web-crash"]
    status = manifest["status"]
    assert (status["phase"], status["progress"], status["summary"]) == ("CompletedWithErrors", "3/3", "two of three")
    lines = status["finalAnalysis"].splitlines()
    assert lines[:7] == [
        "Chain Execution Summary:",
        "- Total stages: 3",
        "- Successful: 2",
        "- Failed: 1",
        "",
        "Stage Results:",
        "✅ first: of first",
    ]
    assert lines[7].startswith("❌ middle: ")
    assert "the request is too long" in lines[7]
    assert lines[8:] == ["✅ last: of last", "", "of last"]
    (summing_up,) = llm.requests_of(kind="summary")
    assert "Chain Execution Summary:" in task(summing_up)
    await process.stop()
