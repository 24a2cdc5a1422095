"""A question about an investigation that has ended: a later run, with one execution and no stages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tarsy.agent import prompts, result_tools
from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.engine import execution, handover, outcomes, runbook
from tarsy.transcript import entries, messages, ports

TASK = "Answer the question that stands between the last two markers."
"""The last sentence of the prompt."""


async def run(*, runtime: ports.Runtime, journal: ports.Journal, run: int) -> None:
    """Answer the question of a run from where its record stands, until the run ends or is suspended."""
    await execution.Execution(
        task=_task(journal, run),
        runtime=runtime,
        journal=journal,
        retries=execution.retry_budget(journal.record.runs[run], runtime=runtime),
        ends_with=functools.partial(outcomes.ends_with, journal.record),
    ).run()


def _task(journal: ports.Journal, run: int) -> execution.Task:
    snapshot = journal.record.snapshot
    starts = [agent.started for stage in journal.record.stages.values() for agent in stage.agents]
    tools = {tool.name for started in starts for tool in started.tools}

    def settings(platform_file: platforms.Platform) -> resolve.ResolvedAgent:
        answering = resolve.chat_for(
            platform_file, chain_name=snapshot.chain_name, chain=snapshot.chain, mcp=journal.record.mcp
        )
        agents = [started.agent for started in starts if started.agent]
        servers = dict.fromkeys(server for agent in agents for server in agent.servers)
        where = resolve.location(snapshot.chain_name, block="chat")
        resolve.check_servers(servers, platform_file, where=where)  # those of a file that may have changed since
        instructions = dict.fromkeys(text for agent in agents for text in agent.server_instructions)
        return replace(answering, servers=tuple(servers), server_instructions=tuple(instructions))

    def prompt(agent: resolve.ResolvedAgent, specs: Sequence[messages.ToolSpec]) -> Sequence[messages.Message]:
        runs = journal.record.runs
        earlier = [runs[number] for number in sorted(runs) if entries.INVESTIGATION < number < run]
        assignment = prompts.Assignment(
            snapshot=snapshot,
            runbook=runbook.text(journal.record),
            position=f"chain '{snapshot.chain_name}'",
            name=agent.name,
            findings=handover.investigation(
                runs[entries.INVESTIGATION],
                earlier,
                looks_into_results=any(result_tools.is_own(spec.name) for spec in specs),
            ),
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
