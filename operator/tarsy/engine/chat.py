"""One question about an investigation that has ended: a run of its own, with one execution of no stage."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tarsy.agent import prompts
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import execution, handover, outcomes, runbook
from tarsy.transcript import entries, messages, ports

TASK = "Answer the question that stands between the last two markers."
"""The last word of a question's prompt."""


async def run(*, runtime: ports.Runtime, journal: ports.Journal, run: int) -> None:
    """Run, or go on with, the question of that run until it has ended, or is to stand still."""
    await execution.Execution(
        task=_task(journal, run),
        runtime=runtime,
        journal=journal,
        retries=execution.retry_budget(journal.record.runs[run], runtime=runtime),
        ends_with=functools.partial(outcomes.ends_with, journal.record),
    ).run()


def _task(journal: ports.Journal, run: int) -> execution.Task:
    snapshot = journal.record.snapshot
    executions = [finished for stage in journal.record.stages.values() for finished in stage.agents]
    tools = {tool.name for finished in executions for tool in finished.started.tools}

    def settings(platform_file: platforms.Platform) -> resolve.ResolvedAgent:
        agent = resolve.chat_for(
            platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain, mcp=journal.record.mcp
        )
        of_stages = [finished.started.agent for finished in executions if finished.started.agent]
        return replace(
            agent,
            servers=tuple(dict.fromkeys(server for finished in of_stages for server in finished.servers)),
            server_instructions=tuple(
                dict.fromkeys(instructions for finished in of_stages for instructions in finished.server_instructions)
            ),
        )

    def prompt(agent: resolve.ResolvedAgent, specs: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
        runs = journal.record.runs
        earlier = [runs[number] for number in sorted(runs) if entries.INVESTIGATION < number < run]
        assignment = prompts.Assignment(
            snapshot=snapshot,
            runbook=runbook.text(journal.record),
            position=f"chain '{snapshot.chain_name}'",
            name=agent.name,
            findings=handover.investigation(runs[entries.INVESTIGATION], earlier),
            question=runs[run].question,
            task=TASK,
            now=datetime.now(UTC),
        )
        return prompts.agent_prompt(assignment, agent=agent, tools=specs, extra="chat")

    chat = snapshot.chain.chat
    return execution.Task(
        kind="chat",
        run=run,
        name=(chat and chat.agent) or resolve.CHAT_AGENT,
        settings=settings,
        prompt=prompt,
        admits=tools.__contains__,
    )
