"""`tarsy logs`, `chat`, `investigate`, `why`, `chain` and `tools` against an operator."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import command_line, manifests
from tarsy_dev import controlplane, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

QUESTION = "Which image was it?"

LOOKUP = model.Call(name="tools__lookup", args={"name": "web-0"})

TEXT = "I look \x1b]0;owned\x07 at the pod. " * 5


@pytest.fixture
async def process(operator: Operator, llm: model.Server) -> Process:
    """An operator whose model looks once and answers; it never answers `running` a second time."""

    def script(call: model.Turn) -> model.Reply:
        name = call.key.investigation.partition("/")[2]
        if any(QUESTION in message.text for message in call.messages):
            return model.Answer(text="shop/web:broken")
        if name == "failed":
            return model.HttpError(status=400)
        if call.iteration == 0:
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


async def test_logs_are_the_same_while_it_runs_and_afterwards(
    operator: Operator, run: command_line.CommandLine, llm: model.Server
) -> None:
    await operator.apply(manifests.chain(), manifests.investigation("web"), manifests.investigation("running"))
    await operator.finished("web")
    full_log = await run.run("logs", "web")
    assert full_log.code == 0, full_log.err
    head = "[analysis/KubernetesAgent] "
    lines = full_log.out.splitlines()
    assert all(line.startswith("[") for line in lines)
    assert lines[0].startswith(f"{head}I look \\x1b]0;owned\\x07 at the pod.")
    assert f'{head}Calls tools.lookup {{"name": "web-0"}}' in [line.replace('":"', '": "') for line in lines]
    assert lines[-1] == f"{head}root cause"
    assert "Thinks" not in full_log.out
    assert f"{head}Thinks: hm" in (await run.run("logs", "web", "--thinking")).out
    assert "tools.lookup answers: " in (await run.run("logs", "web", "--tools")).out
    assert (await run.run("logs", "web", "--tail", "1")).out == f"{head}root cause\n"
    assert (await run.run("logs", "web", "--since", "0s")).out == ""
    assert (await run.run("logs", "web", "--failed")).out == ""
    wrong = await run.run("logs", "web", "--stage", "analysys")
    assert (wrong.code, "The nearest: analysis" in wrong.err) == (2, True)
    await operator.kubectl("delete", "inv", "web")
    assert (await run.run("logs", "web", "-f")).out == full_log.out

    async with run.started("logs", "-f", "running") as following, run.terminal("logs", "-f", "running") as terminal:
        assert following.stdout
        await asyncio.wait_for(following.stdout.readuntil(b"Calls tools.lookup"), 60)
        await terminal.until("Calls tools.lookup")
        assert (await run.run("cancel", "running")).code == 0
        assert await asyncio.wait_for(following.wait(), 60) == 0
        assert await terminal.ended() == 0
        assert "\x1b]0;" not in terminal.text


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
