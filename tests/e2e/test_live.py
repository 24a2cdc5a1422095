"""Live view of an operator's own processes, from the first word of an answer to the end."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from support import apis, manifests, watching
from tarsy_dev import model, patience
from websockets import exceptions

if TYPE_CHECKING:
    from support.operators import Operator, Process

CHAIN = manifests.chain(stages=[manifests.stage("look")])
WRITTEN = "It is memory: the container was killed by the kernel, again and again."


async def admitted(operator: Operator, process: Process, name: str = "web-crash") -> str:
    """Make an investigation; its uid, once it can be read."""
    await operator.apply(manifests.investigation(name))
    manifest = json.loads(await operator.kubectl("get", "inv", name, "-o", "json"))
    uid = str(manifest["metadata"]["uid"])
    async with patience.limit():
        while (await process.request("GET", f"/api/v1/investigations/{uid}"))[0] != 200:
            pass  # the look itself gives way to the others
    return uid


async def timeline(process: Process, uid: str) -> dict[str, Any]:
    status, page = await process.request("GET", f"/api/v1/investigations/{uid}/timeline")
    assert (status, page["more"]) == (200, False)
    return {event["id"]: event for event in page["events"]}


async def test_watcher_sees_an_answer_grow_and_the_end_and_learns_of_a_stop(
    operator: Operator, llm: model.Server
) -> None:
    await operator.apply(CHAIN)
    llm.script = lambda _call: model.Answer(thoughts="Hm.", text=WRITTEN, chunk=4, delay=0.1)
    process = await operator.start()
    headers = apis.bearer(process.editor)
    async with watching.watching(process.url, headers=headers) as watcher:
        assert (await watcher.answer(action="subscribe", channel="investigations"))["type"] == "subscription.confirmed"
        uid = await admitted(operator, process)
        await watcher.ask(action="subscribe", channel=f"investigation:{uid}")
        seen = watching.Seen()
        while len({event["channel"] for event in watcher.messages if event["type"] == "investigation.completed"}) < 2:
            message = await watcher.next()
            if message.get("channel") == f"investigation:{uid}":
                seen.take(message)
        assert seen.events == await timeline(process, uid)
        assert [event["phase"] for event in watcher.messages if event["type"] == "investigation.completed"] == [
            "Completed"
        ] * 2
        stopping = asyncio.create_task(process.stop())
        with pytest.raises(exceptions.ConnectionClosed):
            await watcher.until(lambda _: False)
        assert (await watcher.closed())[0] == 1012
        await stopping


async def test_watcher_at_one_process_sees_writes_of_another_and_of_its_successor(
    operator: Operator, llm: model.Server
) -> None:
    await operator.apply(CHAIN)
    llm.script = lambda _call: model.Hang(after=5, answer=model.Answer(text=WRITTEN, chunk=4))
    api = await operator.start(role="api")
    await operator.start(role="controller")
    first = await operator.start(role="worker")
    uid = await admitted(operator, api)
    headers = apis.bearer(api.editor)
    async with (
        watching.watching(api.url, headers=headers) as early,
        watching.watching(api.url, headers=headers) as late,
    ):
        seen, later = watching.Seen(), watching.Seen()

        def taking(message: dict[str, Any], by: watching.Seen) -> str:
            by.take(message)
            return str(next((event["content"] for event in by.events.values() if event["status"] == "streaming"), ""))

        await early.ask(action="subscribe", channel=f"investigation:{uid}")
        await early.until(lambda message: taking(message, seen) == WRITTEN[:20])
        await late.ask(action="subscribe", channel=f"investigation:{uid}")
        await late.until(lambda message: taking(message, later) == WRITTEN[:20])
        (begun,) = seen.events
        await first.kill()
        await operator.let_leases_pass()
        llm.script = lambda _call: model.Answer(text="It is the disk.", chunk=4, delay=0.1)
        await operator.start(role="worker")
        for watcher, own in ((early, seen), (late, later)):
            for message in await watcher.until_type("investigation.completed"):
                own.take(message)
            assert own.events == await timeline(api, uid)
            assert own.events[begun]["content"] == "It is the disk.", "under the id that it began with"
