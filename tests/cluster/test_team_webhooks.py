"""Webhooks of several namespaces: who may send alerts to which, and that each counts its alerts by itself."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support import accounts, apis, manifests, queue
from tarsy.config.check import chain_index
from tarsy.config.model import webhooks
from tarsy.kube import client
from tarsy.resources import namespaces
from tarsy.store.base import databases
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.once

WEBHOOK = "the token"
CHAIN = manifests.chain("KubePodCrashLooping")


@dataclass(frozen=True, kw_only=True)
class Teams:
    """An API that serves the operator's namespace and those of two teams, `a` and `b`."""

    session: aiohttp.ClientSession
    plane: Administrator
    own: str
    a: str
    b: str

    async def send(
        self, token: str, namespace: str | None, *, body: bytes | None = None, sent_by: str = "alertmanager"
    ) -> tuple[int, Any]:
        """Send a notification to the webhook of a namespace, or to the one without; status and answer."""
        path = f"/api/v1/webhooks/{sent_by}" + (f"/{namespace}" if namespace is not None else "")
        sent = self.session.post(path, data=body or manifests.notification(), headers=apis.bearer(token))
        async with sent as response:
            return response.status, await response.json(content_type=None)

    async def outcome(self, token: str, namespace: str | None, *, body: bytes | None = None) -> tuple[str, str | None]:
        """The outcome of the alert in a notification that is taken, and the namespace of its investigation."""
        status, receipt = await self.send(token, namespace, body=body)
        assert status == 200, receipt
        (alert,) = receipt["alerts"]
        return alert["outcome"], alert["namespace"]

    def investigations(self, namespace: str) -> list[str]:
        return self.plane.kubectl("get", "inv", "-o", "name", namespace=namespace).split()

    def apply(self, *objects: Any, namespace: str) -> None:
        for manifest in objects:
            self.plane.kubectl("apply", "-f", "-", input=json.dumps(manifest), namespace=namespace)


@pytest.fixture
async def teams(
    cluster: client.Cluster, plane: Administrator, database: databases.Database, tmp_path: Path
) -> AsyncIterator[Teams]:
    """Each team has a token; that of `both` is for both."""
    own = cluster.served.own
    a, b = f"{own}-a", f"{own}-b"
    for name in (a, b):
        plane.create_namespace(name)
    tokens = []
    for name, listed in {"a": [a], "b": [b], "both": [a, b], "later": [f"{own}-later"]}.items():
        path = tmp_path / name
        path.write_text(f"token-of-{name}\n")
        tokens.append({"token_file": path, "namespaces": listed})
    serving = await client.connect(plane.kubeconfig(namespace=own), served=[a, b])
    assert serving.served == namespaces.Served(names=(own, a, b), own=own, default=own)
    ingest = webhooks.Ingest.model_validate({"tokens": tokens})
    parts = apis.parts(cluster=serving, database=database, token=WEBHOOK, ingest=ingest)
    only = queue.PLATFORM.llm_providers["only"].model_copy(update={"allowed_namespaces": ["*"]})
    platform = parts.platform().model_copy(update={"llm_providers": {"only": only}})
    index = functools.partial(chain_index.ChainIndex, platform=platform, unusable_providers={})
    async with apis.served(replace(parts, platform=lambda: platform, index=index)) as session:
        both_teams = Teams(session=session, plane=plane, own=own, a=a, b=b)
        both_teams.apply(CHAIN, namespace=own)
        yield both_teams
    await serving.close()


async def test_token_sends_alerts_to_the_namespaces_that_it_is_listed_for(teams: Teams) -> None:
    own, a, b = teams.own, teams.a, teams.b
    allowed: dict[str, set[str | None]] = {
        WEBHOOK: {None, own},
        "token-of-a": {a},
        "token-of-b": {b},
        "token-of-both": {a, b},
    }
    nobody = b"{}"  # which is refused with 400 once the sender is let in
    for token, listed in allowed.items():
        for namespace in (None, own, a, b, f"{own}-later", "kube-system", "NO", "x" * 5000):
            for sent_by in ("alertmanager", "grafana"):
                status, problem = await teams.send(token, namespace, body=nobody, sent_by=sent_by)
                assert status == (400 if namespace in listed else 403), (token, namespace, problem)
                if status == 403:
                    name = (namespace or own)[:100]
                    assert problem["detail"].startswith(f"the token may not send alerts to namespace {name}")
                    assert "ingest.tokens" in problem["detail"]
                    assert len(problem["detail"]) < 500
    status, problem = await teams.send("token-of-later", f"{own}-later", body=nobody)
    assert (status, "is not served" in problem["detail"]) == (403, True)
    for token in ("token-of-c", "token-of-a2", ""):
        assert (await teams.send(token, a, body=nobody))[0] == 401
    async with teams.session.get("/api/v1/investigations", headers=apis.bearer("token-of-a")) as response:
        assert response.status == 403, "it only sends alerts"
    async with teams.session.post("/api/v1/alerts", data=b"{}", headers=apis.bearer("token-of-a")) as response:
        assert response.status == 403, "those go to the operator's namespace"


async def test_identity_of_the_cluster_sends_alerts_where_it_may_create_investigations(
    teams: Teams, plane: Administrator, editor: str
) -> None:
    a, nobody = teams.a, b"{}"
    of_a = await client.connect(plane.kubeconfig(namespace=a))
    token = await accounts.create(of_a, "alertmanager", may={"alertinvestigations": ["create"]})
    await of_a.close()
    assert (await teams.send(token, a, body=nobody))[0] == 400, "let in"
    for namespace in (None, teams.own, teams.b, "kube-system"):
        status, problem = await teams.send(token, namespace, body=nobody)
        assert status == 403
        assert problem["detail"].endswith(f"may not create alertinvestigations in namespace {namespace or teams.own}")
    status, problem = await teams.send(editor, "kube-system", body=nobody)
    assert (status, problem["detail"].startswith("namespace kube-system is not served")) == (403, True)


async def test_alert_is_counted_and_resolved_by_namespace(teams: Teams, database: databases.Database) -> None:
    own, a, b = teams.own, teams.a, teams.b
    assert await teams.outcome("token-of-a", a) == ("created", a)
    assert await teams.outcome("token-of-a", a) == ("repeated", a)
    assert await teams.outcome("token-of-b", b) == ("created", b), "another team's alert of the same fingerprint"
    assert await teams.outcome(WEBHOOK, None) == ("created", own)
    assert await teams.outcome(WEBHOOK, own) == ("repeated", own), "the same namespace, whether it is named or not"
    assert await teams.outcome("token-of-b", b, body=manifests.notification(status="resolved")) == ("resolved", b)
    rows = await queue.rows(
        database, "SELECT namespace, duplicates, coalesce(alert_status, 'firing') FROM investigations"
    )
    assert sorted(map(tuple, rows)) == sorted([(own, 1, "firing"), (a, 1, "firing"), (b, 0, "resolved")])
    assert {len(teams.investigations(namespace)) for namespace in (own, a, b)} == {1}
