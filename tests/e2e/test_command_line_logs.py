"""`tarsy logs`, `chat`, `investigate`, `why`, `chain` and `tools` against an operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import accounts, command_line, manifests
from tarsy_dev import controlplane, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

QUESTION = "Which image was it?"
LOOKUP = model.Call(name="tools__lookup", args={"name": "web-0"})
TEXT = "I look \x1b]0;owned\x07 at the pod. " * 5


@pytest.fixture
async def process(operator: Operator, llm: model.Server) -> Process:
    """An operator whose model looks once and answers; it never answers `running` a second time."""

    def script(turn: model.Turn) -> model.Reply:
        name = turn.key.investigation.partition("/")[2]
        if any(QUESTION in message.text for message in turn.messages):
            return model.Answer(text="shop/web:broken")
        if name == "failed":
            return model.HttpError(status=400)
        if turn.iteration == 0:
            return model.Answer(text=TEXT, thoughts="hm", calls=(LOOKUP,), chunk=20, pause=0.01)
        return model.Hang() if name == "running" else model.Answer(text="root cause")

    llm.script = script
    return await operator.start()


@pytest.fixture
def run(
    process: Process, operator: Operator, plane: controlplane.ControlPlane, programs: dict[str, Path]
) -> command_line.CommandLine:
    return command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )


@pytest.mark.slow
async def test_logs_are_the_same_while_it_runs_and_afterwards(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    await operator.apply(manifests.chain(), manifests.investigation("web"), manifests.investigation("running"))
    await operator.finished("web")
    whole = await run.run("logs", "web")
    assert whole.code == 0, whole.err
    head = "[analysis/KubernetesAgent] "
    lines = whole.out.splitlines()
    assert all(line.startswith("[") for line in lines)
    assert lines[0].startswith(f"{head}I look \\x1b]0;owned\\x07 at the pod.")
    assert f'{head}Calls tools.lookup {{"name": "web-0"}}' in [line.replace('":"', '": "') for line in lines]
    assert lines[-1] == f"{head}root cause"
    assert "Thinks" not in whole.out
    assert f"{head}Thinks: hm" in (await run.run("logs", "web", "--thinking")).out
    assert "tools.lookup answers: " in (await run.run("logs", "web", "--tools")).out
    assert (await run.run("logs", "web", "--tail", "1")).out == f"{head}root cause\n"
    assert (await run.run("logs", "web", "--since", "0s")).out == ""
    assert (await run.run("logs", "web", "--failed")).out == ""
    wrong = await run.run("logs", "web", "--stage", "analysys")
    assert (wrong.code, "The nearest: analysis" in wrong.err) == (2, True)
    await operator.kubectl("delete", "inv", "web")
    assert (await run.run("logs", "web", "-f")).out == whole.out

    async with run.started("logs", "-f", "running") as following, run.terminal("logs", "-f", "running") as terminal:
        assert following.stdout
        await asyncio.wait_for(following.stdout.readuntil(b"Calls tools.lookup"), 60)
        await terminal.until("Calls tools.lookup")
        assert (await run.run("cancel", "running")).code == 0
        assert await asyncio.wait_for(following.wait(), 60) == 0
        assert await terminal.ended() == 0
        assert "\x1b]0;" not in terminal.text


@pytest.mark.slow
async def test_a_text_streams_on_a_terminal(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    def script(turn: model.Turn) -> model.Reply:
        if turn.iteration == 0:
            return model.Answer(calls=(LOOKUP,))
        answer = model.Answer(text="one two three four five", chunk=4)
        return model.Hang(after=3, answer=answer) if turn.key.investigation.endswith("/hangs") else answer

    llm.script = script
    await operator.apply(manifests.chain(), *map(manifests.investigation, ("hangs", "ends")))

    async with run.terminal("logs", "-f", "hangs") as terminal:
        await terminal.until("one two")
        terminal.type("\x03")
        assert await terminal.ended() == 130
        assert "four" not in terminal.text
    async with run.terminal("logs", "-f", "ends") as terminal:
        assert await terminal.ended() == 0
        assert terminal.text.count("one two three four five") == 1, terminal.text


@pytest.mark.slow
async def test_questions_are_asked_and_answered(operator: Operator, run: command_line.CommandLine) -> None:
    await operator.apply(manifests.chain(), manifests.investigation("web"))
    await operator.finished("web")

    asked = await run.run("chat", "web", QUESTION)
    assert (asked.code, asked.out) == (0, "shop/web:broken\n"), asked.err
    async with run.terminal("chat", "web") as terminal:
        await terminal.until("> ")
        terminal.type(f"{QUESTION}\n")
        await terminal.until("[question 2] shop/web:broken")
        terminal.type("\x04")
        assert await terminal.ended() == 0
    assert (await run.run("chat", "web")).code == 2


@pytest.mark.slow
async def test_an_alert_is_investigated_from_options_a_file_and_standard_input(
    operator: Operator, run: command_line.CommandLine, tmp_path: Path
) -> None:
    await operator.apply(manifests.chain())
    alert = ("investigate", "--alert", "kubernetes", "--data", "web-0 restarts")

    dry = await run.run(*alert, "--dry-run")
    assert (dry.code, dry.out.splitlines()[0]) == (0, "chain kubernetes takes it, because it has alert type kubernetes")
    other = await run.run("investigate", "--alert", "Other", "--data", "x", "--dry-run")
    assert "as kubernetes, the default alert type: no chain has alert type Other" in other.out
    watched = await run.run(*alert, "--watch")
    assert watched.code == 0, watched
    assert " created\n" in watched.out
    assert "root cause" in watched.out
    created = await run.run(*alert, "-n", operator.namespace, "-o", "name")
    assert created.out.startswith("alertinvestigation.tarsy.dev/kubernetes-"), created
    file = tmp_path / "alert.yaml"
    file.write_text(json.dumps(manifests.investigation("failed")))
    failed = await run.run("investigate", "-f", str(file), "--watch")
    assert failed.code == 1, failed
    manifest = manifests.investigation("typo")
    manifest["spec"]["alertTyp"] = "x"
    wrong = await run.run("investigate", "-", stdin=json.dumps(manifest))
    assert (wrong.code, "spec.alertTyp" in wrong.err) == (2, True), wrong
    posted = await run.run("investigate", "-", stdin=json.dumps({"alert_type": "kubernetes", "data": {"a": 1}}))
    assert posted.code == 0, posted
    unknown = await run.run("investigate", "-", stdin=json.dumps({"alert_type": "kubernetes", "data": "x", "dat": 1}))
    assert (unknown.code, "dat: " in unknown.err) == (2, True), unknown
    for arguments in ((), ("--alert", "x"), (str(file), "--alert", "x"), ("/no/such/file",)):
        assert (await run.run("investigate", *arguments)).code == 2


@pytest.mark.slow
async def test_why_goes_down_to_the_call_that_failed(operator: Operator, run: command_line.CommandLine) -> None:
    unready = manifests.chain("Broken", name="broken", stages=[manifests.stage("analysis", agent="NoSuchAgent")])
    await operator.apply(manifests.chain(), unready)
    await operator.apply(
        manifests.investigation("failed"),
        manifests.investigation("web"),
        manifests.investigation("unready", alertType="Broken"),
        manifests.investigation("nowhere", alertType="Nowhere"),
    )
    await operator.finished("failed", "web", "unready", "nowhere")

    failed = await run.run("why", "failed")
    assert failed.code == 0, failed.err
    assert "failed: Failed (StagesFailed)" in failed.out
    assert "  Data: web-0 restarts" in failed.out
    assert "  Chain: " in failed.out
    assert "Stage analysis: Failed" in failed.out
    assert "    Agent KubernetesAgent (scripted): Failed" in failed.out
    assert "Model call 1: scripted gemini-2.5-flash: failed 400" in failed.out
    assert "INVALID_ARGUMENT" in failed.out
    chain = await run.run("why", "unready")
    assert "NoSuchAgent" in chain.out
    nowhere = await run.run("why", "nowhere")
    assert "Available alert types: " in nowhere.out
    without = await run.other(TARSY_API="http://127.0.0.1:1").run("why", "failed")
    assert (without.code, "Without the API, the calls that failed are not known." in without.out) == (0, True)

    chains = await run.run("chain", "list")
    assert [line.split()[0] for line in chains.out.splitlines()] == ["NAME", "broken", "kubernetes"]
    got = await run.run("chain", "get", "broken")
    assert "NoSuchAgent" in got.out
    assert (await run.run("chain", "get", "brocken")).code == 2
    assert (await run.run("chain", "get", "broken", "-o", "jsonpath={.spec.alertTypes[0]}")).out == "Broken"
    listed: list[list[str]] = []
    async with patience.limit():
        while ["tools", "lookup", "Offered"] not in listed:  # a process tells of its tools once a second
            listed = [line.split()[:3] for line in (await run.run("tools", "list", "tools")).out.splitlines()]
    assert (await run.run("tools", "list", "nothing")).code == 2


@pytest.mark.slow
async def test_why_names_the_server_that_was_away(
    operator: Operator, llm: model.Server, plane: controlplane.ControlPlane, programs: dict[str, Path]
) -> None:
    llm.script = model.answers("nothing seen")
    operator.configure(agents={"KubernetesAgent": {"mcp_servers": ["kubernetes-server"]}})
    process = await operator.start()
    await operator.apply(manifests.chain(), manifests.investigation("web"))
    await operator.finished("web")
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )

    now = "    MCP server kubernetes-server now: cannot be reached"
    why = await run.run("why", "web")
    async with patience.limit():
        while now not in why.out:  # a process tells of its servers once a second, also of those not tried yet
            why = await run.run("why", "web")

    assert why.code == 0, why
    assert "  Not grounded: ServersAway" in why.out, why
    assert "    Not looked at: kubernetes-server: " in why.out


@pytest.mark.slow
async def test_an_investigation_is_run_again_from_a_stage(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    llm.script = lambda turn: model.HttpError(status=400) if turn.key.stage == "second" else model.Answer(text="seen")
    stages = [manifests.stage("first"), manifests.stage("second")]
    await operator.apply(manifests.chain(stages=stages, failurePolicy="Stop"), manifests.investigation("web"))
    await operator.finished("web")
    llm.script = model.answers("root cause")
    before = len(llm.requests)

    again = await run.run("retry", "web", "--from-stage", "second", "--watch")

    assert again.code == 0, again
    assert "root cause" in again.out
    assert {request.key.stage for request in llm.requests[before:]} == {"second"}
    new = again.out.split()[0].rpartition("/")[2]
    assert "Retry of:   web" in (await run.run("get", new)).out
    assert f"Retried by: {new}" in (await run.run("get", "web")).out
    unknown = await run.run("retry", "web", "--from-stage", "third")
    assert (unknown.code, "first" in unknown.err) == (2, True), unknown
    assert (await run.run("retry", "web", "--from-stage", "second", "--current-chain")).code == 2

    for arguments in (("web",), ("web", "perhaps"), ("web", "wrong", "--withdraw")):
        assert (await run.run("feedback", *arguments)).code == 2, arguments
    said = await run.run("feedback", new, "wrong", "--cause", "the \x1b[31mdisk", "--note", "look again")
    assert (said.code, said.out) == (0, f"alertinvestigation.tarsy.dev/{new} is wrong, says {accounts.EDITORS_NAME}\n")
    told = f"Feedback:   wrong, says {accounts.EDITORS_NAME}: the \\x1b[31mdisk: look again"
    assert told in (await run.run("get", new)).out
    for verdict, name in (("wrong", new), ("none", "web")):
        listed = await run.run("list", "--feedback", verdict, "-o", "name")
        assert listed.out == f"alertinvestigation.tarsy.dev/{name}\n", listed
    everywhere = await run.run("list", "-A", "--feedback", "wrong", "-o", "name")
    assert everywhere.out == f"alertinvestigation.tarsy.dev/{new}\n", everywhere
    uid = (await run.run("get", new, "-o", "jsonpath={.metadata.uid}")).out
    assert (await run.run("feedback", "--uid", uid, "correct")).code == 0
    assert (await run.run("feedback", new, "--withdraw")).code == 0
    assert "Feedback" not in (await run.run("get", new)).out


@pytest.mark.slow
async def test_transcripts_are_deleted_restored_held_and_purged(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    await operator.apply(manifests.chain(), manifests.investigation("web"))
    await operator.finished("web")
    uid = json.loads((await run.run("get", "web", "-o", "json")).out)["metadata"]["uid"]

    held = await run.run("hold", "web", "--reason", "incident 4711")
    assert (held.code, held.out) == (0, "web held: incident 4711\n")
    assert "Held:       incident 4711" in (await run.run("get", "web")).out
    refused = await run.run("delete", "web")
    assert (refused.code != 0, "it is held: incident 4711" in refused.err) == (True, True), refused
    assert (await run.run("unhold", "web")).out == "web is not held\n"

    deleted = await run.run("delete", "web")
    assert deleted.out == f"web deleted; to bring it back: tarsy restore --uid {uid}\n"
    assert (await run.run("get", "--uid", uid)).code != 0
    assert (await run.run("restore", "--uid", uid)).out == "web restored\n"
    assert "root cause" in (await run.run("get", "--uid", uid)).out

    unsure = await run.run("purge", "web")
    assert (unsure.code != 0, "confirm it with --yes" in unsure.err) == (True, True), unsure
    assert (await run.run("purge", "web", "--yes")).out == "web purged\n"
    assert (await run.run("restore", "--uid", uid)).code != 0
