"""`tarsy logs`, `chat`, `investigate`, `why`, `chain` and `tools` against an operator."""

from __future__ import annotations

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

    def script(model_call: model.Turn) -> model.Reply:
        name = model_call.key.investigation.partition("/")[2]
        if any(QUESTION in message.text for message in model_call.messages):
            return model.Answer(text="shop/web:broken")
        if name == "failed":
            return model.HttpError(status=400)
        if model_call.iteration == 0:
            return model.Answer(text=TEXT, thoughts="hm", calls=(LOOKUP,), chunk=20, pause=0.01)
        return model.Hang() if name == "running" else model.Answer(text="root cause")

    llm.script = script
    return await operator.start()


@pytest.fixture
def run(
    process: Process, operator: Operator, plane: controlplane.Administrator, programs: dict[str, Path]
) -> command_line.CommandLine:
    return command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )


async def test_command_why_goes_down_to_the_call_that_failed(operator: Operator, run: command_line.CommandLine) -> None:
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


async def test_an_investigation_is_run_again_from_a_stage(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    llm.script = lambda model_call: (
        model.HttpError(status=400) if model_call.key.stage == "second" else model.Answer(text="seen")
    )
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
    feedback = await run.run("feedback", new, "wrong", "--cause", "the \x1b[31mdisk", "--note", "look again")
    assert (feedback.code, feedback.out) == (
        0,
        f"alertinvestigation.tarsy.dev/{new} is wrong, says {accounts.EDITORS_NAME}\n",
    )
    feedback_line = f"Feedback:   wrong, says {accounts.EDITORS_NAME}: the \\x1b[31mdisk: look again"
    assert feedback_line in (await run.run("get", new)).out
    for verdict, name in (("wrong", new), ("none", "web")):
        listed = await run.run("list", "--feedback", verdict, "-o", "name")
        assert listed.out == f"alertinvestigation.tarsy.dev/{name}\n", listed
    everywhere = await run.run("list", "-A", "--feedback", "wrong", "-o", "name")
    assert everywhere.out == f"alertinvestigation.tarsy.dev/{new}\n", everywhere
    uid = (await run.run("get", new, "-o", "jsonpath={.metadata.uid}")).out
    assert (await run.run("feedback", "--uid", uid, "correct")).code == 0
    assert (await run.run("feedback", new, "--withdraw")).code == 0
    assert "Feedback" not in (await run.run("get", new)).out


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
