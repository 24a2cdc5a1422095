"""The investigations that this worker can run, by what their agents need.

It judges each snapshot of a chain that it meets in the queue once, and again when its platform file, a key or a package
changes. A platform file reaches one worker after the other, so this one may lack what the chain was admitted by: an
LLM provider, or an agent, a server or a fallback that an execution settles when it starts. Whether fallbacks can be
used does not count, nor do the synthesis, the summary and questions: an investigation goes on without them.
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
from tarsy.telemetry import details, standing

ABSENT = "the worker's platform file does not have it"
"""The problem of a provider that a snapshot names, and the platform file does not."""

SNAPSHOTS_MAX = 1000
"""Number of judged snapshots from which on those that no open investigation runs are forgotten."""

PROVIDER = "ProviderUnusable"
REFERENCE = "ReferenceNotFound"
"""The reasons, in the words of a chain's conditions."""


@dataclass(frozen=True, kw_only=True)
class _Judged:
    """A snapshot, and its agents that this worker cannot run, since when it could not."""

    snapshot: passed_over.Snapshot
    agents: Sequence[details.UnrunnableAgent]
    since: datetime


class Eligibility:
    """The verdicts of this worker."""

    def __init__(
        self, *, platform: Callable[[], platforms.Platform], unusable: Callable[[], Mapping[str, str]]
    ) -> None:
        """`platform` is the platform in force, `unusable` its providers that this process cannot use, with why."""
        self._platform = platform
        self._unusable = unusable
        self._judged: dict[str, _Judged] = {}
        self._judged_by: tuple[platforms.Platform, Mapping[str, str]] | None = None
        self._most = SNAPSHOTS_MAX

    async def claim(
        self, database: databases.Database, *, owner: UUID, lease: timedelta, build: str, max_running: int = 0
    ) -> work.Claim | None:
        """Claim the first investigation in the queue that this worker can run; see `work.claim`."""
        while True:
            try:
                return await work.claim(
                    database, owner=owner, lease=lease, build=build, max_running=max_running, chooses=self.choose()
                )
            except claim_filter.UncheckedChainError as error:
                if (snapshot := await passed_over.snapshot(database, error.investigation)) is not None:
                    self.judge(snapshot)
            if len(self._judged) > self._most:
                open_hashes = await passed_over.still_open(database, self._judged)
                self._judged = {name: verdict for name, verdict in self._judged.items() if name in open_hashes}
                self._most = max(SNAPSHOTS_MAX, 2 * len(open_hashes))

    def judge(self, snapshot: passed_over.Snapshot) -> None:
        """Judge one more snapshot."""
        self._renew()
        self._judged[snapshot.hash] = self._verdict(snapshot)

    def choose(self) -> claim_filter.ClaimFilter:
        """Return what the next claim takes and passes over."""
        self._renew()
        passed = [
            claim_filter.UnrunnableAgent(
                hash=name, stage=agent.stage, index=agent.index, only_to_start=agent.only_to_start
            )
            for name, verdict in self._judged.items()
            for agent in verdict.agents
        ]
        return claim_filter.ClaimFilter(judged=tuple(self._judged), passed=passed)

    def facts(self) -> Iterator[standing.Fact]:
        """Return a fact for each snapshot that this worker cannot run whole."""
        self._renew()
        for name, verdict in self._judged.items():
            if verdict.agents:
                detail = details.Passed(agents=tuple(verdict.agents))
                yield standing.Fact(kind="passed", name=name, state="passed", since=verdict.since, detail=detail)

    def _renew(self) -> None:
        """Judge all snapshots again if what they were judged by has changed."""
        now = (self._platform(), dict(self._unusable()))
        if self._judged_by is None or now[0] is not self._judged_by[0] or now[1] != self._judged_by[1]:
            self._judged_by = now
            self._judged = {name: self._verdict(verdict.snapshot) for name, verdict in self._judged.items()}

    def _verdict(self, snapshot: passed_over.Snapshot) -> _Judged:
        former = self._judged.get(snapshot.hash)
        agents = [] if snapshot.spec is None else list(self._cannot_run(snapshot))
        since = former.since if former and former.agents == agents else datetime.now(UTC)
        return _Judged(snapshot=snapshot, agents=agents, since=since)

    def _cannot_run(self, snapshot: passed_over.Snapshot) -> Iterator[details.UnrunnableAgent]:
        assert self._judged_by and snapshot.spec  # noqa: S101, PT018 - both callers have looked
        platform, unusable = self._judged_by
        for number, stage in enumerate(snapshot.spec.stages):
            for index, member in enumerate(stage.members):
                name = resolve.own_provider(platform, chain=snapshot.spec, stage=stage, member=member)
                problem = unusable.get(name, "") if name in platform.llm_providers else ABSENT
                if name is not None and problem:
                    problem = f"stage '{stage.name}': LLM provider '{name}' cannot be used: {problem}"
                    yield details.UnrunnableAgent(stage=number, index=index, reason=PROVIDER, problem=problem)
                    continue
                try:
                    resolve.agent_for(platform, chain_name="", chain=snapshot.spec, stage=stage, member=member)
                except resolve.UnresolvedError as error:
                    problem = str(error)
                    yield details.UnrunnableAgent(
                        stage=number, index=index, reason=REFERENCE, problem=problem, only_to_start=True
                    )
