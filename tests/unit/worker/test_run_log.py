"""Lines that an investigation logs: each says to which stage and agent it belongs, whichever part logs it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from support import loglines
from tarsy.config.model import platforms
from tarsy.engine import investigation
from tarsy.resources import chains
from tarsy.transcript import memory, messages, ports, record

SDK = logging.getLogger("some.sdk")


class TalkativeModel(memory.ScriptedModel):
    """A model whose SDK logs, in a task of its own and a thread, while all agents of a stage are being answered."""

    def __init__(self, *, together: int) -> None:
        super().__init__()
        self._all_are_asked = asyncio.Barrier(together)

    async def ask(self, request: ports.Request, scope: ports.Scope) -> ports.Answer:
        if "You are KubernetesAgent-" in request.messages[0].text:
            await self._all_are_asked.wait()
        await asyncio.create_task(self._talk(scope))
        await asyncio.to_thread(SDK.warning, "thread", extra={"asked_by": scope.execution})
        return await super().ask(request, scope)

    async def _talk(self, scope: ports.Scope) -> None:
        SDK.warning("task", extra={"asked_by": scope.execution})


@pytest.fixture
def side_by_side(snapshot: record.Snapshot) -> record.Snapshot:
    stages = [
        {"name": name, "agent": "KubernetesAgent", "llmProvider": "first", "replicas": 2} for name in ("look", "judge")
    ]
    return replace(snapshot, chain=chains.Spec.model_validate({"alertTypes": ["A"], "stages": stages}))


async def test_log_lines_of_parallel_agents_name_their_agent(
    side_by_side: record.Snapshot, platform: platforms.Platform, log_lines: loglines.LogLines
) -> None:
    model = TalkativeModel(together=2)
    journal = memory.MemoryJournal(side_by_side)
    toolbox = memory.DictToolbox({})
    await investigation.run(
        runtime=ports.Runtime(platform=platform, model=lambda _: model, toolbox=lambda *_: toolbox), journal=journal
    )
    logging.getLogger("tarsy").info("behind it")
    *lines, last = log_lines()
    assert last.keys().isdisjoint({"stage", "execution", "agent"})
    talked = [line for line in lines if line["logger"] == SDK.name]
    assert len(talked) == 2 * (2 * 3 + 1), "of two agents and a synthesis of each stage, and of the summary"
    for line in talked:
        started = journal.record.executions[line["execution"]].started
        whose = (line["asked_by"], line.get("stage", ""), line["agent"])
        assert whose == (started.execution, started.stage, started.name)
    events = [
        (line["action"], line.get("stage"), line.get("agent"), line.get("outcome"))
        for line in lines
        if "action" in line
    ]
    for stage in ("look", "judge"):
        first, *between, end = [line for line in events if line[1] == stage]
        assert first == ("stage_started", stage, None, None)
        assert end == ("stage_ended", stage, None, "Completed")
        assert sorted(between, key=str) == [
            (action, stage, agent, outcome)
            for action, outcome in (("execution_ended", "Completed"), ("execution_started", None))
            for agent in ("KubernetesAgent-1", "KubernetesAgent-2", "SynthesisAgent")
        ]
        assert [line[2] for line in between[-2:]] == ["SynthesisAgent"] * 2, "it comes last"
    assert events[-2:] == [
        ("execution_started", None, "ExecutiveSummary", None),
        ("execution_ended", None, "ExecutiveSummary", "Completed"),
    ]


async def test_stage_continued_after_takeover_is_logged_as_continued(
    side_by_side: record.Snapshot, platform: platforms.Platform, log_lines: loglines.LogLines
) -> None:
    asked = asyncio.Event()

    class Silent(memory.ScriptedModel):
        async def ask(self, _request: ports.Request, _scope: ports.Scope) -> ports.Answer:
            asked.set()
            return await asyncio.Future()

    journal = memory.MemoryJournal(side_by_side)
    models: list[ports.Model] = [Silent()]
    runtime = ports.Runtime(platform=platform, model=lambda _: models[0], toolbox=lambda *_: memory.DictToolbox({}))
    running = asyncio.create_task(investigation.run(runtime=runtime, journal=journal))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    log_lines()
    models[0] = memory.ScriptedModel(messages.Message(role="assistant", text="It is out of memory."))
    await investigation.run(runtime=runtime, journal=journal.taken_over())
    first = log_lines()[0]
    assert (first["message"], first["action"], first["stage"]) == ("stage continues", "stage_started", "look")
