"""All runs of an evaluation: planned, run side by side, and continued after an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarsy.evaluation import judgements, results, scenarios, stands, subjects
from tarsy.resources import chains, files
from tarsy.store.base import scratch_databases

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run."""

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
    database_url: str
    unusable: Mapping[str, str]
    """The providers that workers cannot use, with reasons."""
    max_tokens: int | None
    """The tokens of all results of `output` after which no further run begins; None for no limit."""


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
        self.tokens = results.spent(earlier)
        self.failures: list[str] = []
        self.left_out = 0
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
        name = f"{stand.scenario.name} {provider or 'chain'} #{repeat}"
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
        self.tokens += result.total_tokens
        seen = sum(each.seen for each in result.evidence)
        numbers = f"{result.tool_calls} tool calls, {result.total_tokens} tokens, {result.seconds:.0f} s"
        self._progress(
            f"[{len(self.done)}/{self._total}] {name}: {result.state}, {seen} of {len(result.evidence)} pieces of "
            f"evidence seen, {numbers}"
        )

    def _is_spent(self) -> bool:
        return self._plan.max_tokens is not None and self.tokens >= self._plan.max_tokens


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The end of an evaluation."""

    failures: Sequence[str]
    """Runs that no worker could make, and why."""
    left_out: int
    """Runs that did not begin because the budget was spent."""


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
    async with scratch_databases.template(plan.database_url, purpose="tarsy_eval") as template:
        runs = _Runs(plan, earlier, progress, template)
        async with asyncio.TaskGroup() as group:
            for scenario in plan.scenarios:
                group.create_task(runs.scenario(scenario))
    return Finished(failures=runs.failures, left_out=runs.left_out)
