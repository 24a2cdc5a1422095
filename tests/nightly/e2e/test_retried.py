"""Requests to a provider that are sent again, by all that asks models: told, and readable wherever people read."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import aiohttp
from support import manifests
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process

BUSY = model.HttpError(status=503, message="over capacity \u202e\x1b[31m| now")
LOOK = model.Answer(calls=(model.Call(name="tools__lookup"),))
CHAIN = manifests.chain(
    stages=[manifests.stage("analysis", replicas=2)], executiveSummary={"enabled": True}, chat={"enabled": True}
)


def once_busy(turn: model.Turn) -> model.Reply:
    """Refuse each request that comes for the first time."""
    if turn.repeats == 0:
        return BUSY
    return LOOK if turn.kind == "agent" and turn.iteration == 0 else model.Answer(text=f"the word of {turn.kind}")


async def read(process: Process, path: str) -> str:
    headers = {"Authorization": f"Bearer {process.editor}"}
    async with aiohttp.ClientSession() as session, session.get(f"{process.url}{path}", headers=headers) as response:
        assert response.status == 200, path
        return await response.text()


async def answered(process: Process, url: str) -> None:
    """Wait until the first question has been answered."""
    async with patience.limit():
        while True:
            _, found = await process.request("GET", url)
            if found["runs"][1]["ending"]:
                assert found["runs"][1]["ending"] == "Completed"
                return


async def test_retries_of_agents_synthesis_summary_and_question_are_told_and_readable_everywhere(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = once_busy
    process = await operator.start()
    await operator.apply(CHAIN, manifests.investigation())
    found = (await operator.finished("web-crash"))["web-crash"]
    assert (found["status"]["phase"], found["status"].get("message")) == ("Completed", None), "none is shown any more"
    uid = found["metadata"]["uid"]
    url = f"/api/v1/investigations/{uid}"
    status, _ = await process.request("POST", f"{url}/chat", body=json.dumps({"question": "why?"}).encode())
    assert status == 202
    await answered(process, url)

    _, page = await process.request("GET", f"{url}/timeline?limit=500")
    retries = [event for event in page["events"] if event["type"] == "model_retry"]
    assert {event["metadata"]["code"] for event in retries} == {"503"}
    assert sorted(Counter(event["execution"] for event in retries).values()) == [1, 1, 1, 2, 2]
    sessions = ("/api/v1/history/sessions", f"/api/v1/sessions/{uid}", f"/api/v1/history/sessions/{uid}")
    for path in (f"{url}/export?format=markdown", f"{url}/export", f"{url}/trace", f"{url}/messages", *sessions):
        assert "\x1b" not in await read(process, path)
    await process.stop()
