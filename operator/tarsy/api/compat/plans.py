"""The agents in the stages of a chain, for earlier clients before a stage has any events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tarsy.resources import chains
from tarsy.store.reads import stage_rows

ParallelType = Literal["multi_agent", "replica"]
ExecutionType = Literal["sequential", "parallel"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One stage as the chain has it."""

    name: str
    agents: tuple[str, ...]
    """The agents' names; none if the chain's snapshot cannot be read."""
    parallel_type: ParallelType | None
    success_policy: chains.SuccessPolicy | None
    """None of one agent alone."""

    @property
    def execution_type(self) -> ExecutionType:
        """sequential: one agent; parallel: several."""
        return "parallel" if self.parallel_type else "sequential"

    @property
    def agent(self) -> str:
        """Its agent; of several all of them."""
        return ", ".join(self.agents)

    @property
    def group(self) -> str | None:
        """The common name of several agents; None for a single one."""
        return f"{self.name}-group" if self.parallel_type else None


def plans(course: stage_rows.StageProgress) -> Sequence[Plan]:
    """The stages of an investigation, in the chain's order."""
    stages = {stage.name: stage for stage in course.chain.stages} if course.chain else {}
    return [_plan(name, stages.get(name)) for name in course.stage_names]


def _plan(name: str, stage: chains.Stage | None) -> Plan:
    if stage is None:
        return Plan(name=name, agents=(), parallel_type=None, success_policy=None)
    agents = tuple(stage.shown_names)
    parallel: ParallelType | None = None
    if len(agents) > 1:
        parallel = "multi_agent" if stage.agents else "replica"
    return Plan(
        name=name,
        agents=agents,
        parallel_type=parallel,
        success_policy=(stage.success_policy or "any") if parallel else None,
    )
