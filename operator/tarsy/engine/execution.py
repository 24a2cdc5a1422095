"""One agent of one stage: fix what it runs with, or find it fixed, and let its loop run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tarsy.agent import loop, prompts
from tarsy.config import resolve
from tarsy.engine import handover, timer
from tarsy.resources import chain
from tarsy.telemetry import logs
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)

Opening: TypeAlias = Callable[[], Sequence[entries.Entry]]
"""What has to begin before an execution can, and has not yet."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One of the executions of a stage, as this process runs it."""

    stage: chain.Stage
    index: int
    """Its place in the stage."""
    runtime: ports.Runtime
    journal: ports.Journal
    opening: Opening
    following: loop.Following

    @property
    def id(self) -> str:
        """Its id, the same whichever process runs it."""
        return record.execution_id(
            self.journal.record.snapshot.id,
            run=entries.INVESTIGATION,
            stage=self.stage.name,
            kind="agent",
            index=self.index,
        )

    @property
    def so_far(self) -> record.Execution | None:
        """What the record holds of it; None before it has begun."""
        return self.journal.record.executions.get(self.id)

    async def run(self, time: timer.Timer) -> None:
        """Run it, or go on with it, until it has ended or the run is to stand still.

        Its `time` stands still while it waits for a slot of its provider.
        """
        if self.journal.suspended() or (self.so_far and self.so_far.ended):
            return
        with logs.fields(execution=self.id, agent=self.stage.shown_names[self.index]):
            log.info("agent %s", "goes on" if self.so_far else "started", extra={"action": "execution_started"})
            await self._run(time)
            if self.so_far and (ended := self.so_far.ended):
                told = {"action": "execution_ended", "outcome": ended.outcome}
                log.info("agent ended: %s", ended.outcome, extra=told)

    async def _run(self, time: timer.Timer) -> None:
        try:
            agent = self._agent()
        except resolve.UnresolvedError as error:
            await self._fail(str(error))
            return
        async with self.runtime.toolbox(agent.servers) as toolbox:
            if self.so_far is None:
                await self.journal.commit(*self.opening(), self._started(agent, toolbox))
            assert self.so_far  # noqa: S101 - the line above
            await loop.Loop(
                execution=self.so_far,
                model=self.runtime.model(agent.provider),
                toolbox=toolbox,
                journal=self.journal,
                following=self.following,
                waiting=time.stopped,
            ).run()

    def start(
        self,
        *,
        agent: resolve.ResolvedAgent | None,
        tools: Sequence[messages.ToolSpec] = (),
        prompt: Sequence[messages.Message] = (),
    ) -> entries.ExecutionStarted:
        """Its start, with all that it runs with; without an agent it can only end."""
        return entries.ExecutionStarted(
            stage=self.stage.name,
            execution=self.id,
            index=self.index,
            name=self.stage.shown_names[self.index],
            agent=agent,
            tools=tuple(tools),
            messages=tuple(prompt),
        )

    def _agent(self) -> resolve.ResolvedAgent:
        """What it runs with: as it was fixed, or as it resolves now."""
        if self.so_far and self.so_far.started.agent:
            return self.so_far.started.agent
        snapshot = self.journal.record.snapshot
        return resolve.agent_for(
            self.runtime.platform,
            chain_name=snapshot.chain_name,
            chain=snapshot.chain,
            stage=self.stage,
            member=self.stage.members[self.index],
        )

    def _started(self, resolved: resolve.ResolvedAgent, toolbox: ports.Toolbox) -> entries.ExecutionStarted:
        agent = replace(
            resolved,
            custom_instructions=messages.storable(resolved.custom_instructions),
            server_instructions=tuple((name, messages.storable(text)) for name, text in resolved.server_instructions),
            problems=tuple(toolbox.problems),
        )
        return self.start(
            agent=agent,
            tools=[spec for spec in toolbox.specs if self.stage.admits(self.index, spec.name)],
            prompt=prompts.prompt_messages(
                snapshot=self.journal.record.snapshot,
                stage=self.stage.name,
                name=self.stage.shown_names[self.index],
                agent=agent,
                earlier=handover.earlier_stages(self.journal.record.runs[entries.INVESTIGATION]),
            ),
        )

    async def _fail(self, error: str) -> None:
        """End it before it could begin; its siblings go on."""
        started = self.start(agent=None)
        ended = entries.ExecutionEnded(execution=self.id, outcome="Failed", error=error)
        after = record.Execution(started=started, ended=ended)
        await self.journal.commit(*self.opening(), started, ended, *self.following(after))
