"""The API server, etcd or Postgres goes away under a running operator, and comes back.

Nothing is restarted but what was killed. The model's answers are held back while a part is away, so that a run is known
to be in the middle; the oracles are the logs of the model and of the tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import manifests, migration, outages
from support.outages import (
    CHAIN,
    WATCH,
    Held,
    begun,
    check_calls,
    reads,
    without,
)
from tarsy_dev import mcp_server, model, proxy
from tarsy_dev import postgres as launcher

if TYPE_CHECKING:
    from support.operators import Operator
    from tarsy_dev.controlplane import ControlPlane

LEASE = timedelta(seconds=3)


@pytest.mark.usefixtures("own_plane")
async def test_outage_of_etcd_lets_runs_go_on_refuses_alerts_and_heals_afterwards(
    operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    await outages.outlast_api_server("etcd", operator, plane, llm, toolbox)


@pytest.mark.usefixtures("own_plane")
async def test_operator_started_without_an_api_server_works_once_the_api_server_is_up(
    operator: Operator, plane: ControlPlane, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    await operator.apply(CHAIN)
    await operator.accounts.kubeconfig("all")  # while there is an API server to ask for it
    async with without(plane, "kube-apiserver"):
        process = await operator.start()
        await reads(process, "the API server (api, controller)", WATCH)
    await reads(process)
    await operator.apply(manifests.investigation())
    by_name = await operator.finished("web-crash")
    assert by_name["web-crash"]["status"]["phase"] == "Completed"
    await process.stop()


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[launcher.Server]:
    """A server of the test's own, instead of the run's: to be killed."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def migrated_url(postgres: launcher.Server) -> str:
    """A database on that server."""
    return migration.create(postgres, "outages")


async def test_a_crash_of_the_database_during_a_model_call_sends_nothing_while_the_lease_is_uncertain(
    operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    async with outages.without_database("a model call", operator, postgres, llm, toolbox, lease=LEASE) as process:
        await process.logged("action=heartbeat_failed")
        await asyncio.sleep(2 * LEASE.total_seconds())


async def check_successor(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server, script: Held, *, attempts: int
) -> None:
    """The model's socket was closed, and another process goes on."""
    (request,) = llm.requests
    assert await llm.wait_for(lambda _: request.end) == "client closed"
    script.go()
    await operator.start(lease=LEASE)
    by_name = await operator.finished()
    status = by_name["web-crash"]["status"]
    assert (status["phase"], status["attempts"]) == ("Completed", attempts)
    check_calls(operator, llm, toolbox, names=by_name, again=1)


@pytest.mark.usefixtures("own_plane")
async def test_an_operator_that_stops_without_an_api_server_gives_its_run_back(
    operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    process = await begun(operator, llm, lease=timedelta(minutes=10))
    async with without(plane, "kube-apiserver"):
        await reads(process, "the API server (api, controller)", or_also=WATCH)
        await process.stop()
    assert "action=released" in process.log
    await check_successor(operator, llm, toolbox, script, attempts=1)


@pytest.mark.parametrize("how", ["gone", "silent"])
async def test_an_operator_that_stops_without_a_database_ends_well_and_its_lease_passes(
    how: str, operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = script = Held()
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        url = operator.database_url.replace(f":{postgres.port}/", f":{between.port}/")
        process = await begun(operator, llm, lease=LEASE, env={"DATABASE_URL": url})
        if how == "gone":
            between.refuse()
            between.cut()
        else:
            between.blackhole()
        await reads(process, "the database (api, controller, worker)")
        await process.stop()
    assert "action=release_failed" in process.log
    await check_successor(operator, llm, toolbox, script, attempts=2)
