"""Two teams' namespaces on one operator, from a webhook with each team's token to the end of its investigation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support import charts, manifests
from support.operators import Operator, Process
from tarsy_dev import model, patience
from tarsy_dev.controlplane import Administrator

pytestmark = pytest.mark.once

WEBHOOK = "/api/v1/webhooks/alertmanager"
FOR_ALL = {"allowed_namespaces": ["*"]}


async def send(process: Process, namespace: str | None, *, token: str | None) -> tuple[int, Any]:
    path = WEBHOOK if namespace is None else f"{WEBHOOK}/{namespace}"
    return await process.request("POST", path, body=manifests.notification(), token=token)


async def test_each_team_has_its_alerts_investigated_in_its_namespace_by_its_chain_or_the_operators(
    operator: Operator, plane: Administrator, llm: model.Server, tmp_path: Path
) -> None:
    llm.script = lambda _call: model.Answer(text="root cause")
    own, teams = operator.namespace, [f"{operator.namespace}-{name}" for name in ("a", "b")]
    a, b = teams
    await operator.accounts.kubeconfig()
    for team in teams:
        plane.create_namespace(team)
        (tmp_path / team).write_text(f"token-of-{team}")
    values = {"crds": {"enabled": False}, "mcp": {"enabled": False}, "namespaces": teams}
    for rendered in charts.render(values, name="tarsy", namespace=own):
        if rendered["kind"] in ("Role", "RoleBinding") and rendered["metadata"].get("namespace") in teams:
            plane.kubectl("apply", "-f", "-", input=json.dumps(rendered), namespace=rendered["metadata"]["namespace"])
    chain = manifests.chain("KubePodCrashLooping")
    await operator.apply(chain)
    plane.kubectl("apply", "-f", "-", input=json.dumps(chain | {"metadata": {"name": "of-team-a"}}), namespace=a)
    operator._platform["namespaces"] = teams
    tokens = [{"token_file": str(tmp_path / team), "namespaces": [team]} for team in teams]
    operator.configure(ingest={"tokens": tokens}, agents={"KubernetesAgent": {"mcp_servers": []}})
    process = await operator.start(providers={"scripted": FOR_ALL})

    for token, namespace in ((f"token-of-{a}", b), (f"token-of-{a}", None), (None, a)):
        status, problem = await send(process, namespace, token=token)
        assert (status, "may not send alerts to namespace" in problem["detail"]) == (403, True), problem
    for team in teams:
        for outcome in ("created", "repeated"):
            _, receipt = await send(process, team, token=f"token-of-{team}")
            (alert,) = receipt["alerts"]
            assert (alert["outcome"], alert["namespace"]) == (outcome, team), receipt
        await asyncio.to_thread(
            plane.kubectl, "wait", f"inv/{alert['name']}", "--for=condition=Complete", "--timeout=60s", namespace=team
        )
    chains = {}
    for team in teams:
        (manifest,) = json.loads(plane.kubectl("get", "inv", "-o", "json", namespace=team))["items"]
        chains[team] = (manifest["status"]["chain"]["namespace"], manifest["status"]["chain"]["name"])
        assert manifest["status"]["finalAnalysis"] == "root cause"
    assert chains == {a: (a, "of-team-a"), b: (own, "kubernetes")}
    assert await operator.kubectl("get", "inv", "-o", "name") == ""

    (tmp_path / a).write_text("another token")  # no token, as it has a space
    async with patience.limit():
        while (await send(process, a, token=f"token-of-{a}"))[0] != 401:
            pass  # each is an answer of the process
    (tmp_path / a).write_text("another-token")
    async with patience.limit():
        while (await send(process, a, token="another-token"))[0] != 200:
            pass
    assert (await send(process, b, token=f"token-of-{b}"))[0] == 200, "the other team's is in force as before"
    assert "ingest.tokens.0.token_file: no token is in force" in process.log
