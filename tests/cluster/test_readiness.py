"""Dependencies that `/readyz` checks, taken away one after the other. Outages of a whole process: e2e/test_outages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from support import accounts
from tarsy.config.load import settings
from tarsy.kube import client, discovery, rights, watch
from tarsy.probes import checks, health
from tarsy.serve import problems
from tarsy.store.base import databases, schema
from tarsy_dev import postgres as launcher
from tarsy_dev import proxy
from tarsy_dev.controlplane import Administrator

API: tuple[settings.Role, ...] = ("api",)
ALL: tuple[settings.Role, ...] = ("api", "controller", "worker")


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to answer than a probe waits."""
    for module in (discovery, schema):
        monkeypatch.setattr(module, "PING_SECONDS", 60.0)


async def missing(readiness: health.Readiness) -> str:
    try:
        await readiness.ensure()
    except problems.Problem as problem:
        return problem.detail if problem.status == 503 else str(problem.status)
    return ""


def readiness_of(
    database: databases.Database,
    cluster: client.Cluster,
    *,
    roles: Collection[settings.Role] = API,
    watcher: watch.Watcher | None = None,
) -> health.Readiness:
    wanted: list[checks.Check] = [checks.Database(lambda: database), checks.Cluster(cluster, rights.needed(roles))]
    readiness = health.Readiness(roles, *wanted, *([checks.Watch(watcher)] if watcher else []))
    readiness.start()
    return readiness


async def test_a_process_is_ready_from_when_it_has_started_until_it_stops(
    database: databases.Database, cluster: client.Cluster
) -> None:
    readiness = health.Readiness(API, checks.Database(lambda: database), checks.Cluster(cluster, rights.needed(API)))
    assert await missing(readiness) == "not ready: the process is starting"
    readiness.start()
    assert await missing(readiness) == ""
    readiness.stop()
    assert await missing(readiness) == "not ready: the process is stopping"


async def test_a_controller_is_not_ready_before_its_watch_is_open(
    database: databases.Database, cluster: client.Cluster
) -> None:
    watcher = watch.Watcher(cluster, investigation_seen=print, chain_seen=print)
    readiness = readiness_of(database, cluster, roles=ALL, watcher=watcher)
    assert await missing(readiness) == "not ready: the watch (controller)"


async def test_missing_dependencies_are_named_all_at_once_with_the_roles_that_need_them(
    postgres: launcher.Access, unreachable: str
) -> None:
    database = databases.Database(postgres.url("nothere"))
    cluster = await client.connect(Path(unreachable))
    assert await missing(readiness_of(database, cluster, roles=ALL)) == (
        "not ready: the database (api, controller, worker); the API server (api, controller)"
    )
    await cluster.close()
    await database.close()


async def test_concurrent_readiness_requests_cost_one_database_query(
    postgres: launcher.Access, database_url: str, cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 60.0)
    monkeypatch.setattr(health, "MISSING_FRESH_SECONDS", 60.0)
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        database = databases.Database(database_url.replace(f":{postgres.port}/", f":{between.port}/"))
        readiness = readiness_of(database, cluster)
        await schema.missing(database)
        before = between.bytes_up
        await schema.missing(database)
        one_question = between.bytes_up - before
        answers = await asyncio.gather(*(missing(readiness) for _ in range(50)))
        assert len(set(answers)) == 1
        assert between.bytes_up - before == 2 * one_question
        await database.close()


async def test_process_stays_ready_after_a_newer_version_migrates_the_database(database: databases.Database) -> None:
    """The old version serves during an upgrade: otherwise no process would serve between the migration and the first
    new process.
    """
    before, late = (checks.Database(lambda: database) for _ in range(2))
    assert await before() == []
    async with database.begin() as connection:
        await connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'newer'")
    assert await before() == []
    (missing_dependency,) = await late()
    assert missing_dependency.name.startswith("the database's schema, which is at newer")


@pytest.fixture
async def limited(plane: Administrator, admin: client.Cluster) -> AsyncIterator[client.Cluster]:
    """The cluster as an account has it that may do nothing."""
    token = await accounts.create(admin, "operator")
    limited_cluster = await client.connect(plane.kubeconfig(namespace=admin.served.own, user="limited", token=token))
    yield limited_cluster
    await limited_cluster.close()


async def test_readiness_check_names_each_missing_right_by_its_verb(
    database: databases.Database, limited: client.Cluster
) -> None:
    assert await missing(readiness_of(database, limited, roles=ALL)) == (
        "not ready: the right to create, delete, get, list, watch alertinvestigations (api, controller); "
        "the right to patch alertinvestigations/status (controller); "
        "the right to list, watch agentchains (api, controller); "
        "the right to patch agentchains/status (controller); "
        "the right to create events (controller); "
        "the right to get namespaces (api, controller); "
        "the right to get namespaces kube-system (controller); "
        "the right to create tokenreviews (api); "
        "the right to create subjectaccessreviews (api)"
    )
