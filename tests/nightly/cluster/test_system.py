"""Pages of the API about TARSy itself, with everything there and with one part after the other away."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest
from support import apis, queue
from tarsy.kube import client, discovery
from tarsy.probes import health
from tarsy.store.base import databases, schema
from tarsy.store.fleet import reporter
from tarsy.store.queue import work
from tarsy.telemetry import component_states
from tarsy_dev import patience, proxy
from tarsy_dev import postgres as launcher

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SYSTEM = "/api/v1/system"
OTHERS = [f"{SYSTEM}/{name}" for name in ("mcp-servers", "providers", "queue", "config", "warnings", "storage")]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer to answer than a probe waits."""
    for module in (discovery, schema):
        monkeypatch.setattr(module, "PING_SECONDS", 60.0)


def serving(
    cluster: client.Cluster, database: databases.Database, process_reporter: reporter.Reporter | None = None
) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientSession]:
    """A client of an API that needs no token."""
    return apis.served(apis.parts(cluster=cluster, database=database, process_reporter=process_reporter), headers=JSON)


async def get(session: aiohttp.ClientSession, path: str, *, status: int = 200) -> Any:
    async with patience.limit(), session.get(path) as response:
        answer = await response.json(content_type=None)
        assert (path, response.status) == (path, status), answer
        return answer


def fact(
    kind: component_states.Kind, name: str, state: str, *, minute: int = 0, **detail: Any
) -> component_states.ComponentState:
    return component_states.ComponentState(
        kind=kind,
        name=name,
        state=state,
        since=NOON + timedelta(minutes=minute),
        detail=component_states.decode(kind, detail),
    )


def server(
    name: str, state: str, *, minute: int = 0, problem: str = "", missing: str = ""
) -> component_states.ComponentState:
    return fact("server", name, state, minute=minute, problem=problem, missing=missing, tools=1)


def provider(name: str, state: str, *, minute: int = 0, **detail: Any) -> component_states.ComponentState:
    limits = {"requests_per_minute": 5, "tokens_per_minute": None, "context_tokens": None}
    written = {"type": "openai", "model": "m", "base_url": "http://m.example", "price": {"input": 1, "output": 2}}
    details = {**written, "limits": limits, "named": True, "problem": "", "failure": None, **detail}
    return fact("provider", name, state, minute=minute, **details)


def process(
    database: databases.Database, host: str, *facts: component_states.ComponentState, slots: int = 0
) -> reporter.Reporter:
    process_reporter = apis.keeping(database, host=host, slots=slots)

    def recorded_states() -> Iterator[component_states.ComponentState]:
        yield from facts

    process_reporter.add_source(recorded_states)
    return process_reporter


async def test_states_of_processes_are_listed_by_name_and_the_worst_first(
    cluster: client.Cluster, database: databases.Database
) -> None:
    tools = fact(
        "tools", "kube", "listed", tools=[{"name": "get", "description": "Gets.", "read_only": True, "hash": ""}]
    )
    first = process(
        database,
        "a",
        server("kube", "connected", minute=3),
        server("prom", "unreachable", minute=5, problem="cannot be reached: refused"),
        server("spare", "connected", missing="has 2 tools that are left out, because of their names"),
        provider("google", "answering", minute=1),
        provider("openai", "usable", minute=1),
        provider("unnamed", "unusable", named=False, problem="no key"),
        fact("watch", "tarsy", "open"),
        fact("configuration", "platform", "d1", written={"queue": {"slots": 5}}),
        tools,
        slots=5,
    )
    second = process(
        database,
        "b",
        server("kube", "connected", minute=9),
        server("prom", "unreachable", minute=2, problem="cannot be reached: refused"),
        provider("google", "failing", minute=2, failure={"kind": "fatal", "code": "401"}),
        provider("openai", "answering", minute=7),
        fact("watch", "tarsy", "cut", minute=4),
        fact("configuration", "platform", "d2", written={"queue": {"slots": 3}}),
        slots=3,
    )
    for process_reporter in (first, second):
        await process_reporter.report()
    async with serving(cluster, database) as session:
        servers = {listed["name"]: listed for listed in (await get(session, f"{SYSTEM}/mcp-servers"))["items"]}
        assert list(servers) == ["kube", "prom", "spare"]
        assert {name: (listed["state"], listed["since"][11:16]) for name, listed in servers.items()} == {
            "kube": ("connected", "12:09"),
            "prom": ("unreachable", "12:02"),
            "spare": ("connected", "12:00"),
        }
        assert servers["kube"]["tools"] == list(component_states.encode(tools.detail)["tools"])
        assert [state["host"] for state in servers["kube"]["processes"]] == ["a", "b"]
        providers = {listed["name"]: listed for listed in (await get(session, f"{SYSTEM}/providers"))["items"]}
        assert {name: (listed["state"], listed["since"][11:16]) for name, listed in providers.items()} == {
            "google": ("failing", "12:02"),
            "openai": ("answering", "12:07"),
            "unnamed": ("unusable", "12:00"),
        }
        assert providers["google"]["processes"][1]["failure"] == "fatal"
        assert providers["google"]["processes"][1]["failure_code"] == "401"
        assert providers["google"]["limits"]["requests_per_minute"] == 5
        configurations = await get(session, f"{SYSTEM}/config")
        assert [
            (configuration["digest"], configuration["written"]["queue"]["slots"])
            for configuration in configurations["items"]
        ] == [
            ("d1", 5),
            ("d2", 3),
        ]
        warnings = (await get(session, f"{SYSTEM}/warnings"))["items"]
        assert [(warning["kind"], warning["name"], warning["message"]) for warning in warnings] == [
            ("configuration", "processes", "processes differ in their configuration: d1: a; d2: b"),
            ("mcp-server", "prom", "a: it cannot be reached: refused"),
            ("mcp-server", "prom", "b: it cannot be reached: refused"),
            ("mcp-server", "spare", "a: it has 2 tools that are left out, because of their names"),
            ("provider", "google", "b: the last call to it failed (fatal, 401)"),
            ("watch", "tarsy", "b: the watch of the cluster is cut: changes there are noticed later"),
        ]
        report = await get(session, "/health")
        assert (report["status"], report["database"]["state"]) == ("degraded", "answering")
        assert (report["watch"]["state"], report["watch"]["since"][11:16]) == ("cut", "12:04")
        assert (report["workers"]["state"], report["workers"]["live"], report["workers"]["slots"]) == ("present", 2, 8)
        states = {
            name: component["state"]
            for part in ("mcp_servers", "providers")
            for name, component in report[part].items()
        }
        assert states == {
            "kube": "connected",
            "prom": "unreachable",
            "spare": "connected",
            "google": "failing",
            "openai": "answering",
        }
        without_times = re.sub(r'"\d{4}-\d\d-\d\dT[^"]*"', "", json.dumps(report))  # a time may have any digits
        assert not any(word in without_times for word in ("refused", "example", "401", "key", "host", "127.0.0.1"))


async def test_queue_page_reports_counts(cluster: client.Cluster, database: databases.Database) -> None:
    worker = process(database, "a", slots=5)
    await worker.report()
    for number in range(7):
        await queue.admit(database, queue.subject(f"inv-{number}"))
    claims = [await queue.claim(database, owner=worker.process) for _ in range(2)]
    assert claims[0]
    assert claims[1]
    await work.cancel(database, claims[0].investigation, why="user")
    unreadable = await queue.claimed(database)
    await work.release(database, unreadable, unreadable="entry 3 (kind 'Pondered') cannot be read", build=queue.BUILD)
    lost = await queue.claimed(database)
    await queue.execute(
        database, "UPDATE work SET lease_until = clock_timestamp() WHERE investigation = :id", id=lost.investigation
    )
    await queue.execute(
        database,
        "UPDATE work SET suspend = true WHERE investigation = (SELECT id FROM investigations WHERE name = 'inv-6')",
    )
    await queue.execute(
        database,
        "UPDATE work SET queued_at = queued_at - interval '1 hour' WHERE investigation ="
        " (SELECT id FROM investigations WHERE name = 'inv-5')",
    )
    here = cluster.served.own
    await queue.execute(database, "UPDATE investigations SET namespace = :here WHERE name = 'inv-2'", here=here)
    async with serving(cluster, database) as session:
        queue_state = await get(session, f"{SYSTEM}/queue")
        numbers = ("queued", "running", "cancelling", "suspended", "waiting_for_version", "slots", "max_queued")
        assert [queue_state[name] for name in numbers] == [3, 2, 1, 1, 1, 5, 10_000]
        assert 3600 <= queue_state["oldest_wait_seconds"] < 3660
        assert queue_state["processes"] == [{"process": str(worker.process), "host": "a", "running": 2, "slots": 5}]
        (log,) = (await get(session, f"{SYSTEM}/warnings"))["items"]
        assert (log["kind"], log["name"]) == ("log", f"{here}/inv-2")
        assert log["message"].endswith("entry 3 (kind 'Pondered') cannot be read")


async def test_health_without_database_reports_own_state_of_the_process_and_its_time(
    migrated_url: str, postgres: launcher.Access, cluster: client.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    async with proxy.serve("127.0.0.1", postgres.port) as between:
        database = databases.Database(migrated_url.replace(f":{postgres.port}/", f":{between.port}/"))
        own = process(database, "a", server("kube", "connected", minute=3), slots=5)
        await own.report()
        async with serving(cluster, database, own) as session:
            assert (await get(session, "/health"))["database"]["state"] == "answering"
            between.refuse()
            between.cut()
            report = await get(session, "/health", status=503)
            assert (report["status"], report["database"]["state"]) == ("down", "away")
            assert report["mcp_servers"]["kube"]["state"] == "connected"
            assert report["workers"]["slots"] == 5
            assert (await get(session, "/health", status=503))["database"] == report["database"]
            for path in OTHERS:
                await get(session, path, status=503)
            between.accept()
            assert (await get(session, "/health"))["database"]["since"] > report["database"]["since"]
        await database.close()
