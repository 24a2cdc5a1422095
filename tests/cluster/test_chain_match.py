"""`GET /api/v1/chain-match` on a real API server: which chain takes a type, for callers that may know."""

from __future__ import annotations

import io
import json
import uuid
from typing import Any

import aiohttp
from support import accounts, apis, manifests, queue
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator


async def ask(api: aiohttp.ClientSession, alert_type: str, token: str) -> tuple[int, Any]:
    headers = apis.bearer(token)
    async with api.get("/api/v1/chain-match", params={"alert_type": alert_type}, headers=headers) as response:
        return response.status, await response.json(content_type=None)


async def test_callers_who_submit_or_list_chains_see_the_match_without_submitting(
    plane: Administrator, cluster: client.Cluster, admin: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain("PodCrash"), namespace=cluster.served.own)
    suffix = uuid.uuid4().hex[:8]
    sender = await accounts.create(admin, f"sender-{suffix}", may={"alertinvestigations": ["create"]})
    lister = await accounts.create(admin, f"lister-{suffix}", may={"agentchains": ["list"]})
    reader = await accounts.create(admin, f"reader-{suffix}", may={"alertinvestigations": ["get", "list"]})

    async with apis.served(apis.parts(cluster=cluster, database=database, token="webhook")) as api:
        for token in (sender, lister):
            status, matched = await ask(api, "PodCrash", token)
            assert status == 200
            assert (matched["chain_name"], matched["ready"], matched["message"]) == ("kubernetes", True, "")
        status, matched = await ask(api, "Unheard", sender)
        assert (status, matched["chain_name"], matched["ready"]) == (200, None, False)
        assert "Available alert types: PodCrash" in matched["message"]
        assert (await ask(api, "PodCrash", reader))[0] == 403
        assert (await ask(api, "PodCrash", "webhook"))[0] == 403

    assert await queue.rows(database, "SELECT id FROM investigations") == []


async def test_a_refused_alert_names_the_field_that_is_wrong(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    plane.create(manifests.chain("PodCrash"), namespace=cluster.served.own)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"alert_type": "Unheard"}, "alert_type"),
        ({"mcp": {"servers": [{"name": "vault"}]}}, "mcp"),
        ({"mcp": {"native_tools": {"browser": False}}}, "mcp"),
        ({"data": "x" * (2 * 1024 * 1024)}, "data"),
        ({"data": " "}, "data"),
    ]
    async with apis.served(
        apis.parts(cluster=cluster, database=database), headers={"Content-Type": "application/json"}
    ) as api:
        for fields, field in cases:
            body = {"alert_type": "PodCrash", "data": "web-0 restarts"} | fields
            sent = io.BytesIO(json.dumps(body).encode())
            async with api.post("/api/v1/alerts", data=sent) as response:
                refused = await response.json(content_type=None)
                assert response.status in (400, 413, 422)
                assert [fault["place"].split(".")[0] for fault in refused["errors"]] == [field], refused
