"""Conditions of chains, written by one replica at a time."""

from __future__ import annotations

import asyncio
import functools
import json
import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy
from support import former, manifests, queue, workers
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, providers, server_transports, webhooks
from tarsy.controller import chains, workqueue
from tarsy.kube import client
from tarsy.store.base import databases
from tarsy.store.fleet import catalogue
from tarsy.telemetry import component_states
from tarsy_dev import patience
from tarsy_dev.controlplane import Administrator

GOOGLE = providers.GoogleProvider(type="google", model="gemini-2.5-flash")
PROVIDERS = {"only": GOOGLE, "keyless": GOOGLE}


def reconciler(
    cluster: client.Cluster,
    database: databases.Database,
    *,
    owner: int,
    agents: tuple[str, ...],
    ingest: webhooks.Ingest = webhooks.Ingest(),  # noqa: B008 - it is frozen
) -> chains.Reconciler:
    platform = platforms.Platform(
        defaults=platforms.Defaults(llm_provider="only"),
        ingest=ingest,
        llm_providers=PROVIDERS,
        mcp_servers={
            "k8s": platforms.MCPServer(transport=server_transports.HTTPTransport(type="http", url="http://k8s/mcp"))
        },
        agents={name: platforms.Agent() for name in (*agents, "SynthesisAgent", "ChatAgent")},
    )
    index = functools.partial(chain_index.ChainIndex, platform=platform)
    return chains.Reconciler(cluster=cluster, database=database, index=index, owner=UUID(int=owner))


async def test_two_replicas_that_see_it_differently_do_not_correct_each_other(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    made = manifests.chain(name="pod-crash", stages=[manifests.stage("analysis", agent="Only")])
    plane.create(made, namespace=cluster.served.own)
    first = reconciler(cluster, database, owner=1, agents=("Only",))
    second = reconciler(cluster, database, owner=2, agents=())

    def ready() -> tuple[str, str]:
        chain: Any = json.loads(plane.kubectl("get", "chain", "pod-crash", "-o", "json", namespace=cluster.served.own))
        (condition,) = [candidate for candidate in chain["status"]["conditions"] if candidate["type"] == "Ready"]
        return condition["status"], chain["metadata"]["resourceVersion"]

    await first.reconcile(cluster.served.own)
    status, version = ready()
    assert status == "True"
    with pytest.raises(workqueue.LaterError):
        await second.reconcile(cluster.served.own)
    assert ready() == ("True", version)

    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text("UPDATE leaders SET until = clock_timestamp()"))
    await second.reconcile(cluster.served.own)
    assert ready()[0] == "False", "whoever leads now says what it sees"


async def test_limit_of_a_chain_is_stored_when_it_is_applied_and_when_it_changes(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    made = manifests.chain(name="pod-crash", maxRunning=2, stages=[manifests.stage("analysis", agent="Only")])
    plane.create(made, namespace=cluster.served.own)
    reconciling = reconciler(cluster, database, owner=1, agents=("Only",))

    async def limits() -> list[tuple[object, ...]]:
        await reconciling.reconcile(cluster.served.own)
        return await queue.rows(database, "SELECT queue, max_running FROM queues")

    name = f"{cluster.served.own}/pod-crash"
    assert await limits() == [(name, 2)]
    patch = {"spec": {"maxRunning": None}}
    plane.kubectl("patch", "chain", "pod-crash", "--type=merge", "-p", json.dumps(patch), namespace=cluster.served.own)
    assert await limits() == [(name, 0)]


async def test_references_missing_for_synthesis_summary_and_chat_are_on_the_object(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    made = manifests.chain(
        name="pod-crash",
        stages=[manifests.stage("analysis", agent="Only", replicas=2, synthesis={"agent": "Nobody"})],
        executiveSummary={"llmProvider": "none"},
        chat={"enabled": False, "agent": "Nobody"},
    )
    plane.create(made, namespace=cluster.served.own)
    await reconciler(cluster, database, owner=1, agents=("Only",)).reconcile(cluster.served.own)
    chain: Any = json.loads(plane.kubectl("get", "chain", "pod-crash", "-o", "json", namespace=cluster.served.own))
    (resolved,) = [condition for condition in chain["status"]["conditions"] if condition["type"] == "ResolvedRefs"]
    assert (resolved["status"], resolved["reason"]) == ("False", "ReferenceNotFound")
    there = "Available LLM providers: keyless, only"
    agents = "references unknown agent 'Nobody'. Available agents: ChatAgent, Only, SynthesisAgent"
    assert resolved["message"].split("; ") == [
        f"Chain 'pod-crash' stage 'analysis' synthesis {agents}",
        f"Chain 'pod-crash' executiveSummary references unknown LLM provider 'none'. {there}",
        f"Chain 'pod-crash' chat {agents}",
    ]
    assert chain["spec"]["executiveSummary"] == {"enabled": True, "llmProvider": "none"}, (
        "the cluster shows the default"
    )


async def test_unusable_fallback_provider_is_reported_on_a_ready_chain(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    made = manifests.chain(
        name="pod-crash", fallbackProviders=["keyless"], stages=[manifests.stage("analysis", agent="Only")]
    )
    plane.create(made, namespace=cluster.served.own)
    await workers.report(database, only="", keyless="it has no key")
    for _ in range(2):
        await reconciler(cluster, database, owner=1, agents=("Only",)).reconcile(cluster.served.own)
    chain: Any = json.loads(plane.kubectl("get", "chain", "pod-crash", "-o", "json", namespace=cluster.served.own))
    conditions = {condition["type"]: condition for condition in chain["status"]["conditions"]}
    message = "Chain 'pod-crash' stage 'analysis': fallback LLM provider 'keyless' cannot be used: it has no key"
    resolved = conditions["ResolvedRefs"]
    assert (resolved["status"], resolved["reason"], resolved["message"]) == ("True", "FallbackUnusable", message)
    assert (conditions["Ready"]["status"], conditions["Ready"]["reason"]) == ("True", "FallbackUnusable")
    listed = plane.kubectl("get", "chains", "-o", "wide", namespace=cluster.served.own)
    header, row = (re.split(r"\s{2,}", line.strip()) for line in listed.splitlines())
    values = dict(zip(header, row, strict=True))
    assert (values["READY"], values["REASON"], values["MESSAGE"]) == ("True", "FallbackUnusable", message)
    narrow = plane.kubectl("get", "chains", namespace=cluster.served.own)
    assert narrow.splitlines()[0].split() == ["NAME", "ALERT", "TYPES", "READY", "REASON", "AGE"]


async def test_a_chain_is_not_ready_while_all_workers_say_that_its_provider_is_unusable(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    made = manifests.chain(name="pod-crash", stages=[manifests.stage("analysis", agent="Only")])
    plane.create(made, namespace=cluster.served.own)
    reconciling = reconciler(cluster, database, owner=1, agents=("Only",))

    async def read_chain() -> list[str]:
        await reconciling.reconcile(cluster.served.own)
        read = plane.kubectl("get", "chain", "pod-crash", "-o", "json", namespace=cluster.served.own)
        conditions = {condition["type"]: condition for condition in json.loads(read)["status"]["conditions"]}
        kinds = ("ProvidersUsable", "Ready", "Stalled")
        return [f"{conditions[kind]['status']} {conditions[kind]['reason']}" for kind in kinds]

    silent = ["Unknown NoWorker", "True Ready", "False Ready"]
    unusable = ["False ProviderUnusable", "False ProviderUnusable", "True ProviderUnusable"]
    assert await read_chain() == silent
    await workers.report(database, 1, roles=("api", "controller"))
    assert await read_chain() == silent, "who works nothing has no say"
    await workers.report(database, 2, only="it has no key")
    assert await read_chain() == unusable
    await workers.report(database, 3, only="")
    assert await read_chain() == ["False ProviderUnusable", "True Ready", "False Ready"]
    await workers.vanish(database, 3)
    assert await read_chain() == unusable
    await workers.report(database, 2, only="")
    assert await read_chain() == ["True ProvidersUsable", "True Ready", "False Ready"]
    await workers.vanish(database, 2)
    assert await read_chain() == silent


async def test_owners_that_an_api_may_not_get_are_a_warning_on_chains_that_group_by_them(
    plane: Administrator, cluster: client.Cluster, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "REPORTS_SECONDS", 0.0)
    stages = [manifests.stage("analysis", agent="Only")]
    plane.create(
        manifests.chain(name="by-owner", stages=stages, grouping={"by": "Owner"}), namespace=cluster.served.own
    )
    plane.create(manifests.chain("Other", name="alone", stages=stages), namespace=cluster.served.own)
    await workers.report(database, only="")
    at = datetime.now(UTC)
    kinds = ("ReplicaSet", "Pod")
    facts = [
        component_states.ComponentState(
            kind="process", name="api-0", state="running", since=at, detail=component_states.Process(roles=("api",))
        ),
        *(
            component_states.ComponentState(
                kind="owners", name=kind, state="refused", since=at, detail=component_states.Owners()
            )
            for kind in kinds
        ),
    ]

    async def read_chain(reason: str) -> dict[str, str]:
        """The messages of Ready, once that of the chain by owner has a reason."""
        async with patience.limit():
            while True:
                read = json.loads(plane.kubectl("get", "chains", "-o", "json", namespace=cluster.served.own))
                ready = {
                    (chain["metadata"]["name"], condition["reason"]): condition["message"]
                    for chain in read["items"]
                    for condition in (chain.get("status") or {}).get("conditions", ())
                    if (condition["type"], condition["status"]) == ("Ready", "True")
                }
                if ("by-owner", reason) in ready and ("alone", "Ready") in ready:
                    return {name: message for (name, _), message in ready.items()}
                await asyncio.sleep(0.05)

    reconciling = reconciler(
        cluster, database, owner=1, agents=("Only",), ingest=webhooks.Ingest(this_cluster=webhooks.ThisCluster())
    )
    task = asyncio.create_task(reconciling.run())
    try:
        reconciling.check_again(cluster.served.own)
        assert await read_chain("Ready") == {"by-owner": "", "alone": ""}
        await catalogue.write(database, UUID(int=9), facts)
        assert await read_chain("OwnersNotLookedUp") == {
            "by-owner": "Chain 'by-owner' groups alerts by owner, but the API lacks the right to get Pods, "
            "ReplicaSets: alerts about them are investigated alone: set rbac.owners of the chart",
            "alone": "",
        }
        await catalogue.leave(database, UUID(int=9))
        assert await read_chain("Ready") == {"by-owner": "", "alone": ""}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_server_unreachable_from_one_process_sets_and_clears_a_chain_condition(
    plane: Administrator, cluster: client.Cluster, database: databases.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "REPORTS_SECONDS", 0.0)
    needs = manifests.chain(name="needs", stages=[manifests.stage("analysis", agent="Only", mcpServers=["k8s"])])
    other = manifests.chain("Other", name="other", stages=[manifests.stage("analysis", agent="Only")])
    for made in (needs, other):
        plane.create(made, namespace=cluster.served.own)

    async def say(process: int, state: str, problem: str = "") -> None:
        now = datetime.now(UTC)
        detail = component_states.Server(problem=problem, tools=3)
        facts = [
            component_states.ComponentState(
                kind="process", name=f"pod-{process}", state="running", since=now, detail=component_states.Process()
            ),
            component_states.ComponentState(kind="server", name="k8s", state=state, since=now, detail=detail),
        ]
        await catalogue.write(database, UUID(int=process), facts)
        # Who was not seen for 30 s is no longer told of, and a busy machine may take that long.
        await queue.execute(database, "UPDATE catalogue SET seen_at = clock_timestamp() + interval '1 hour'")

    async def read_chain(name: str, status: str) -> dict[str, Any]:
        async with patience.limit():
            while True:
                read: Any = await asyncio.to_thread(
                    plane.kubectl, "get", "chain", name, "-o", "json", namespace=cluster.served.own
                )
                listed: list[dict[str, Any]] = json.loads(read).get("status", {}).get("conditions", [])
                there = {condition["type"]: condition for condition in listed}
                listed_condition = there.get("MCPServersReachable", {"status": ""})
                if there and listed_condition["status"] == status:
                    assert (there["Ready"]["status"], there["Stalled"]["status"]) == ("True", "False")
                    return listed_condition

    conditions = reconciler(cluster, database, owner=1, agents=("Only",))
    running = asyncio.create_task(conditions.run())
    conditions.check_again(cluster.served.own)
    assert (await read_chain("needs", "Unknown"))["reason"] == "ServersNotConnected"
    await say(1, "connected")
    await say(2, "connected")
    assert (await read_chain("needs", "True"))["reason"] == "ServersReachable"
    await say(2, "unreachable", "cannot be reached: no such host")
    reachable = await read_chain("needs", "False")
    assert reachable["reason"] == "ServersUnreachable"
    assert reachable["message"] == "MCP server 'k8s' (in 1 of 2 processes) cannot be reached: no such host"
    await say(2, "connected")
    await read_chain("needs", "True")
    await read_chain("other", "")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.usefixtures("own_plane")
async def test_unreadable_chain_is_not_ready_until_it_is_corrected_and_stops_no_other(
    plane: Administrator, cluster: client.Cluster, database: databases.Database
) -> None:
    stages = [manifests.stage("analysis", agent="Only")]
    odd = manifests.chain(name="odd", activeDeadlineSeconds=0, stages=stages)
    await asyncio.to_thread(former.store, plane, odd, namespace=cluster.served.own)
    good = manifests.chain("Other", name="good", stages=stages)
    plane.create(good, namespace=cluster.served.own)

    def read_chain(name: str) -> Any:
        return json.loads(plane.kubectl("get", "chain", name, "-o", "json", namespace=cluster.served.own))

    def conditions(name: str) -> dict[str, tuple[str, str]]:
        return {
            condition["type"]: (condition["status"], condition["reason"])
            for condition in read_chain(name)["status"]["conditions"]
        }

    await reconciler(cluster, database, owner=1, agents=("Only",)).reconcile(cluster.served.own)
    no = "Unreadable"
    assert conditions("odd") == {"Accepted": ("False", no), "Ready": ("False", no), "Stalled": ("True", no)}
    assert "spec.activeDeadlineSeconds: " in read_chain("odd")["status"]["conditions"][0]["message"]
    assert conditions("good")["Ready"] == ("True", "Ready")
    version = read_chain("odd")["metadata"]["resourceVersion"]
    await reconciler(cluster, database, owner=1, agents=("Only",)).reconcile(cluster.served.own)
    assert read_chain("odd")["metadata"]["resourceVersion"] == version

    change = '{"spec": {"activeDeadlineSeconds": 60}}'
    plane.kubectl("patch", "chain", "odd", "--type=merge", "--patch", change, namespace=cluster.served.own)
    await reconciler(cluster, database, owner=1, agents=("Only",)).reconcile(cluster.served.own)
    assert conditions("odd")["Ready"] == ("True", "Ready")
