"""One agent of one stage: fix what it runs with, or find it fixed, and let its loop run while there is time."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tarsy.agent import loop, prompts
from tarsy.config import resolve
from tarsy.engine import handover
from tarsy.resources import chain
from tarsy.transcript import entries, ports


async def run(
    stage: chain.Stage,
    *,
    number: int,
    runtime: ports.Runtime,
    journal: ports.Journal,
) -> entries.ExecutionEnded:
    """Run, or go on with, execution `number` of `stage`, as long as the stage's timeoutSeconds let it.

    A resolve.UnresolvedError says that the stage names something that the platform lacks.
    """
    name = f"{stage.name}/{number}"
    so_far = journal.record.stages[stage.name]
    if name not in so_far.executions:
        await journal.commit(_start(name, stage, runtime=runtime, journal=journal))
    execution = so_far.executions[name]
    if execution.ended:
        return execution.ended
    agent = execution.started.agent
    work = loop.Loop(
        execution=execution,
        model=runtime.model(agent.provider),
        toolbox=runtime.toolbox(agent.servers),
        journal=journal,
    )
    left = None if stage.timeout_seconds is None else stage.timeout_seconds - so_far.age()
    ended = await _run_within(work, seconds=left) or entries.ExecutionEnded(
        execution=name, outcome="TimedOut", text=f"Stage {stage.name} timed out after {stage.timeout_seconds} s"
    )
    await journal.commit(ended)
    return ended


async def _run_within(work: loop.Loop, *, seconds: float | None) -> entries.ExecutionEnded | None:
    """Let the loop run for so long, and return how it ended; None where it has not.

    A commit that the end of the time cut off is brought to its own end, and counts: an analysis in it is one. A
    cancellation from outside is never taken for the end of the time, even where both come at once.
    """
    if seconds is not None and seconds <= 0:  # a takeover after its time: not even a first call may be sent
        return work.ended()
    try:
        async with asyncio.timeout(seconds) as clock:
            return await work.run()
    except TimeoutError:
        if not clock.expired():
            raise
    await work.journal.settle()
    return work.ended()


def _start(
    name: str, stage: chain.Stage, *, runtime: ports.Runtime, journal: ports.Journal
) -> entries.ExecutionStarted:
    subject = journal.record.subject
    resolved = resolve.agent_for(runtime.platform, chain_name=subject.chain_name, chain=subject.chain, stage=stage)
    toolbox = runtime.toolbox(resolved.servers)
    agent = replace(resolved, problems=tuple(toolbox.problems))
    return entries.ExecutionStarted(
        stage=stage.name,
        execution=name,
        agent=agent,
        tools=tuple(spec for spec in toolbox.specs if stage.tools is None or stage.tools.admits(spec.name)),
        messages=prompts.opening(
            subject=subject,
            stage=stage.name,
            agent=agent,
            earlier=handover.earlier_stages(journal.record),
        ),
    )
