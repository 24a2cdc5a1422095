"""All runs of an evaluation: planned, run side by side, and continued after an end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarsy.evaluation import embedded_postgres, judgements, judges, results, scenarios, stands, subjects
from tarsy.resources import chains, files
from tarsy.store.base import scratch_databases
from tarsy.transcript import ports

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The runs to make."""

    scenarios: Sequence[scenarios.Scenario]
    chain: chains.AgentChain
    providers: Sequence[str | None]
    """None is the chain as it is."""
    repeats: int
    jobs: int
    """The number of investigations at once, and of open stands."""
    output: Path
    written: Mapping[str, Any] | None
    """The content of the user's platform file."""
    mcp_command: str | None
    database_url: str | None
    """A Postgres server; None for an embedded one."""
    unusable: Mapping[str, str]
    """The providers that workers cannot use, with reasons."""
    max_tokens: int | None = None
    """The tokens of all results of `output` after which no further run begins; None for no limit."""
    max_cost: float | None = None
    """The same for their cost, by the prices of the platform file."""
    judge: judges.Judge | None = None
    """Gives a second opinion on each analysis."""


class _Runs:
    """The state of an evaluation."""

    def __init__(
        self,
        plan: Plan,
        earlier: Sequence[results.Result],
        progress: Progress,
        template: scratch_databases.Template,
    ) -> None:
        self._plan, self._progress, self._template = plan, progress, template
        self._slots, self._stands = asyncio.Semaphore(plan.jobs), asyncio.Semaphore(plan.jobs)
        self.done = {result.key for result in earlier}
        self._spent = results.spent(earlier)
        self.failures: list[str] = []
        self.left_out = self.unjudged = 0
        self._total = len(plan.scenarios) * len(plan.providers) * plan.repeats

    async def scenario(self, scenario: scenarios.Scenario) -> None:
        """Make all runs of a scenario that are not done."""
        due = [
            (provider, repeat)
            for repeat in range(1, self._plan.repeats + 1)
            for provider in self._plan.providers
            if (scenario.name, provider or "", repeat) not in self.done
        ]
        if not due:
            return
        async with self._stands:
            if self._is_spent():
                self.left_out += len(due)
                return
            async with (
                stands.opened(
                    scenario,
                    written=self._plan.written,
                    mcp_command=self._plan.mcp_command,
                    unusable=self._plan.unusable,
                    template=self._template,
                ) as stand,
                asyncio.TaskGroup() as group,
            ):
                for provider, repeat in due:
                    group.create_task(self._run(stand, provider, repeat))

    async def _run(self, stand: stands.Stand, provider: str | None, repeat: int) -> None:
        name = results.title((stand.scenario.name, provider or "", repeat))
        async with self._slots:
            if self._is_spent():
                self.left_out += 1
                return
            chain = subjects.with_provider(self._plan.chain, provider)
            try:
                ended = await stand.investigate(chain)
            except stands.StandError as error:
                self.failures.append(f"{name}: {error}")
                self._progress(f"{name}: {error}")
                return
            subject = judgements.Subject(
                scenario=stand.scenario,
                world=stand.world,
                chain=self._plan.chain,
                provider=provider or "",
                repeat=repeat,
            )
            result = await asyncio.to_thread(judgements.judge, subject, ended)
            await asyncio.to_thread(results.write, self._plan.output, result, ended.transcript)
        self.done.add(result.key)
        self._spent += result
        seen = sum(each.seen for each in result.evidence)
        numbers = f"{result.tool_calls} tool calls, {result.total_tokens} tokens, {result.seconds:.0f} s"
        self._progress(
            f"[{len(self.done)}/{self._total}] {name}: {result.state}, {seen} of {len(result.evidence)} pieces of "
            f"evidence seen, {numbers}"
        )

    def _is_spent(self) -> bool:
        limits = ((self._spent.tokens, self._plan.max_tokens), (self._spent.cost, self._plan.max_cost))
        return any(limit is not None and value >= limit for value, limit in limits)

    async def judge_all(self, judge: judges.Judge) -> None:
        """Ask the judge about each analysis of the plan's scenarios on which it has no opinion yet."""
        scenarios = {scenario.name: scenario for scenario in self._plan.scenarios}

        async def opine(result: results.Result) -> None:
            async with self._slots:
                if self._is_spent():
                    self.unjudged += 1
                    return
                try:
                    judged = await judges.judged(judge, result, scenarios[result.scenario])
                except ports.ModelError as error:
                    self.failures.append(f"{results.title(result.key)}: the judge {judge.provider} failed: {error}")
                    self._progress(self.failures[-1])
                    return
            self._spent += judged.model_copy(update={"total_tokens": 0, "cost": None})
            await asyncio.to_thread(results.rewrite, self._plan.output, judged)

        async with asyncio.TaskGroup() as group:
            for result in results.read(self._plan.output) if self.done else ():
                is_new = result.opinion is None or result.opinion.provider != judge.provider
                if result.analysis and result.scenario in scenarios and is_new:
                    group.create_task(opine(result))


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of an evaluation."""

    failures: Sequence[str]
    """Runs that no worker could make, and why."""
    left_out: int
    """Runs that did not begin because the budget was spent."""
    unjudged: int
    """Analyses on which the judge was not asked because the budget was spent."""


async def run(plan: Plan, *, progress: Progress) -> Finished:
    """Make all runs of the plan whose results are not in its output yet; `progress` gets a line for each.

    Raises files.FileError if results of other scenarios or another chain are there under the same names.
    """
    earlier = results.read(plan.output) if any(plan.output.glob("*/*.json")) else []
    digests = {scenario.name: scenario.digest for scenario in plan.scenarios}
    chain = plan.chain.digest()
    if other := [
        result
        for result in earlier
        if result.scenario_digest != digests.get(result.scenario, result.scenario_digest)
        or result.chain_digest != chain
    ]:
        what = f"results of another chain or of an earlier state of scenario {other[0].scenario} are here"
        message = f"{what}: give another --output, or delete them"
        raise files.FileError([files.Problem(file=str(plan.output), line=0, message=message)])
    results.plan(
        plan.output,
        (
            (scenario.name, provider or "", repeat)
            for scenario in plan.scenarios
            for provider in plan.providers
            for repeat in range(1, plan.repeats + 1)
        ),
    )
    async with contextlib.AsyncExitStack() as stack:
        url = plan.database_url
        if url is None:
            url = await stack.enter_async_context(embedded_postgres.serving())
        template = await stack.enter_async_context(scratch_databases.template(url, purpose="tarsy_eval"))
        runs = _Runs(plan, earlier, progress, template)
        async with asyncio.TaskGroup() as group:
            for scenario in plan.scenarios:
                group.create_task(runs.scenario(scenario))
        if plan.judge is not None:
            await runs.judge_all(plan.judge)
    return Finished(failures=runs.failures, left_out=runs.left_out, unjudged=runs.unjudged)
