"""Workers that cannot use an LLM provider: what they pass over, what they claim, and when waiting ends."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from support import manifests, queue, workers
from tarsy.config.model import platforms, providers
from tarsy.resources import chains
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue, passed_over, reporter
from tarsy.store.queue import questions, work
from tarsy.store.reads import listing
from tarsy.telemetry import component_states
from tarsy.transcript import entries
from tarsy.worker import eligibility

KEY = "environment variable GOOGLE_API_KEY is not set"
GOOGLE = providers.GoogleProvider(type="google", model="gemini-2.5-flash")
PLATFORM = queue.PLATFORM.model_copy(update={"llm_providers": {"only": GOOGLE, "other": GOOGLE}})
MIXED = queue.chain(
    stages=[
        manifests.stage("look"),
        {"name": "judge", "agents": [{"name": "KubernetesAgent"}, {"name": "KubernetesAgent", "llmProvider": "other"}]},
    ]
)


@pytest.fixture(autouse=True)
def two_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are admitted by the platform of these tests."""
    monkeypatch.setattr(queue, "PLATFORM", PLATFORM)


class Worker:
    """A worker that reports by the catalogue and claims, with `unusable` providers that the test may change."""

    def __init__(self, database: databases.Database, number: int = 1, /, **unusable: str) -> None:
        self.unusable: Mapping[str, str] = unusable
        self.platform = PLATFORM
        self.eligible = eligibility.Eligibility(platform=lambda: self.platform, unusable=lambda: self.unusable)
        self._database = database
        self._number = number
        self._kept = reporter.Reporter(
            database,
            process=UUID(int=number),
            host=f"worker-{number}",
            detail=component_states.Process(roles=("worker",), slots=1, version="0", build=queue.BUILD),
            mask=str,
        )
        self._kept.add_source(self.eligible.facts)

    async def claim(self) -> UUID | None:
        """Claim what it can run, if that waits, and tell others what it passes over."""
        claimed = await self.eligible.claim(
            self._database, owner=UUID(int=self._number), lease=queue.LEASE, build=queue.BUILD
        )
        await self.report()
        return claimed.investigation if claimed else None

    async def report(self) -> None:
        self._kept._due = 0.0
        await self._kept.report()

    async def vanish(self) -> None:
        await workers.vanish(self._database, self._number)


async def wait_ten_minutes(database: databases.Database) -> None:
    """As if what is passed over now had been so for ten minutes."""
    await passed_over.sweep(database)
    await queue.execute(database, "UPDATE work SET passed_over_since = passed_over_since - CAST('10 min' AS interval)")


async def marked(database: databases.Database) -> list[UUID]:
    return [
        row[0] for row in await queue.rows(database, "SELECT investigation FROM work WHERE passed_over_since > 'epoch'")
    ]


async def waits(database: databases.Database, identity: UUID) -> None:
    """Its status is to be written, and says that it waits for a worker, as the lists do."""
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.stale) == ("Queued", True)
    assert summary.shown_message.startswith("waits for a worker that can run its chain: ")
    query = listing.Query(namespaces={"tarsy": "any"}, phases=("Queued",))
    (listed,) = (await listing.page(database, query, limit=10)).items
    assert listed.message == summary.shown_message
    await work.projected(database, identity, revision=summary.revision)
    await passed_over.sweep(database)
    assert not (await queue.summary(database, identity)).stale, "it is told once"


def asks(provider: str) -> chains.AgentChain:
    return queue.chain(stages=[{"name": "look", "agent": "KubernetesAgent", "llmProvider": provider}])


async def test_investigation_waits_for_a_worker_that_can_run_it(database: databases.Database) -> None:
    identity = await queue.admit(database)
    keyless, other = Worker(database, 1, only=KEY), Worker(database, 2, other=KEY)
    assert await keyless.claim() is None
    assert (await queue.summary(database, identity)).state == "queued"
    assert await other.claim() == identity


async def test_passed_over_investigations_do_not_delay_others(database: databases.Database) -> None:
    for _ in range(300):
        await queue.admit(database, queue.subject(priority=5))
    behind = await queue.admit(database, chain=asks("other"))
    worker = Worker(database, only=KEY)
    assert await worker.claim() == behind
    assert await worker.claim() is None
    assert len(list(worker.eligible.facts())) == 1, "one for all that run the same chain"


async def commit(database: databases.Database, *batches: list[entries.Entry]) -> None:
    """Run what is claimable up to here, and let the worker die."""
    journal = await queue.opened(database, await queue.claimed(database))
    for batch in batches:
        await journal.commit(*batch)
    await queue.let_leases_pass(database)


def started(stage: str, execution: str, index: int = 0) -> list[entries.Entry]:
    return [entries.ExecutionStarted(stage=stage, execution=execution, index=index, name="KubernetesAgent", agent=None)]


def ended(execution: str) -> list[entries.Entry]:
    return [entries.ExecutionEnded(execution=execution, outcome="Completed")]


LOOKED = [
    [entries.StageStarted(stage="look", clock=0.0), *started("look", "a")],
    [*ended("a"), entries.StageEnded(stage="look", outcome="Completed")],
]
JUDGES = [entries.StageStarted(stage="judge", clock=0.0), *started("judge", "b"), *started("judge", "c", 1)]
SINGLE = queue.chain(
    stages=[
        {"name": "look", "agent": "KubernetesAgent", "llmProvider": "other"},
        {"name": "judge", "agent": "KubernetesAgent"},
    ]
)


@pytest.mark.parametrize(
    ("chain", "log", "unusable", "is_claimed"),
    [
        (SINGLE, [], "other", False),
        (SINGLE, LOOKED, "other", True),
        (SINGLE, LOOKED, "only", False),
        (MIXED, [*LOOKED, JUDGES], "other", False),
        (MIXED, [*LOOKED, JUDGES, ended("c")], "other", True),
        (MIXED, [*LOOKED, JUDGES, ended("c")], "only", False),
    ],
    ids=["new", "behind it", "before it", "both at work", "one ended", "the other one is open"],
)
async def test_takeover_needs_only_the_providers_of_unfinished_stages(
    database: databases.Database,
    chain: chains.AgentChain,
    log: list[list[entries.Entry]],
    unusable: str,
    is_claimed: bool,
) -> None:
    identity = await queue.admit(database, chain=chain)
    await commit(database, *log)
    worker = Worker(database, **{unusable: KEY})
    assert await worker.claim() == (identity if is_claimed else None)


@pytest.mark.parametrize(
    "spec",
    [
        {"fallbackProviders": ["other"]},
        {"executiveSummary": {"llmProvider": "other"}},
        {"chat": {"llmProvider": "other"}},
        {"stages": [manifests.stage("look", replicas=2, synthesis={"llmProvider": "other"})]},
    ],
    ids=lambda spec: next(iter(spec)),
)
async def test_optional_parts_do_not_exclude_a_worker(database: databases.Database, spec: dict[str, Any]) -> None:
    identity = await queue.admit(database, chain=queue.chain(**spec))
    assert await Worker(database, other=KEY).claim() == identity


async def test_question_is_claimed_even_if_the_worker_lacks_parts_of_its_chain(database: databases.Database) -> None:
    identity = await queue.admit(database)
    worker = Worker(database)
    assert await worker.claim() == identity
    await queue.execute(database, "UPDATE work SET state = 'ended'")
    assert await questions.ask(database, identity, "why?", max_queued=10, by=queue.CALLER) == 1
    worker.unusable = {"only": KEY}
    assert await worker.claim() == identity


async def test_cancelled_investigation_ends_without_the_parts_that_it_needs(database: databases.Database) -> None:
    identity = await queue.admit(database)
    await queue.claimed(database)
    await work.cancel(database, identity, why="user")
    await queue.let_leases_pass(database)
    assert await Worker(database, only=KEY).claim() == identity


async def test_run_with_unreadable_snapshot_is_claimed_without_checking_the_chain(database: databases.Database) -> None:
    identity = await queue.admit(database)
    await queue.execute(database, "UPDATE investigations SET chain_version = 99")
    assert await Worker(database, only=KEY).claim() == identity


LATER = platforms.Agent(mcp_servers=["later"], custom_instructions="look")
SERVER = platforms.Platform.model_validate(
    {"mcp_servers": {"later": {"transport": {"type": "http", "url": "http://127.0.0.1/mcp"}}}}
)


@pytest.mark.parametrize(
    ("spec", "more", "missing"),
    [
        (
            {"stages": [manifests.stage("look", agent="LaterAgent")]},
            {"agents": {"LaterAgent": LATER}},
            "agent 'LaterAgent'",
        ),
        ({"mcpServers": ["later"]}, {}, "MCP server 'later'"),
        ({"fallbackProviders": ["new"]}, {"llm_providers": {"new": GOOGLE}}, "LLM provider 'new'"),
    ],
    ids=["an agent", "a server", "a fallback"],
)
async def test_worker_with_an_older_platform_file_waits_for_the_newer_file(
    database: databases.Database,
    monkeypatch: pytest.MonkeyPatch,
    spec: dict[str, Any],
    more: dict[str, Any],
    missing: str,
) -> None:
    """As a ConfigMap reaches one pod after the other, and the controller may be ahead of the worker."""
    more = {name: {**getattr(PLATFORM, name), **values} for name, values in more.items()}
    new = PLATFORM.model_copy(update={"mcp_servers": {**PLATFORM.mcp_servers, **SERVER.mcp_servers}, **more})
    monkeypatch.setattr(queue, "PLATFORM", new)
    identity = await queue.admit(database, chain=queue.chain(**spec))
    worker = Worker(database)
    assert await worker.claim() is None
    (fact,) = worker.eligible.facts()
    assert isinstance(fact.detail, component_states.Passed)
    problem = fact.detail.agents[0].problem
    assert problem.startswith("stage '")
    assert f"references unknown {missing}" in problem
    await wait_ten_minutes(database)
    assert await passed_over.sweep(database) == 1
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.reason) == ("Failed", "ReferenceNotFound")
    assert problem in summary.message

    identity = await queue.admit(database, chain=queue.chain(**spec))
    assert await worker.claim() is None
    worker.platform = new
    assert await worker.claim() == identity


async def test_investigation_that_all_workers_pass_over_for_ten_minutes_fails_with_the_reason(
    database: databases.Database,
) -> None:
    identity = await queue.admit(database, chain=MIXED)
    fine = await queue.admit(database)
    workers = [Worker(database, 1, other=KEY), Worker(database, 2, other=KEY, only=KEY)]
    assert [await worker.claim() for worker in workers] == [fine, None]
    assert await passed_over.sweep(database) == 0
    assert await marked(database) == [identity], "what runs is passed over by nobody"
    await waits(database, identity)
    assert await passed_over.sweep(database) == 0
    await wait_ten_minutes(database)
    assert await passed_over.sweep(database) == 1
    summary = await queue.summary(database, identity)
    assert (summary.phase, summary.reason, summary.stale) == ("Failed", "ProviderUnusable", True)
    needs = ("'judge': LLM provider 'only'", "'judge': LLM provider 'other'", "'look': LLM provider 'only'")
    assert summary.message == (
        f"no worker could run it for 10 minutes: {'; '.join(f'stage {need} cannot be used: {KEY}' for need in needs)}. "
        "Give the workers what is missing, or use another one in the chain or the platform file, and create the "
        "investigation again"
    )
    (entry,) = await queue.log(database, identity)
    assert isinstance(entry.entry, entries.RunEnded)
    assert await passed_over.sweep(database) == 0


async def test_takeover_that_no_worker_can_do_ends_with_its_open_executions(database: databases.Database) -> None:
    identity = await queue.admit(database, chain=MIXED)
    await commit(database, *LOOKED, JUDGES)
    assert await Worker(database, only=KEY, other=KEY).claim() is None
    await wait_ten_minutes(database)
    assert await passed_over.sweep(database, patience=timedelta(minutes=10)) == 1
    summary = await queue.summary(database, identity)
    assert [(stage.name, stage.outcome) for stage in summary.stages] == [("look", "Completed"), ("judge", "Failed")]
    assert "'look'" not in summary.message, "that stage has ended"


async def test_workers_report_usable_providers_while_they_live(database: databases.Database) -> None:
    assert (await catalogue.workers(database)).count == 0
    await workers.report(database, 1, roles=("api", "controller"), a="not asked for")
    assert (await catalogue.workers(database)).count == 0
    await workers.report(database, 2, a=KEY, b="")
    await workers.report(database, 3, roles=("api", "controller", "worker"), a=KEY)
    reported = await catalogue.workers(database)
    assert (reported.count, reported.reports, reported.unusable) == (2, {"a": [KEY, KEY], "b": [""]}, {"a": KEY})
    await workers.report(database, 4)
    assert (await catalogue.workers(database)).unusable == {}, "one says nothing of it"
    await workers.vanish(database, 4)
    assert (await catalogue.workers(database)).unusable == {"a": KEY}
    await workers.vanish(database, 2)
    await workers.vanish(database, 3)
    assert (await catalogue.workers(database)).count == 0


@pytest.mark.parametrize(
    ("spec", "minutes", "is_claimed"),
    [
        ({"activeDeadlineSeconds": 600}, 5, False),
        ({"activeDeadlineSeconds": 600}, 10, True),
        ({}, 10, False),
        ({}, 15, True),
    ],
    ids=["in time", "late", "in the time of chains that say nothing", "late for that"],
)
async def test_run_past_its_deadline_is_claimed_by_any_worker(
    database: databases.Database, spec: dict[str, Any], minutes: int, is_claimed: bool
) -> None:
    identity = await queue.admit(database, chain=queue.chain(**spec))
    worker = Worker(database, only=KEY)
    assert await worker.claim() is None, "what has never begun has no deadline yet"
    await commit(database)
    await queue.execute(database, "UPDATE runs SET started_at = started_at - make_interval(mins => :m)", m=minutes)
    assert await worker.claim() == (identity if is_claimed else None)
    await wait_ten_minutes(database)
    assert await passed_over.sweep(database) == (0 if is_claimed else 1)
