"""The investigations that this worker can run.

Each snapshot of a chain in the queue is checked once, and again when the platform file, a key or a package changes. A
new platform file does not reach all workers at once, so this one may lack a provider, an agent, a server or a fallback
that the chain was admitted with. Unusable fallbacks do not count, and neither do the synthesis, the summary and
questions: an investigation goes on without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tarsy.config import resolve
from tarsy.config.model import platforms
from tarsy.store.base import databases
from tarsy.store.fleet import passed_over
from tarsy.store.queue import claim_filter, work
from tarsy.telemetry import component_states

ABSENT = "the worker's platform file does not have it"
"""The problem of a provider that the platform file lacks."""

SNAPSHOTS_MAX = 1000
"""The number of snapshots above which those without an open investigation are forgotten."""

PROVIDER = "ProviderUnusable"
REFERENCE = "ReferenceNotFound"
"""The reasons, as in the conditions of chains."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    """The agents of a snapshot that this worker cannot run, and since when."""

    snapshot: passed_over.Snapshot
    agents: Sequence[component_states.UnrunnableAgent]
    since: datetime


class Eligibility:
    """The snapshots that this worker has checked."""

    def __init__(
        self, *, platform: Callable[[], platforms.Platform], unusable: Callable[[], Mapping[str, str]]
    ) -> None:
        """`platform` returns the platform file in force, `unusable` its unusable providers with the reasons."""
        self._platform = platform
        self._unusable = unusable
        self._verdicts: dict[str, _Verdict] = {}
        self._checked_by: tuple[platforms.Platform, Mapping[str, str]] | None = None
        self._limit = SNAPSHOTS_MAX

    async def claim(
        self, database: databases.Database, *, owner: UUID, lease: timedelta, build: str, max_running: int = 0
    ) -> work.Claim | None:
        """Claim the first investigation in the queue that this worker can run; see `work.claim`."""
        while True:
            try:
                return await work.claim(
                    database, owner=owner, lease=lease, build=build, max_running=max_running, only=self.choose()
                )
            except claim_filter.UncheckedChainError as error:
                if (snapshot := await passed_over.snapshot(database, error.investigation)) is not None:
                    self.check(snapshot)
            if len(self._verdicts) > self._limit:
                open_hashes = await passed_over.still_open(database, self._verdicts)
                self._verdicts = {name: verdict for name, verdict in self._verdicts.items() if name in open_hashes}
                self._limit = max(SNAPSHOTS_MAX, 2 * len(open_hashes))

    def check(self, snapshot: passed_over.Snapshot) -> None:
        """Check a snapshot."""
        self._renew()
        self._verdicts[snapshot.hash] = self._verdict(snapshot)

    def choose(self) -> claim_filter.ClaimFilter:
        """Return the snapshots that the next claim may take, and the agents that it skips."""
        self._renew()
        skipped = [
            claim_filter.UnrunnableAgent(
                hash=name, stage=agent.stage, index=agent.index, only_to_start=agent.only_to_start
            )
            for name, verdict in self._verdicts.items()
            for agent in verdict.agents
        ]
        return claim_filter.ClaimFilter(checked=tuple(self._verdicts), unrunnable=skipped)

    def facts(self) -> Iterator[component_states.ComponentState]:
        """Yield a fact for each snapshot of which this worker cannot run all agents."""
        self._renew()
        for name, verdict in self._verdicts.items():
            if verdict.agents:
                detail = component_states.Passed(agents=tuple(verdict.agents))
                yield component_states.ComponentState(
                    kind="passed", name=name, state="passed", since=verdict.since, detail=detail
                )

    def _renew(self) -> None:
        """Check all snapshots again if the platform file or the unusable providers have changed."""
        now = (self._platform(), dict(self._unusable()))
        if self._checked_by is None or now[0] is not self._checked_by[0] or now[1] != self._checked_by[1]:
            self._checked_by = now
            self._verdicts = {name: self._verdict(verdict.snapshot) for name, verdict in self._verdicts.items()}

    def _verdict(self, snapshot: passed_over.Snapshot) -> _Verdict:
        former = self._verdicts.get(snapshot.hash)
        agents = [] if snapshot.spec is None else list(self._cannot_run(snapshot))
        since = former.since if former and former.agents == agents else datetime.now(UTC)
        return _Verdict(snapshot=snapshot, agents=agents, since=since)

    def _cannot_run(self, snapshot: passed_over.Snapshot) -> Iterator[component_states.UnrunnableAgent]:
        assert self._checked_by and snapshot.spec  # noqa: S101, PT018 - both callers have checked
        platform, unusable = self._checked_by
        for number, stage in enumerate(snapshot.spec.stages):
            for index, member in enumerate(stage.members):
                name = resolve.own_provider(platform, chain=snapshot.spec, stage=stage, member=member)
                problem = unusable.get(name, "") if name in platform.llm_providers else ABSENT
                if name is not None and problem:
                    problem = f"stage '{stage.name}': LLM provider '{name}' cannot be used: {problem}"
                    yield component_states.UnrunnableAgent(stage=number, index=index, reason=PROVIDER, problem=problem)
                    continue
                try:
                    resolve.agent_for(platform, chain_name="", chain=snapshot.spec, stage=stage, member=member)
                except resolve.UnresolvedError as error:
                    problem = str(error)
                    yield component_states.UnrunnableAgent(
                        stage=number, index=index, reason=REFERENCE, problem=problem, only_to_start=True
                    )
