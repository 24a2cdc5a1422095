"""Strangers who may create investigations, API processes that die half way, and two that are told the same."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import aiohttp
import pytest
from support import audits, manifests
from support.strangers import NAME, notify, objects, stranger
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

WITHOUT_TOOLS = manifests.stage("analysis", mcpServers=[])
"""So that each run is one request."""


async def test_the_watch_repairs_what_an_api_process_left_behind_and_it_stands_for_its_alert(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    await operator.apply(manifests.chain(stages=[WITHOUT_TOOLS]), stranger(suspend=True))
    dies = await operator.start(role="api", env={"TARSY_FAILPOINTS": "intake.create.after=exit@2"})
    with pytest.raises(aiohttp.ClientError):
        await notify(dies)  # at the second: the first found that a stranger has the name
    await dies.ended()
    (name,) = set(await objects(operator)) - {NAME}
    process = await operator.start()
    await operator.finished(name)
    assert await notify(process) == ("repeated", name)
    assert await notify(process, started="2026-11-21T21:00:00Z") == ("repeated", name)
    assert len(llm.requests) == 1
    assert await audits.audit_rows(operator.database_url) == [audits.row("create", name)]


@pytest.mark.parametrize("taken", [False, True], ids=["the name is free", "a stranger has the name"])
@pytest.mark.parametrize("point", ["before", "after"])
async def test_the_same_notification_to_two_processes_at_once_is_one_object_and_one_run(
    operator: Operator, llm: model.Server, *, point: str, taken: bool
) -> None:
    """The first is stopped where it is about to create the object, or has just done so; the second passes it."""
    llm.script = model.answers("root cause")
    await operator.apply(manifests.chain(stages=[WITHOUT_TOOLS]), *([stranger(suspend=True)] if taken else []))
    hit = 2 if taken and point == "after" else 1
    first = await operator.start(role="api", env={"TARSY_FAILPOINTS": f"intake.create.{point}=stop@{hit}"})
    second = await operator.start()
    waiting = asyncio.create_task(notify(first))
    await first.stopped()
    _, name = outcome = await notify(second)
    assert outcome == ("created" if point == "before" else "repeated", name)
    await operator.finished(name)
    first.send(signal.SIGCONT)
    assert await waiting == ("repeated" if point == "before" else "created", name)
    assert set(await objects(operator)) == ({name, NAME} if taken else {NAME})
    assert await notify(first) == ("repeated", name)
    assert len(llm.requests) == 1


async def test_a_stranger_who_guesses_an_idempotency_key_swallows_no_alert(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(manifests.chain(stages=[WITHOUT_TOOLS]))
    body = json.dumps({"alert_type": "kubernetes", "data": "web-0 restarts"}).encode()

    async def post() -> str:
        status, answer = await process.request(
            "POST", "/api/v1/alerts", body=body, headers={"Idempotency-Key": "deploy-17"}
        )
        assert status == 202
        return str(answer["name"])

    name = await post()
    await operator.finished(name)
    await operator.kubectl("delete", "inv", name)
    await operator.apply(manifests.investigation(name, suspend=True, source={"type": "api"}))
    again = await post()
    assert again.startswith(f"{name}-")
    await operator.finished(again)
    assert await post() == again
