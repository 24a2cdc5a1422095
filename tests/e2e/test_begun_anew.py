"""Alerts whose investigation failed, as Alertmanager and people meet them: counted, then investigated anew."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from support import manifests
from support.failed_alerts import NAME, named, notify, outcome, pass_time, refuse
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

CHAIN = manifests.chain(stages=[manifests.stage("analysis", mcpServers=[])])

COOLDOWN = timedelta(minutes=5)


async def test_failed_alert_is_counted_for_its_cool_down_then_investigated_anew_and_linked(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = refuse
    process = await operator.start()
    await operator.apply(CHAIN)
    assert await outcome(process) == ("created", NAME)
    first = (await operator.finished(NAME))[NAME]
    assert first["status"]["phase"] == "Failed"
    repeated = await notify(process)
    assert (repeated["outcome"], repeated["name"]) == ("repeated", NAME)
    assert repeated["reason"].startswith("its investigation came to nothing: the first firing notification after 20")

    await pass_time(operator, COOLDOWN)
    llm.script = model.answers("root cause")
    assert await outcome(process) == ("created", named(2))
    second = (await operator.finished(named(2)))[named(2)]
    former = {"name": NAME, "uid": first["metadata"]["uid"]}
    assert (second["status"]["phase"], second["status"]["previous"]) == ("Completed", former)
    _, investigation = await process.request("GET", f"/api/v1/investigations/{second['metadata']['uid']}")
    assert investigation["previous"] == {"id": former["uid"], "name": NAME}
    _, listed = await process.request("GET", "/api/v1/investigations?sort=admitted_at")
    assert [listed_item["previous"] for listed_item in listed["items"]] == [None, {"id": former["uid"], "name": NAME}]

    await pass_time(operator, timedelta(days=2))
    assert await outcome(process) == ("repeated", named(2)), "it has a result"
    assert await outcome(process, "resolved") == ("resolved", named(2))
