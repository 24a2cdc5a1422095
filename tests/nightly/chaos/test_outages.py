"""The API server or Postgres goes away under a running operator that is stopped.

Nothing is restarted but what was killed. The model's answers are held back while a part is away, so that a run is known
to be in the middle; the oracles are the logs of the model and of the tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import migration
from support.outages import (
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


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[launcher.Server]:
    """A server of the test's own, instead of the run's: to be killed."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def migrated_url(postgres: launcher.Server) -> str:
    """A database on that server."""
    return migration.create(postgres, "outages")


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
