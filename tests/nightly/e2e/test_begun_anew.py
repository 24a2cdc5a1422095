"""Alerts whose investigation failed, as Alertmanager and people meet them: counted, then investigated anew."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from support import manifests, waiting
from support.failed_alerts import NAME, named, notify, outcome, pass_time, refuse
from tarsy_dev import children, mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator

CHAIN = manifests.chain(stages=[manifests.stage("analysis", mcpServers=[])])

BROKEN = manifests.chain(stages=[manifests.stage("analysis", agent="Nobody")])

COOLDOWN = timedelta(minutes=5)

LOOK = model.Answer(calls=(model.Call(name="tools__lookup"),))


async def objects(operator: Operator) -> dict[str, Any]:
    items = json.loads(await operator.kubectl("get", "inv", "-o", "json"))["items"]
    return {manifest["metadata"]["name"]: manifest for manifest in items}


async def test_failed_alert_is_counted_while_its_chain_is_not_ready_and_investigated_once_it_is(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(BROKEN)
    assert await outcome(process) == ("created", NAME)
    failed = (await operator.finished(NAME))[NAME]["status"]
    assert (failed["phase"], failed["conditions"][0]["reason"]) == ("Failed", "ChainNotReady")
    await pass_time(operator, timedelta(hours=1))
    repeated = await notify(process)
    assert (repeated["outcome"], repeated["name"]) == ("repeated", NAME)
    assert "Nobody" in repeated["reason"]
    await operator.kubectl("delete", "chain", "--all")
    repeated = await notify(process)
    assert (repeated["outcome"], repeated["name"]) == ("repeated", NAME)
    assert "No chain found" in repeated["reason"]
    await operator.apply(CHAIN)
    assert await outcome(process) == ("created", named(2))
    assert (await operator.finished(named(2)))[named(2)]["status"]["phase"] == "Completed"
    await waiting.seen(lambda: is_repeated(operator, times=2))


async def is_repeated(operator: Operator, *, times: int) -> bool:
    """Whether the status of the first one counts so many repeats: it is written behind the answers."""
    return bool((await objects(operator))[NAME]["status"].get("duplicates") == times)


async def test_repeats_of_a_failed_alert_are_counted_while_the_cluster_is_away(
    operator: Operator, llm: model.Server, unreachable: str
) -> None:
    llm.script = refuse
    process = await operator.start()
    await operator.apply(CHAIN)
    assert await outcome(process) == ("created", NAME)
    await operator.finished(NAME)
    apart = await operator.start(role="api", env={"KUBECONFIG": unreachable})
    assert await outcome(apart) == ("repeated", NAME)
    await apart.logged("action=not_looked_for")


async def test_alert_whose_server_was_away_is_investigated_anew_and_once_it_is_back_with_a_result_for_good(
    operator: Operator, llm: model.Server
) -> None:
    (port,) = children.free_ports(1)
    operator.configure(mcp_servers={"tools": {"transport": {"type": "http", "url": f"http://127.0.0.1:{port}/mcp"}}})
    llm.script = model.answers("a guess")
    process = await operator.start()
    await operator.apply(manifests.chain())
    assert await outcome(process) == ("created", NAME)
    first = (await operator.finished(NAME))[NAME]
    assert first["status"]["phase"] == "CompletedWithErrors"
    assert grounded(first) == ("False", "ServersAway")
    repeated = await notify(process)
    assert (repeated["outcome"], repeated["name"]) == ("repeated", NAME)
    assert repeated["reason"].startswith("its investigation came to nothing: the first firing notification after 20")

    await pass_time(operator, COOLDOWN)
    async with mcp_server.serve(port=port) as back:
        llm.script = model.answers(LOOK, "root cause")
        assert await outcome(process) == ("created", named(2))
        second = (await operator.finished(named(2)))[named(2)]
        assert len(back.calls) == 1
    assert (second["status"]["phase"], grounded(second)) == ("Completed", ("True", "Inspected"))
    assert second["status"]["previous"] == {"name": NAME, "uid": first["metadata"]["uid"]}
    for passed in (timedelta(0), COOLDOWN, timedelta(days=2)):
        await pass_time(operator, passed)
        repeated = await notify(process)
        assert (repeated["outcome"], repeated["name"], repeated["reason"]) == ("repeated", named(2), "")
    assert set(await objects(operator)) == {NAME, named(2)}


def grounded(manifest: dict[str, Any]) -> tuple[str, str]:
    (condition,) = [candidate for candidate in manifest["status"]["conditions"] if candidate["type"] == "Grounded"]
    return condition["status"], condition["reason"]
