"""What two processes say of themselves and of one another: who is there, servers, providers, queue, configuration."""

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


async def told(process: Process, path: str, ready: Callable[[Any], bool]) -> Any:
    """What the API answers at `path` once it is as wanted."""
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
    conditions = [(chain["name"], one) for chain in chains["items"] for one in chain["conditions"]]
    return {name: one["status"] for name, one in conditions if one["type"] == "MCPServersReachable"}


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

        both = await told(first, f"{SYSTEM}queue", lambda found: found["slots"] == 57)
        assert [place["slots"] for place in both["processes"]] in ([7, 50], [50, 7])
        servers = await told(
            first,
            f"{SYSTEM}mcp-servers",
            lambda found: (
                [(one["state"], len(one["processes"])) for one in found["items"]]
                == [("connected", 2), ("unreachable", 2), ("connected", 2)]
            ),
        )
        assert [one["name"] for one in servers["items"]] == ["helper", "kubernetes-server", "tools"]
        reads = {tool["name"]: tool["read_only"] for tool in servers["items"][0]["tools"]}
        assert (reads["lookup"], reads["restart"], reads["unannotated"]) == (True, False, False)
        since = servers["items"][0]["since"]

        await operator.apply(manifests.investigation())
        await operator.finished()
        providers = await told(
            first, f"{SYSTEM}providers", lambda found: any(one["state"] == "answering" for one in found["items"])
        )
        (scripted,) = (one for one in providers["items"] if one["name"] == "scripted")
        assert (scripted["state"], scripted["base_url"], scripted["model"]) == (
            "answering",
            llm.url,
            "gemini-2.5-flash",
        )
        configurations = (await told(first, f"{SYSTEM}config", lambda found: found["total"] == 2))["items"]
        assert {one["written"]["queue"].get("slots") for one in configurations} == {None, 7}
        transports = [one["written"]["mcp_servers"]["kubernetes-server"]["transport"] for one in configurations]
        assert [one["env"] for one in transports] == [named, named], "as the file has it, before variables are put in"
        types = await told(first, "/api/v1/alert-types", lambda found: found["total"] == 3)
        assert [(one["alert_type"], one["chain_name"], one["ready"], one["reason"]) for one in types["items"]] == [
            ("kubernetes", "kubernetes", True, ""),
            ("other", "broken", False, "ReferenceNotFound"),
            ("third", "helped", True, ""),
        ]
        chains = await told(first, f"{SYSTEM}chains", lambda found: all(one["conditions"] for one in found["items"]))
        await told(first, f"{SYSTEM}chains", lambda found: reached(found) == {"helped": "True", "kubernetes": "True"})
        assert [one["name"] for one in chains["items"]] == ["broken", "helped", "kubernetes"]
        assert chains["items"][2]["stages"] == [{"name": "analysis", "agents": ["KubernetesAgent"]}]

    # The helper is gone.
    lost = await told(first, f"{SYSTEM}mcp-servers", lambda found: found["items"][0]["state"] == "unreachable")
    assert lost["items"][0]["since"] > since
    await told(first, f"{SYSTEM}chains", lambda found: reached(found) == {"helped": "False", "kubernetes": "True"})
    warnings = await told(
        first,
        f"{SYSTEM}warnings",
        lambda found: ("mcp-server", "helper") in {kind_and_name(one) for one in found["items"]},
    )
    assert {kind_and_name(one) for one in warnings["items"]} == {
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
    assert {name: found["state"] for name, found in health["mcp_servers"].items()} == {
        "helper": "unreachable",
        "kubernetes-server": "unreachable",
        "tools": "connected",
    }
    assert health["providers"].keys() == {"scripted"}

    # What was written into the file where secrets may be is nowhere.
    kept = await queue.rows(database, "SELECT CAST(catalogue AS text) FROM catalogue")
    answers = [await first.request("GET", f"{SYSTEM}{path}") for path in ("config", "mcp-servers", "warnings")]
    assert CANARY not in f"{kept} {answers} {health}"

    # One that is killed is there until it has not been seen for 30 s; one that stops is gone at once.
    await second.kill()
    assert len((await told(first, f"{SYSTEM}queue", lambda _: True))["processes"]) == 2
    await queue.execute(
        database,
        "UPDATE catalogue SET seen_at = seen_at - interval '31 seconds' "
        "WHERE process = (SELECT process FROM catalogue WHERE kind = 'process' AND detail ->> 'slots' = '7')",
    )
    await told(first, f"{SYSTEM}queue", lambda found: len(found["processes"]) == 1)
    await told(first, f"{SYSTEM}config", lambda found: found["total"] == 1)
    await first.stop()
    assert await queue.rows(database, "SELECT count(DISTINCT process) FROM catalogue") == [(1,)]


def kind_and_name(warning: dict[str, Any]) -> tuple[str, str]:
    return warning["kind"], warning["name"]
