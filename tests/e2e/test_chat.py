"""Questions about investigations that have ended, over HTTP: answered, stopped, and taken over."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from support import manifests, operators
from support.chats import QUESTION, ask, ended
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator, Process


async def found(operator: Operator, name: str) -> dict[str, Any]:
    return dict(json.loads(await operator.kubectl("get", "inv", name, "-o", "json")))


async def hanging(operator: Operator, llm: model.Server, process: Process, *, name: str = "web-crash") -> str:
    """Ask about a completed investigation what the model does not answer; its uid, once the model was asked."""
    llm.script = lambda _call: model.Answer(text="root cause")
    await operator.apply(manifests.investigation(name))
    uid = str((await operator.finished(name))[name]["metadata"]["uid"])
    llm.script = lambda _call: model.Hang()
    before = len(llm.requests)
    assert (await ask(process, uid))[0] == 202
    await llm.wait_for(lambda requests: len(requests) > before)
    return uid


def is_over(requests: Sequence[model.Request]) -> model.Request | None:
    return requests[-1] if requests[-1].end else None


@pytest.fixture
def answering(llm: model.Server) -> None:
    """A model that finds the cause, but not that of `failed`; it never ends with `cancelled`."""

    def script(model_call: model.Turn) -> model.Reply:
        if any(QUESTION in message.text for message in model_call.messages):
            return model.Answer(text="shop/web:broken")
        name = model_call.key.investigation.partition("/")[2]
        replies: dict[str, model.Reply] = {"failed": model.HttpError(status=400), "cancelled": model.Hang()}
        return replies.get(name, model.Answer(text="root cause"))

    llm.script = script


@pytest.mark.usefixtures("answering")
async def test_questions_are_answered_after_any_end_and_the_object_stays_as_it_is(
    operator: Operator, llm: model.Server
) -> None:
    process = await operator.start()
    names = ["completed", "failed", "cancelled"]
    await operator.apply(manifests.chain(), *map(manifests.investigation, names))
    hung = await llm.wait_for(
        lambda requests: [request for request in requests if "cancelled" in request.key.investigation]
    )
    assert hung
    first = await found(operator, "cancelled")
    assert (await ask(process, first["metadata"]["uid"]))[0] == 409, "it runs"
    await operator.kubectl("patch", "inv", "cancelled", "--type=merge", '--patch={"spec":{"cancel":true}}')
    before = await operator.finished(*names)
    phases = {name: manifest["status"]["phase"] for name, manifest in before.items()}
    assert phases == {"completed": "Completed", "failed": "Failed", "cancelled": "Cancelled"}
    for number in (1, 2):
        for name in names:
            uid = before[name]["metadata"]["uid"]
            status, asked = await ask(process, uid)
            named = {"id": uid, "namespace": operator.namespace, "name": name}
            assert (status, asked) == (202, named | {"run": number})
        for name in names:
            answer = await ended(process, before[name]["metadata"]["uid"], run=number)
            assert (answer["ending"], answer["final_analysis"]) == ("Completed", "shop/web:broken")
    assert {name: await found(operator, name) for name in names} == before, "not even written again"
    await process.stop()


async def test_a_question_ends_on_request_and_with_its_object(operator: Operator, llm: model.Server) -> None:
    process = await operator.start(lease=operators.NO_HEARTBEAT)
    await operator.apply(manifests.chain())
    uid = await hanging(operator, llm, process)
    assert (await ask(process, uid))[0] == 409
    status, stopped = await process.request("POST", f"/api/v1/investigations/{uid}/chat/cancel")
    assert (status, stopped["id"], stopped["run"], stopped["phase"]) == (202, uid, 1, "Cancelling")
    request = await llm.wait_for(is_over)
    assert request.end == "client closed"
    assert (await ended(process, uid, run=1))["message"] == "cancelled by request"
    assert (await process.request("POST", f"/api/v1/investigations/{uid}/chat/cancel"))[0] == 409

    before = len(llm.requests)
    assert (await ask(process, uid))[0] == 202
    await llm.wait_for(lambda requests: len(requests) > before)
    await operator.kubectl("delete", "inv", "web-crash")
    gone = await ended(process, uid, run=2)
    assert (gone["ending"], gone["reason"]) == ("Cancelled", "ObjectDeleted")
    assert (await llm.wait_for(is_over)).end == "client closed"
    assert (await ask(process, uid))[0] == 410
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}")
    assert (read["phase"], read["final_analysis"]) == ("Completed", "root cause")
    await process.stop()


async def test_open_question_of_a_killed_operator_is_answered_by_the_next_operator(
    operator: Operator, llm: model.Server
) -> None:
    killed = await operator.start()
    await operator.apply(manifests.chain())
    uid = await hanging(operator, llm, killed)
    await killed.kill()
    await operator.let_leases_pass()
    llm.script = lambda _call: model.Answer(text="shop/web:broken")
    process = await operator.start()
    answer = await ended(process, uid, run=1)
    assert (answer["ending"], answer["attempts"], answer["final_analysis"]) == ("Completed", 2, "shop/web:broken")
    status = (await found(operator, "web-crash"))["status"]
    assert (status["phase"], status["attempts"], status["finalAnalysis"]) == ("Completed", 1, "root cause")
    await process.stop()
