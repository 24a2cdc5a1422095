"""Reports of two processes on themselves and on one another: who is there, servers, providers, queue, configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import aiohttp
from support import manifests, queue
from tarsy.store.base import databases
from tarsy_dev import mcp_server, model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

SYSTEM = "/api/v1/system/"
CANARY = "canary-7f3a9b2c41"


async def await_answer(process: Process, path: str, ready: Callable[[Any], bool]) -> Any:
    """Return the answer of the API at `path` once it is as wanted."""
    answer: Any = None
    try:
        async with patience.limit():
            while True:
                status, answer = await process.request("GET", path)
                if status == 200 and ready(answer):
                    return answer
                await asyncio.sleep(0.1)
    except patience.TooLong as error:
        raise patience.TooLong(f"{error}: {path}: {json.dumps(answer)[:2000]}") from None


def reached(chains: Any) -> dict[str, str]:
    """Whether the servers of chains can be reached, as they say themselves."""
    conditions = [(chain["name"], condition) for chain in chains["items"] for condition in chain["conditions"]]
    return {name: condition["status"] for name, condition in conditions if condition["type"] == "MCPServersReachable"}


async def test_two_processes_say_how_they_stand_and_what_is_wrong(
    operator: Operator, llm: model.Server, database: databases.Database
) -> None:
    llm.script = model.answers("root cause")
    async with mcp_server.serve() as helper:
        named = {"TOKEN": "{{.CANARY}}"}
        args = [f"--key={CANARY}", CANARY, "{{.CANARY}}"]
        hidden = {"transport": {"type": "stdio", "command": "no-such-program", "args": args, "env": named}}
        operator.configure(
            mcp_servers={
                "helper": {"transport": {"type": "http", "url": f"{helper.url}?key={CANARY}"}},
                "kubernetes-server": hidden,
            }
        )
        first = await operator.start(env={"CANARY": CANARY})
        second = await operator.start(role="worker", queue={"slots": 7}, env={"CANARY": CANARY})
        await operator.apply(
            manifests.chain(),
            manifests.chain("other", name="broken", stages=[manifests.stage("analysis", agent="Nobody")]),
            manifests.chain("third", name="helped", stages=[manifests.stage("analysis", mcpServers=["helper"])]),
        )

        both = await await_answer(first, f"{SYSTEM}queue", lambda page: page["slots"] == 57)
        assert [process["slots"] for process in both["processes"]] in ([7, 50], [50, 7])
        servers = await await_answer(
            first,
            f"{SYSTEM}mcp-servers",
            lambda page: (
                [(server["state"], len(server["processes"])) for server in page["items"]]
                == [("connected", 2), ("unreachable", 2), ("connected", 2)]
            ),
        )
        assert [server["name"] for server in servers["items"]] == ["helper", "kubernetes-server", "tools"]
        reads = {tool["name"]: tool["read_only"] for tool in servers["items"][0]["tools"]}
        assert (reads["lookup"], reads["restart"], reads["unannotated"]) == (True, False, False)
        since = servers["items"][0]["since"]

        await operator.apply(manifests.investigation())
        await operator.finished()
        providers = await await_answer(
            first,
            f"{SYSTEM}providers",
            lambda page: any(provider["state"] == "answering" for provider in page["items"]),
        )
        (scripted,) = (provider for provider in providers["items"] if provider["name"] == "scripted")
        assert (scripted["state"], scripted["base_url"], scripted["model"]) == (
            "answering",
            llm.url,
            "gemini-2.5-flash",
        )
        configurations = (await await_answer(first, f"{SYSTEM}config", lambda page: page["total"] == 2))["items"]
        assert {configuration["written"]["queue"].get("slots") for configuration in configurations} == {None, 7}
        transports = [
            configuration["written"]["mcp_servers"]["kubernetes-server"]["transport"]
            for configuration in configurations
        ]
        assert [transport["env"] for transport in transports] == [named, named], (
            "as the file has it, before variables are put in"
        )
        types = await await_answer(first, "/api/v1/alert-types", lambda page: page["total"] == 3)
        assert [
            (alert_type["alert_type"], alert_type["chain_name"], alert_type["ready"], alert_type["reason"])
            for alert_type in types["items"]
        ] == [
            ("kubernetes", "kubernetes", True, ""),
            ("other", "broken", False, "ReferenceNotFound"),
            ("third", "helped", True, ""),
        ]
        chains = await await_answer(
            first, f"{SYSTEM}chains", lambda page: all(chain["conditions"] for chain in page["items"])
        )
        await await_answer(
            first, f"{SYSTEM}chains", lambda page: reached(page) == {"helped": "True", "kubernetes": "True"}
        )
        assert [chain["name"] for chain in chains["items"]] == ["broken", "helped", "kubernetes"]
        assert chains["items"][2]["stages"] == [{"name": "analysis", "agents": ["KubernetesAgent"]}]

    # The helper is gone.
    lost = await await_answer(first, f"{SYSTEM}mcp-servers", lambda page: page["items"][0]["state"] == "unreachable")
    assert lost["items"][0]["since"] > since
    await await_answer(
        first, f"{SYSTEM}chains", lambda page: reached(page) == {"helped": "False", "kubernetes": "True"}
    )
    warnings = await await_answer(
        first,
        f"{SYSTEM}warnings",
        lambda page: ("mcp-server", "helper") in {kind_and_name(warning) for warning in page["items"]},
    )
    assert {kind_and_name(warning) for warning in warnings["items"]} == {
        ("chain", "broken"),
        ("configuration", "processes"),
        ("mcp-server", "helper"),
        ("mcp-server", "kubernetes-server"),
    }
    async with aiohttp.ClientSession() as session, session.get(f"{first.url}/health") as response:
        health = await response.json()
        assert (response.status, health["status"]) == (200, "degraded")
    assert (health["database"]["state"], health["watch"]["state"]) == ("answering", "open")
    assert (health["workers"]["live"], health["workers"]["slots"]) == (2, 57)
    assert {name: server["state"] for name, server in health["mcp_servers"].items()} == {
        "helper": "unreachable",
        "kubernetes-server": "unreachable",
        "tools": "connected",
    }
    assert health["providers"].keys() == {"scripted"}

    # What was written into the file where secrets may be is nowhere.
    catalogue = await queue.rows(database, "SELECT CAST(catalogue AS text) FROM catalogue")
    answers = [await first.request("GET", f"{SYSTEM}{path}") for path in ("config", "mcp-servers", "warnings")]
    assert CANARY not in f"{catalogue} {answers} {health}"

    # One that is killed is there until it has not been seen for 30 s; one that stops is gone at once.
    await second.kill()
    assert len((await await_answer(first, f"{SYSTEM}queue", lambda _: True))["processes"]) == 2
    await queue.execute(
        database,
        "UPDATE catalogue SET seen_at = seen_at - interval '31 seconds' "
        "WHERE process = (SELECT process FROM catalogue WHERE kind = 'process' AND detail ->> 'slots' = '7')",
    )
    await await_answer(first, f"{SYSTEM}queue", lambda page: len(page["processes"]) == 1)
    await await_answer(first, f"{SYSTEM}config", lambda page: page["total"] == 1)
    await first.stop()
    assert await queue.rows(database, "SELECT count(DISTINCT process) FROM catalogue") == [(1,)]


def kind_and_name(warning: dict[str, Any]) -> tuple[str, str]:
    return warning["kind"], warning["name"]
