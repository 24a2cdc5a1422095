"""One agent of one stage: fix what it runs with, or find it fixed, and let its loop run to the end."""

from __future__ import annotations

from tarsy.agent import loop, prompts
from tarsy.config import resolve
from tarsy.engine import handover
from tarsy.resources import chain
from tarsy.transcript import entries, ports


async def run(
    stage: chain.Stage,
    *,
    number: int,
    kit: ports.Kit,
    journal: ports.Journal,
) -> entries.ExecutionEnded:
    """Run, or go on with, execution `number` of `stage`.

    A resolve.UnresolvedError says that the stage names something that the platform lacks.
    """
    name = f"{stage.name}/{number}"
    if name not in journal.record.stages[stage.name].executions:
        await journal.commit(_start(name, stage, kit=kit, journal=journal))
    execution = journal.record.stages[stage.name].executions[name]
    if execution.ended:
        return execution.ended
    agent = execution.started.agent
    ended = await loop.Loop(
        execution=execution,
        model=kit.model(agent.provider),
        toolbox=kit.toolbox(agent.servers),
        journal=journal,
    ).run()
    await journal.commit(ended)
    return ended


def _start(name: str, stage: chain.Stage, *, kit: ports.Kit, journal: ports.Journal) -> entries.ExecutionStarted:
    subject = journal.record.subject
    agent = resolve.agent_for(kit.platform, chain_name=subject.chain_name, chain=subject.chain, stage=stage)
    toolbox = kit.toolbox(agent.servers)
    return entries.ExecutionStarted(
        stage=stage.name,
        execution=name,
        agent=agent,
        tools=tuple(toolbox.specs),
        messages=prompts.opening(
            subject=subject,
            stage=stage.name,
            agent=agent,
            earlier=handover.earlier_stages(journal.record),
            problems=toolbox.problems,
        ),
    )
