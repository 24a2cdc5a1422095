"""Investigations that have ended, as many as one likes: objects whose status shows it, and their rows."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import aiohttp
import sqlalchemy
from support import manifests
from tarsy.kube import client
from tarsy.resources import investigations
from tarsy.store.base import databases

_AT_ONCE = 32
_ROWS = """
  WITH given AS (
    SELECT CAST(id AS uuid) AS id, name
    FROM unnest(CAST(:ids AS text[]), CAST(:names AS text[])) AS one (id, name)
  ), added AS (
    INSERT INTO investigations (id, namespace, name, generation, alert_type, alert_data, ended_at, ending)
    SELECT id, :namespace, name, 1, 'kubernetes', 'web-0 restarts', clock_timestamp(), 'Completed' FROM given
    RETURNING id
  ), worked AS (
    INSERT INTO work (investigation, state, stale) SELECT id, 'ended', false FROM added
  )
  INSERT INTO runs (investigation, number, kind, ended_at, ending, reason, message)
  SELECT id, 0, 'investigation', clock_timestamp(), 'Completed', 'StagesCompleted', '' FROM added
"""


async def create(cluster: client.Cluster, database: databases.Database, *, count: int) -> list[str]:
    """Make `count` of them, `done-0` and so on, in the cluster's namespace; their uids in that order."""
    credentials = await cluster.credentials()
    names = [f"done-{number}" for number in range(count)]
    turns = asyncio.Semaphore(_AT_ONCE)
    async with aiohttp.ClientSession(
        base_url=credentials.server,
        connector=aiohttp.TCPConnector(ssl=credentials.as_ssl_context()),
        headers=credentials.as_http_headers(),
    ) as session:
        uids = await asyncio.gather(
            *(_create(session, turns, namespace=cluster.served.own, name=name) for name in names)
        )
    async with database.begin() as connection:
        parameters = {"ids": uids, "names": names, "namespace": cluster.served.own}
        await connection.execute(sqlalchemy.text(_ROWS), parameters)
    return uids


async def _create(session: aiohttp.ClientSession, turns: asyncio.Semaphore, *, namespace: str, name: str) -> str:
    path = f"/apis/tarsy.dev/v1alpha1/namespaces/{namespace}/{investigations.PLURAL}"
    status = investigations.Status(
        sequence=1, observed_generation=1, phase="Completed", conditions=[], completion_time=datetime.now(UTC)
    )
    patch = {"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    async with turns:
        made = await _send(session, "POST", path, manifests.investigation(name), "application/json")
        await _send(session, "PATCH", f"{path}/{name}/status", patch, "application/merge-patch+json")
    return str(made["metadata"]["uid"])


async def _send(session: aiohttp.ClientSession, method: str, path: str, body: Any, kind: str) -> Any:
    headers = {"Content-Type": kind}
    async with session.request(method, path, data=json.dumps(body), headers=headers, raise_for_status=True) as response:
        return await response.json()
