"""One execution: resolve its settings, tools and prompt, or read them from its start in the log, and run its loop."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeAlias

from tarsy.agent import excerpting, loop, result_tools, spending, strategies, summaries
from tarsy.config import resolve
from tarsy.config.model import budgets, context_windows, platforms, tool_filters
from tarsy.telemetry import logs
from tarsy.transcript import entries, messages, ports, record

log = logging.getLogger(__name__)

Opening: TypeAlias = Callable[[], Sequence[entries.Entry]]
"""Returns the entries to commit before an execution's start, such as the start of its stage."""


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
    """The purpose of an execution: its identity, and how its settings and its prompt are made."""

    kind: entries.ExecutionKind
    run: int = entries.INVESTIGATION
    stage: str = ""
    """"" if it belongs to no stage."""
    index: int = 0
    """The ordinal among its siblings, from 0."""
    name: str
    """The name among its siblings."""
    settings: Callable[[platforms.Platform], resolve.ResolvedAgent]
    """Returns its settings by a platform file; raises UnresolvedError if a name is missing there."""
    prompt: Callable[[resolve.ResolvedAgent, Sequence[messages.ToolSpec]], Sequence[messages.Message]]
    """Returns the first messages of its conversation."""
    admits: ports.ToolPredicate = lambda _: True
    """Whether it gets a tool that its settings admit."""


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
        """The id, the same in all processes."""
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
        """Run the execution from where its log stands, until it ends or the run is suspended.

        `pause_time` is entered while it waits for a slot of its provider. `started_with` is the runtime of its start,
        if another execution has committed that.
        """
        if self.journal.suspended() or (self.so_far and self.so_far.ended):
            return
        with logs.fields(execution=self.id, agent=self.task.name):
            log.info("agent %s", "continues" if self.so_far else "started", extra={"action": "execution_started"})
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
                away = entries.ServersAway(execution=self.id, servers=tuple(toolbox.away))
                started = self._started(agent, toolbox)
                await self.journal.commit(*self.opening(), started, *([away] if away.servers else []))
            assert self.so_far  # noqa: S101 - the commit above
            await loop.Loop(
                execution=self.so_far,
                model=runtime.model,
                toolbox=toolbox,
                journal=self.journal,
                ends_with=self.ends_with,
                context_tokens=functools.partial(context_windows.request_tokens, runtime.platform),
                pause_time=pause_time,
                may_retry=self.retries.take,
                charges=functools.partial(_charges, runtime.platform, self.journal.record.snapshot),
                open_stream=self._open_stream,
                result_limit=functools.partial(context_windows.result_characters, runtime.platform),
                excerpt_limit=functools.partial(excerpting.limit, runtime.platform),
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
        later_tools: Sequence[messages.ToolSpec] = (),
        prompt: Sequence[messages.Message] = (),
    ) -> entries.ExecutionStarted:
        """Return its start with settings, tools and prompt, without known secrets; without an agent it can only end.

        It gets `later_tools` once it has a result to look into.
        """
        return entries.ExecutionStarted(
            run=self.task.run,
            stage=self.task.stage,
            execution=self.id,
            kind=self.task.kind,
            index=self.task.index,
            name=self.task.name,
            agent=agent and self._without_secrets(agent),
            tools=tuple(tools),
            result_tools=tuple(later_tools),
            messages=tuple(replace(message, text=self.runtime.secrets.mask(message.text)) for message in prompt),
        )

    def _started(self, resolved: resolve.ResolvedAgent, toolbox: ports.Toolbox) -> entries.ExecutionStarted:
        agent = replace(resolved, problems=(*toolbox.problems, *self._unmatched(resolved, toolbox)))
        offered = toolbox.specs if strategies.STRATEGIES[agent.strategy].tools else ()
        tools = [spec for spec in offered if self._admits(agent, spec.name)]
        own = result_tools.specs(agent) if strategies.STRATEGIES[agent.strategy].tools else ()
        if self._follows_calls and agent.servers:
            tools += own
            own = ()
        if tools:
            agent = agent.beside_tools()
        return self.start(
            agent=agent,
            tools=tools,
            later_tools=own if tools else (),
            prompt=self.task.prompt(agent, tools),
        )

    @property
    def _follows_calls(self) -> bool:
        """Whether an earlier stage or run has called tools, so that there are results to look into from the start."""
        return any(
            isinstance(message, messages.Message) and message.role == "tool"
            for execution in self.journal.record.executions.values()
            if (execution.started.run, execution.started.stage) != (self.task.run, self.task.stage)
            and execution.started.kind != "recheck"  # no agent made its calls
            for message in execution.log
        )

    def _admits(self, agent: resolve.ResolvedAgent, tool: str) -> bool:
        """Return whether it gets a tool: after its start, exactly the tools of its start."""
        if self.so_far:
            return tool in {spec.name for spec in self.so_far.started.tools}
        return agent.admits(tool) and self.task.admits(tool)

    def _unmatched(self, agent: resolve.ResolvedAgent, toolbox: ports.Toolbox) -> Iterator[str]:
        """Yield a sentence for each tool that the alert selects and the servers do not have."""
        names = [spec.name for spec in toolbox.specs]
        for server, pattern in tool_filters.unmatched(self.journal.record.mcp, agent.servers, names):
            yield f"MCP server '{server}' has no tool for this agent that mcp.servers calls {self._stored(pattern)}"

    def _without_secrets(self, agent: resolve.ResolvedAgent) -> resolve.ResolvedAgent:
        """Return the settings without known secrets."""
        return replace(
            agent,
            custom_instructions=self._stored(agent.custom_instructions),
            server_instructions=tuple((name, self._stored(text)) for name, text in agent.server_instructions),
        )

    def _stored(self, text: str) -> str:
        """Return a handwritten text without known secrets, as it is stored and sent."""
        return messages.storable(self.runtime.secrets.mask(text))

    async def fail(self, error: str, *, outcome: entries.Outcome = "Failed") -> None:
        """End the execution early, started or not; its siblings continue."""
        ends, after = self.ends(error, outcome=outcome)
        await self.journal.commit(*self.opening(), *ends, *self.ends_with(after))

    def ends(self, error: str, *, outcome: entries.Outcome) -> tuple[Sequence[entries.Entry], record.Execution]:
        """Return the entries of its end with this outcome, after its start if it has none, and its state after them."""
        ended = entries.ExecutionEnded(execution=self.id, outcome=outcome, error=error)
        if self.so_far:
            return (ended,), replace(self.so_far, ended=ended)
        started = self.start(agent=None)
        return (started, ended), record.Execution(started=started, ended=ended)


def _charges(
    platform_file: platforms.Platform,
    snapshot: record.Snapshot,
    provider: str,
    request: ports.Request,
    concludes: bool,  # noqa: FBT001 - the loop's signature
) -> Sequence[budgets.Charge]:
    return spending.charges(platform_file, snapshot, provider, request, concludes=concludes)
