"""One execution: fix what it runs with, or find it fixed, and let its loop run."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

from tarsy.agent import loop, strategies, summaries
from tarsy.config import resolve
from tarsy.config.model import context_windows, platforms, tool_filters
from tarsy.masking import known_secrets
from tarsy.telemetry import logs
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)

Opening: TypeAlias = Callable[[], Sequence[entries.Entry]]
"""Return the entries that must open an execution and are not in the log yet, such as the start of its stage."""


@dataclass(kw_only=True)
class RetryBudget:
    """The number of model requests that a run may still repeat: one count for all its executions, across takeovers."""

    left: int

    def take(self) -> bool:
        """Count one more repeated request, unless none is left."""
        if self.left <= 0:
            return False
        self.left -= 1
        return True


def retry_budget(run: record.Run, *, runtime: ports.Runtime) -> RetryBudget:
    """Return the budget of a run, less the repeats in its record."""
    with runtime.in_force() as now:
        return RetryBudget(left=now.platform.limits.retries - run.retries)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The purpose of an execution."""

    kind: entries.ExecutionKind
    run: int = entries.INVESTIGATION
    stage: str = ""
    """"" where it is of no stage."""
    index: int = 0
    """Its place among its siblings."""
    name: str
    """Its name among its siblings."""
    settings: Callable[[platforms.Platform], resolve.ResolvedAgent]
    """Return its settings by a platform file; raises UnresolvedError with the missing name."""
    prompt: Callable[[resolve.ResolvedAgent, Sequence[messages.ToolSpec]], Sequence[messages.Message]]
    """Return the first messages of its conversation."""
    admits: ports.ToolPredicate = lambda _: True
    """Whether it gets the tool of this name, of those that its settings leave it."""


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One execution, as this process runs it."""

    task: Task
    runtime: ports.Runtime
    journal: ports.Journal
    retries: RetryBudget
    opening: Opening = tuple
    ends_with: loop.EndsWith

    @property
    def id(self) -> str:
        """Its id, the same whichever process runs it."""
        task = self.task
        return record.execution_id(
            self.journal.record.snapshot.id, run=task.run, stage=task.stage, kind=task.kind, index=task.index
        )

    @property
    def so_far(self) -> record.Execution | None:
        """The execution in the record; None before it has started."""
        return self.journal.record.executions.get(self.id)

    async def run(
        self,
        pause_time: Callable[[], AbstractContextManager[object]] = nullcontext,
        *,
        started_with: ports.Runtime | None = None,
    ) -> None:
        """Run it, or go on with it, until it has ended or the run is to stand still.

        `pause_time` is entered while it waits for a slot of its provider. `started_with` is the runtime of its start,
        if another execution has committed that.
        """
        if self.journal.suspended() or (self.so_far and self.so_far.ended):
            return
        with logs.fields(execution=self.id, agent=self.task.name):
            log.info("agent %s", "goes on" if self.so_far else "started", extra={"action": "execution_started"})
            with nullcontext(started_with) if started_with else self.runtime.in_force() as runtime:
                await self._run(runtime, pause_time)
            if self.so_far and (ended := self.so_far.ended):
                log_fields = {"action": "execution_ended", "outcome": ended.outcome}
                why = f": {ended.error}" if ended.error else ""
                log.log(
                    logging.WARNING if why else logging.INFO, "agent ended: %s%s", ended.outcome, why, extra=log_fields
                )

    async def _run(self, runtime: ports.Runtime, pause_time: Callable[[], AbstractContextManager[object]]) -> None:
        fixed = self.so_far.started.agent if self.so_far else None
        try:
            agent = fixed or self._settings(runtime)
        except resolve.UnresolvedError as error:
            await self.fail(str(error))
            return
        async with runtime.toolbox(agent.servers, functools.partial(self._admits, agent)) as toolbox:
            if self.so_far is None:
                await self.journal.commit(*self.opening(), self._started(agent, toolbox), *self._away(toolbox))
            assert self.so_far  # noqa: S101 - the line above
            await loop.Loop(
                execution=self.so_far,
                model=runtime.model,
                toolbox=toolbox,
                journal=self.journal,
                ends_with=self.ends_with,
                context_tokens=functools.partial(_context_tokens, runtime.platform),
                pause_time=pause_time,
                may_retry=self.retries.take,
                open_stream=self._open_stream,
                result_limit=functools.partial(context_windows.of_result, runtime.platform),
                summary_due=functools.partial(summaries.due, runtime.platform),
            ).run()

    def _open_stream(self, number: int, result: str = "") -> AbstractContextManager[ports.Stream]:
        agent = self.so_far.started.agent if self.so_far else None
        return self.runtime.open_stream(
            ports.StreamedCall(
                investigation=self.journal.record.snapshot.id,
                run=self.task.run,
                stage=self.task.stage,
                execution=self.id,
                number=number,
                result=result,
                kind=self.task.kind,
                strategy=agent.strategy if agent else "",
            )
        )

    def _settings(self, runtime: ports.Runtime) -> resolve.ResolvedAgent:
        """Return its settings, without tools if its strategy uses none, and without fallbacks that cannot be used."""
        agent = self.task.settings(runtime.platform)
        usable = tuple(fallback for fallback in agent.fallbacks if runtime.is_usable(fallback.provider))
        agent = replace(agent, fallbacks=usable, budget=resolve.budget(runtime.platform))
        if strategies.STRATEGIES[agent.strategy].tools:
            return agent
        return agent.without_tools()

    def start(
        self,
        *,
        agent: resolve.ResolvedAgent | None,
        tools: Sequence[messages.ToolSpec] = (),
        prompt: Sequence[messages.Message] = (),
    ) -> entries.ExecutionStarted:
        """Its start, with all that it runs with; without an agent it can only end."""
        return entries.ExecutionStarted(
            run=self.task.run,
            stage=self.task.stage,
            execution=self.id,
            kind=self.task.kind,
            index=self.task.index,
            name=self.task.name,
            agent=agent and _without_secrets(agent),
            tools=tuple(tools),
            messages=tuple(replace(message, text=known_secrets.KNOWN.text(message.text)) for message in prompt),
        )

    def _started(self, resolved: resolve.ResolvedAgent, toolbox: ports.Toolbox) -> entries.ExecutionStarted:
        agent = replace(resolved, problems=(*toolbox.problems, *self._unmatched(resolved, toolbox)))
        offered = toolbox.specs if strategies.STRATEGIES[agent.strategy].tools else ()
        tools = [spec for spec in offered if self._admits(agent, spec.name)]
        if tools:
            agent = agent.beside_tools()
        return self.start(agent=agent, tools=tools, prompt=self.task.prompt(agent, tools))

    def _away(self, toolbox: ports.Toolbox) -> Sequence[entries.ServersAway]:
        """The entry of the servers that cannot be reached when it begins; none if all can."""
        return [entries.ServersAway(execution=self.id, servers=tuple(toolbox.away))] if toolbox.away else []

    def _admits(self, agent: resolve.ResolvedAgent, tool: str) -> bool:
        """Whether it gets the tool of this name: once it has begun, those that it began with, and never another."""
        if self.so_far:
            return tool in {spec.name for spec in self.so_far.started.tools}
        return agent.admits(tool) and self.task.admits(tool)

    def _unmatched(self, agent: resolve.ResolvedAgent, toolbox: ports.Toolbox) -> Iterator[str]:
        """Yield a sentence for each tool that the alert selects and its servers do not have."""
        names = [spec.name for spec in toolbox.specs]
        for server, pattern in tool_filters.unmatched(self.journal.record.mcp, agent.servers, names):
            yield f"MCP server '{server}' has no tool for this agent that mcp.servers calls {_stored(pattern)}"

    async def fail(self, error: str, *, outcome: entries.Outcome = "Failed") -> None:
        """End it, before it could begin or where it stands; its siblings go on."""
        ends, after = self.ends(error, outcome=outcome)
        await self.journal.commit(*self.opening(), *ends, *self.ends_with(after))

    def ends(self, error: str, *, outcome: entries.Outcome) -> tuple[Sequence[entries.Entry], record.Execution]:
        """Return the entries that end it with this outcome, and its state after them."""
        ended = entries.ExecutionEnded(execution=self.id, outcome=outcome, error=error)
        if self.so_far:
            return (ended,), replace(self.so_far, ended=ended)
        started = self.start(agent=None)
        return (started, ended), record.Execution(started=started, ended=ended)


def _context_tokens(platform_file: platforms.Platform, provider: str) -> int | None:
    settings = platform_file.llm_providers.get(provider)  # the file may have lost it since
    return context_windows.context_tokens(settings) if settings else None


def _without_secrets(agent: resolve.ResolvedAgent) -> resolve.ResolvedAgent:
    """The settings as they are kept."""
    return replace(
        agent,
        custom_instructions=_stored(agent.custom_instructions),
        server_instructions=tuple((name, _stored(text)) for name, text in agent.server_instructions),
    )


def _stored(text: str) -> str:
    """Return text that people wrote as it is stored and sent: without the known secrets."""
    return messages.storable(known_secrets.KNOWN.text(text))
