"""The API server or Postgres goes away under a running operator, and comes back.

Nothing is restarted but what was killed. The model's answers are held back while a part is away, so that a run is known
to be in the middle; the oracles are the logs of the model and of the tools.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import migration, outages
from tarsy_dev import mcp_server, model
from tarsy_dev import postgres as launcher

if TYPE_CHECKING:
    from support.operators import Operator
    from tarsy_dev.controlplane import ControlPlane


@pytest.mark.usefixtures("own_plane")
async def test_outage_of_the_api_server_lets_runs_go_on_refuses_alerts_and_heals_afterwards(
    operator: Operator, plane: ControlPlane, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    await outages.outlast_api_server(operator, plane, llm, toolbox)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[launcher.Server]:
    """A server of the test's own, instead of the run's: to be killed."""
    with launcher.Server(log=tmp_path / "postgres.log", durable=False) as server:
        yield server


@pytest.fixture
def migrated_url(postgres: launcher.Server) -> str:
    """A database on that server."""
    return migration.create(postgres, "outages")


async def test_a_crash_of_the_database_that_outlasts_the_lease_repeats_nothing_committed(
    operator: Operator, postgres: launcher.Server, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    await outages.outlast_database(operator, postgres, llm, toolbox)
