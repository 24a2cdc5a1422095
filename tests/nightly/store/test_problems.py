"""A database that hangs is a problem (RFC 9457) in time."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support import apis, kubeconfigs
from tarsy.api import app
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev import patience, proxy
from tarsy_dev import postgres as launcher


async def test_hanging_database_is_reported_before_the_probe_times_out(
    tmp_path: Path,
    migrated_url: str,
    postgres: launcher.Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = f"/api/v1/investigations/{uuid.UUID(int=1)}"
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        cluster = await client.connect(kubeconfigs.write(tmp_path / "kubeconfig", server="http://127.0.0.1:1"))
        database = databases.Database(migrated_url.replace(f":{postgres.port}/", f":{between.port}/"))
        async with apis.served(apis.parts(cluster=cluster, database=database)) as api:
            for _ in ("with no connection", "with one"):
                between.blackhole()
                with monkeypatch.context() as patched:
                    patched.setattr(app, "STATEMENT_SECONDS", 0.3)
                    async with patience.limit(), api.get(path) as response:  # a statement of a worker has 30 s
                        assert response.status == 503
                        problem = await response.json(content_type=None)
                        assert problem["detail"].startswith("the database cannot be reached")

                between.heal()
                async with api.get(path) as response:
                    assert response.status == 404
        await database.close()
        await cluster.close()
