"""Platform changes during work: an execution keeps what it began with, and a version without executions is let go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tarsy import slots
from tarsy.config.model import platforms
from tarsy.engine import investigation
from tarsy.process.runtime import versions
from tarsy.resources import chains
from tarsy.transcript import memory, messages, ports, record

LOOKS = messages.Message(
    role="assistant", text="I look.", calls=(messages.ToolCall(id="", name="k8s.get", arguments="{}"),)
)
FOUND = messages.Message(role="assistant", text="It is out of memory.")


class Model(memory.ScriptedModel):
    """Does something with each request before it answers."""

    def __init__(self, *script: messages.Message, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(*script)
        self.then = then

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        answer = await super().ask(request, scope)
        self.then()
        return answer


class Ends:
    """Makes clients, and remembers which were closed."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def __call__(self, name: str) -> Closing:
        return Closing(name, self.of)


@dataclass
class Closing:
    """A client that says when it is closed."""

    name: str
    closed: list[str]

    async def close(self) -> None:
        self.closed.append(self.name)


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def snapshot(snapshot: record.Snapshot) -> record.Snapshot:
    """Two stages, and a summary."""
    stages: list[dict[str, Any]] = [{"name": name, "agent": "KubernetesAgent"} for name in ("collect", "analysis")]
    return replace(snapshot, chain=chains.Spec.model_validate({"alertTypes": ["A"], "stages": stages}))


def saying(platform: platforms.Platform, instructions: str) -> platforms.Platform:
    agent = platform.agents["KubernetesAgent"].model_copy(update={"custom_instructions": instructions})
    return platform.model_copy(update={"agents": {**platform.agents, "KubernetesAgent": agent}})


async def drained(platform_versions: versions.Versions) -> None:
    """Let the versions go that no execution has."""
    running = asyncio.create_task(platform_versions.run())
    for _ in range(10):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_running_agent_keeps_old_platform_file_and_next_agent_gets_the_new_file(
    runtime: ports.Runtime, journal: memory.MemoryJournal, ends: Ends
) -> None:
    old, new = Model(LOOKS, FOUND), Model(FOUND)
    boxes = {name: memory.DictToolbox({"k8s.get": name}) for name in ("old", "new")}
    first = replace(runtime, model=lambda _: old, toolbox=lambda *_: boxes["old"])
    platform_versions = versions.Versions(first, [ends("first")])
    second = replace(
        runtime,
        model=lambda _: new,
        toolbox=lambda *_: boxes["new"],
        platform=saying(runtime.platform, "Say it in verse."),
    )
    exchanged = iter([lambda: platform_versions.exchange(platform_versions.prepared([ends("second")]), second)])
    old.then = lambda: next(exchanged, lambda: None)()

    await investigation.run(runtime=replace(first, newest=platform_versions.held), journal=journal)

    assert (len(old.requests), len(new.requests)) == (2, 3), (
        "a stage whose agent is told to look first, and the summary"
    )
    executions = [execution.started.agent for stage in journal.record.stages.values() for execution in stage.agents]
    assert [agent and agent.custom_instructions for agent in executions] == ["Be brief.", "Say it in verse."]
    (result,) = (message for message in old.requests[1].messages if message.role == "tool")
    assert "old" in result.text
    await drained(platform_versions)
    assert ends.of == ["first"]


async def test_version_of_many_files_ago_is_let_go_with_its_execution_and_all_others_at_once(
    runtime: ports.Runtime, ends: Ends
) -> None:
    platform_versions = versions.Versions(runtime, [ends("0")])
    with platform_versions.held() as held_runtime:
        for number in range(1, 51):
            platform_versions.exchange(platform_versions.prepared([ends(str(number))]), replace(runtime))
            with platform_versions.held():
                pass
        await drained(platform_versions)
        assert held_runtime is runtime
        assert ends.of == [str(number) for number in range(1, 50)]
    await drained(platform_versions)
    assert ends.of[-1] == "0"
    await platform_versions.close()
    assert ends.of[-1] == "50"
    assert sorted(ends.of) == sorted(map(str, range(51))), "each once"


async def test_client_is_closed_once_and_not_before_the_last_version_that_has_it(
    runtime: ports.Runtime, ends: Ends
) -> None:
    shared, first, last = ends("shared"), ends("first"), ends("last")
    platform_versions = versions.Versions(runtime, [shared, first])
    with platform_versions.held():
        platform_versions.exchange(platform_versions.prepared([shared]), replace(runtime))
        prepared = platform_versions.prepared([shared, last])
        await drained(platform_versions)
        assert ends.of == []
    await drained(platform_versions)
    assert ends.of == ["first"]
    platform_versions.release(prepared)
    await drained(platform_versions)
    assert ends.of == ["first", "last"]
    await platform_versions.close()
    assert ends.of == ["first", "last", "shared"]


async def test_lowered_slot_limit_holds_once_enough_slots_are_released() -> None:
    some = slots.Slots(3)
    for _ in range(3):
        await some.acquire()
    some.set_limit(1)
    waiting = [asyncio.create_task(some.acquire()) for _ in range(2)]
    for _ in range(2):
        some.release()
        await asyncio.sleep(0)
        assert not any(waiter.done() for waiter in waiting)
    some.release()
    await asyncio.sleep(0)
    assert [waiter.done() for waiter in waiting] == [True, False], "whoever came first, and no other"
    some.set_limit(2)
    await asyncio.sleep(0)
    assert waiting[1].done()
