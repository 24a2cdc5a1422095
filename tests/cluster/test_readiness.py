"""What `/readyz` asks for, one thing after the other taken away. Outages of a whole process: tests/chaos."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from tarsy.api import health, problems
from tarsy.config import settings
from tarsy.kube import client, watch
from tarsy.store import database as databases
from tarsy_dev import postgres as launcher
from tarsy_dev import proxy
from tarsy_dev.controlplane import ControlPlane

API: tuple[settings.Role, ...] = ("api",)
ALL: tuple[settings.Role, ...] = ("api", "controller", "worker")


async def missing(readiness: health.Readiness) -> str:
    try:
        await readiness.check()
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
    return health.Readiness(roles=roles, database=database, cluster=cluster, watcher=watcher)


async def test_a_process_is_ready_until_it_stops(database: databases.Database, cluster: client.Cluster) -> None:
    readiness = readiness_of(database, cluster)
    assert await missing(readiness) == ""
    readiness.stop()
    assert await missing(readiness) == "not ready: the process is stopping"


async def test_a_controller_is_not_ready_before_its_watch_is_open(
    database: databases.Database, cluster: client.Cluster
) -> None:
    watcher = watch.Watcher(cluster, namespace=cluster.namespace, investigation_seen=print, chain_seen=print)
    readiness = readiness_of(database, cluster, roles=ALL, watcher=watcher)
    assert await missing(readiness) == "not ready: the watch (controller)"


async def test_an_account_without_rights_is_not_ready(
    database: databases.Database, plane: ControlPlane, namespace: str
) -> None:
    token = plane.kubectl("create", "token", "default", namespace=namespace).strip()
    cluster = await client.connect(plane.kubeconfig(namespace=namespace, user="limited", token=token))
    assert await missing(readiness_of(database, cluster)) == "not ready: the API server (api)"
    await cluster.close()


async def test_what_is_missing_is_named_all_at_once_for_the_roles_that_need_it(
    postgres: launcher.Server, unreachable: str
) -> None:
    database = databases.Database(postgres.url("nothere"))
    cluster = await client.connect(Path(unreachable))
    assert await missing(readiness_of(database, cluster, roles=ALL)) == (
        "not ready: the database (api, controller, worker); the API server (api, controller)"
    )
    await cluster.close()
    await database.close()


async def test_many_that_ask_at_once_cost_the_database_one_question(
    postgres: launcher.Server, database_url: str, cluster: client.Cluster
) -> None:
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        database = databases.Database(database_url.replace(f":{postgres.port}/", f":{between.port}/"))
        readiness = readiness_of(database, cluster)
        await database.ping()
        before = between.bytes_up
        await database.ping()
        one = between.bytes_up - before
        assert await asyncio.gather(*(missing(readiness) for _ in range(50))) == [""] * 50
        assert between.bytes_up - before == 2 * one
        await database.close()
