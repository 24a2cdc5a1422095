"""The commands against an operator: running, finished, failed, cancelled and deleted investigations."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import command_line, manifests
from tarsy_dev import controlplane, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

HOSTILE = "root \x1b[31mcause\x1b[0m \x9b2J \u202egnp"
CODES = {"completed": 0, "failed": 1, "cancelled": 3}


@dataclass
class World:
    """An operator with investigations, and the command line."""

    operator: Operator
    process: Process
    llm: model.Server
    plane: controlplane.ControlPlane
    run: command_line.CommandLine

    async def uid(self, name: str) -> str:
        return (await self.operator.kubectl("get", "inv", name, "-o", "jsonpath={.metadata.uid}")).strip()


@pytest.fixture
async def world(
    operator: Operator, llm: model.Server, plane: controlplane.ControlPlane, programs: dict[str, Path]
) -> World:
    """`completed`, `failed` and `deleted` have ended, `running` runs; the model never answers it."""

    def script(turn: model.Turn) -> model.Reply:
        replies: dict[str, model.Reply] = {
            "failed": model.HttpError(status=400),
            "cancelled": model.Hang(),
            "running": model.Hang(),
            "late": model.Hang(),
        }
        return replies.get(turn.key.investigation.partition("/")[2], model.Answer(text=HOSTILE))

    llm.script = script
    process = await operator.start()
    names = ["completed", "failed", "deleted", "running"]
    await operator.apply(manifests.chain(), *map(manifests.investigation, names))
    await operator.finished("completed", "failed", "deleted")
    await operator.kubectl("wait", "inv/running", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    run = command_line.CommandLine(
        kubectl=programs["kubectl"],
        kubeconfig=plane.kubeconfig(namespace=operator.namespace),
        env={"TARSY_API": process.url, "TARSY_TOKEN": process.editor},
    )
    return World(operator=operator, process=process, llm=llm, plane=plane, run=run)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_kind_of_end_is_read(world: World) -> None:
    run = world.run
    deleted = await world.uid("deleted")
    await world.operator.kubectl("delete", "inv", "deleted")

    listed = await run.run("list", "--no-headers")
    assert (listed.code, len(listed.out.splitlines())) == (0, 4), listed.err
    assert "\x1b" not in listed.out
    for arguments, names in (
        (("--phase", "Failed"), ["failed"]),
        (("--alert", "other"), []),
        (("--sort-by", "name", "--limit", "2"), ["completed", "deleted"]),
        (("--limit", "0"), ["running", "deleted", "failed", "completed"]),
        (("-l", "tarsy.dev/severity=none"), []),
        (("--field-selector", "status.phase=Failed"), ["failed"]),
    ):
        found = await run.run("list", *arguments, "-o", "json")
        items = json.loads(found.out)["items"]
        assert sorted(item.get("name") or item["metadata"]["name"] for item in items) == sorted(names), arguments

    for name, phase in (("completed", "Completed"), ("failed", "Failed"), ("running", "Running")):
        got = await run.run("get", name)
        assert (got.code, f"Phase:      {phase}" in got.out) == (0, True), got
        assert not set("\x1b\x9b\u202e") & set(got.out)
        path = await run.run("get", f"inv/{name}", "-o", "jsonpath={.status.phase}")
        assert path.out == phase
    for which in (("deleted",), ("--uid", deleted)):
        gone = await run.run("get", *which)
        assert (gone.code, "Completed" in gone.out, gone.err) == (0, True, "Its object is gone, or cannot be read.\n")
        assert json.loads((await run.run("get", *which, "-o", "json")).out)["phase"] == "Completed"
        assert (await run.run("wait", *which)).code == 0
        exported = await run.run("export", *which)
        assert (exported.code, "root" in exported.out) == (0, True), exported.err

    wrong = await run.run("get", "complete")
    assert wrong.code == 2
    assert (
        f"There is no investigation complete in namespace {world.operator.namespace}. The nearest: completed"
        in wrong.err
    )
    latest = await run.run("get", "@latest", "-o", "name")
    assert latest.out.startswith("alertinvestigation.tarsy.dev/")

    events = await run.run("events", "completed")
    assert "final_analysis" in events.out
    assert "\x1b" not in events.out
    lines = (await run.run("events", "completed", "-o", "jsonl")).out.splitlines()
    assert all(json.loads(line)["id"] for line in lines)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_end_decides_the_exit_code(world: World) -> None:
    run = world.run
    assert (await run.run("wait", "running", "--timeout", "0s")).code == 6
    await world.operator.apply(manifests.investigation("cancelled"))
    async with run.started("watch", "cancelled") as watching:
        assert watching.stdout
        await asyncio.wait_for(watching.stdout.readuntil(b"stage analysis Running"), 60)
        done = await run.run("cancel", "cancelled")
        assert (done.code, done.out) == (0, "alertinvestigation.tarsy.dev/cancelled cancelled\n"), done.err
        assert await asyncio.wait_for(watching.wait(), 60) == 3
    await world.operator.finished("cancelled")  # the API knows of an end before the object does
    again = await run.run("cancel", "cancelled")
    assert (again.code, again.err) == (1, "Error: cancelled has ended already: Cancelled.\n")
    for name, code in CODES.items():
        for command in ("wait", "watch"):
            ended = await run.run(command, name)
            assert ended.code == code, ended
    late = manifests.chain("Late", name="late", activeDeadlineSeconds=1)
    failing = manifests.stage("first", timeoutSeconds=1)
    partly = manifests.chain("Partly", name="partly", stages=[failing, manifests.stage("analysis")])
    await world.operator.apply(late, partly, manifests.investigation("late", alertType="Late"))
    assert (await run.run("wait", "late")).code == 4
    world.llm.script = lambda turn: model.Hang() if turn.key.stage == "first" else model.Answer(text="root cause")
    await world.operator.apply(manifests.investigation("partly", alertType="Partly"))
    ended = await run.run("wait", "partly")
    assert (ended.code, ended.err.startswith("CompletedWithErrors: ")) == (0, True), ended
    async with run.started("watch", "later", "-o", "jsonl") as watching:
        assert watching.stderr
        assert watching.stdout
        await asyncio.wait_for(watching.stderr.readuntil(b"Waiting for it."), 60)
        await world.operator.apply(manifests.investigation("later"))
        out, _ = await asyncio.wait_for(watching.communicate(), 60)
        assert watching.returncode == 0
        assert [json.loads(line)["status"] for line in out.splitlines()][-1] == "Completed"


@pytest.mark.slow
async def test_a_suspended_investigation_goes_on(world: World) -> None:
    run = world.run
    assert (await run.run("suspend", "running")).out == "alertinvestigation.tarsy.dev/running suspended\n"
    spec = "jsonpath={.spec.suspend}"
    assert (await run.run("get", "running", "-o", spec)).out == "true"
    assert (await run.run("unsuspend", "running")).code == 0
    assert (await run.run("get", "running", "-o", spec)).out == "false"


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_outages_and_strangers_have_their_exit_codes(world: World, unreachable: str, tmp_path: Path) -> None:
    run, away = world.run, world.run.other(TARSY_API="http://127.0.0.1:1")
    listed = await away.run("list")
    assert (listed.code, len(listed.out.splitlines())) == (0, 5), listed
    assert "Without the API, this is one page of the cluster's objects, by name: " in listed.err
    assert (await away.run("list", "--chain", "kubernetes")).code == 5
    got = await away.run("get", "completed")
    assert (got.code, "Phase:      Completed" in got.out) == (0, True), got
    assert (await away.run("events", "completed")).code == 5
    assert (await away.run("wait", "failed")).code == 1

    far = run.other(KUBECONFIG=unreachable)
    assert (await far.run("list", "-n", world.operator.namespace)).code == 0
    everywhere = await far.run("list", "-A")
    assert (everywhere.code, everywhere.out.split()[0]) == (0, "NAMESPACE"), everywhere
    assert (await far.run("get", "completed", "-n", world.operator.namespace)).code == 0
    assert (await far.run("cancel", "completed", "-n", world.operator.namespace)).code == 2
    both = away.other(KUBECONFIG=unreachable)
    for command in (
        ("list",),
        ("get", "completed"),
        ("wait", "completed"),
        ("watch", "completed"),
        ("cancel", "completed"),
    ):
        assert (await both.run(*command)).code == 5, command

    for command in (("list",), ("get", "completed"), ("cancel", "running"), ("watch", "running")):
        refused = await run.run(*command, "--as", "jane")
        assert refused.code == 7, refused
        assert 'User "jane" cannot' in refused.err
        assert 'resource "alertinvestigations"' in refused.err
    needs = await run.run("events", "completed", "--as", "jane", "--as-group", "system:masters")
    assert (needs.code, "--as" in needs.err) == (7, True)


@pytest.mark.slow
async def test_a_terminal_is_redrawn_and_ctrl_c_ends_the_looking_alone(world: World) -> None:
    async with world.run.terminal("watch", "running") as terminal:
        await terminal.until("\x1b[36mRunning\x1b[0m")
        await terminal.until("A\r\x1b[J")
        terminal.type("\x03")
        assert await terminal.ended() == 130, terminal.text
    plain = world.run.other(NO_COLOR="1")
    async with plain.terminal("get", "completed") as terminal:
        assert await terminal.ended() == 0
        assert "\x1b" not in terminal.text
        assert "root \\x1b[31mcause" in terminal.text
    dumb = world.run.other(TERM="dumb")
    async with dumb.terminal("watch", "completed") as terminal:
        assert await terminal.ended() == 0
        assert "\x1b" not in terminal.text
    assert (await world.run.run("get", "running", "-o", "jsonpath={.status.phase}")).out == "Running"
