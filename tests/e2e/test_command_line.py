"""The commands against an operator: running, finished, failed, cancelled and deleted investigations."""

from __future__ import annotations

import asyncio
import json

import pytest
from support import manifests
from support.command_worlds import (
    World,
)
from tarsy_dev import model

CODES = {"completed": 0, "failed": 1, "cancelled": 3}


@pytest.mark.timeout(600)
async def test_the_end_decides_the_exit_code(ended_world: World) -> None:
    run = ended_world.run
    assert (await run.run("wait", "running", "--timeout", "0s")).code == 6
    await ended_world.operator.apply(manifests.investigation("cancelled"))
    async with run.started("watch", "cancelled") as watching:
        assert watching.stdout
        await asyncio.wait_for(watching.stdout.readuntil(b"stage analysis Running"), 60)
        done = await run.run("cancel", "cancelled")
        assert (done.code, done.out) == (0, "alertinvestigation.tarsy.dev/cancelled cancelled\n"), done.err
        assert await asyncio.wait_for(watching.wait(), 60) == 3
    await ended_world.operator.finished("cancelled")  # the API knows of an end before the object does
    again = await run.run("cancel", "cancelled")
    assert (again.code, again.err) == (1, "Error: cancelled has ended already: Cancelled.\n")
    for name, code in CODES.items():
        for command in ("wait", "watch"):
            ended = await run.run(command, name)
            assert ended.code == code, ended
    late = manifests.chain("Late", name="late", activeDeadlineSeconds=1)
    failing = manifests.stage("first", timeoutSeconds=1)
    partly = manifests.chain("Partly", name="partly", stages=[failing, manifests.stage("analysis")])
    await ended_world.operator.apply(late, partly, manifests.investigation("late", alertType="Late"))
    assert (await run.run("wait", "late")).code == 4
    ended_world.llm.script = lambda call: model.Hang() if call.key.stage == "first" else model.Answer(text="root cause")
    await ended_world.operator.apply(manifests.investigation("partly", alertType="Partly"))
    ended = await run.run("wait", "partly")
    assert (ended.code, ended.err.startswith("CompletedWithErrors: ")) == (0, True), ended
    async with run.started("watch", "later", "-o", "jsonl") as watching:
        assert watching.stderr
        assert watching.stdout
        await asyncio.wait_for(watching.stderr.readuntil(b"Waiting for it."), 60)
        await ended_world.operator.apply(manifests.investigation("later"))
        out, _ = await asyncio.wait_for(watching.communicate(), 60)
        assert watching.returncode == 0
        assert [json.loads(line)["status"] for line in out.splitlines()][-1] == "Completed"


async def test_a_suspended_investigation_goes_on(ended_world: World) -> None:
    run = ended_world.run
    assert (await run.run("suspend", "running")).out == "alertinvestigation.tarsy.dev/running suspended\n"
    spec = "jsonpath={.spec.suspend}"
    assert (await run.run("get", "running", "-o", spec)).out == "true"
    assert (await run.run("unsuspend", "running")).code == 0
    assert (await run.run("get", "running", "-o", spec)).out == "false"


async def test_a_terminal_is_redrawn_and_ctrl_c_ends_the_looking_alone(ended_world: World) -> None:
    async with ended_world.run.terminal("watch", "running") as terminal:
        await terminal.until("\x1b[36mRunning\x1b[0m")
        await terminal.until("A\r\x1b[J")
        terminal.type("\x03")
        assert await terminal.ended() == 130, terminal.text
    plain = ended_world.run.other(NO_COLOR="1")
    async with plain.terminal("get", "completed") as terminal:
        assert await terminal.ended() == 0
        assert "\x1b" not in terminal.text
        assert "root \\x1b[31mcause" in terminal.text
    dumb = ended_world.run.other(TERM="dumb")
    async with dumb.terminal("watch", "completed") as terminal:
        assert await terminal.ended() == 0
        assert "\x1b" not in terminal.text
    assert (await ended_world.run.run("get", "running", "-o", "jsonpath={.status.phase}")).out == "Running"
