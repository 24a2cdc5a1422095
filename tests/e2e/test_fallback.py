"""A real operator whose first provider brings no answer: the next one is asked, and the first one never again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import pytest
from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator, Process

LOOKUP = model.Call(name="tools__lookup", args={"name": "web-0"})


@pytest.fixture
async def first() -> AsyncIterator[model.Server]:
    """A provider that is asked before `scripted`."""
    async with model.serve() as server:
        yield server


def chain(**spec: Any) -> dict[str, Any]:
    return manifests.chain(llmProvider="first", fallbackProviders=["scripted"], **spec)


async def transcript(process: Process, manifest: dict[str, Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events and the model calls of an investigation."""
    uid = manifest["metadata"]["uid"]
    _, page = await process.request("GET", f"/api/v1/investigations/{uid}/timeline?limit=500")
    _, read = await process.request("GET", f"/api/v1/investigations/{uid}/export")
    return page["events"], read["llm_interactions"]


async def test_another_provider_goes_on_with_the_conversation_and_without_the_states_of_the_first(
    operator: Operator, llm: model.Server, first: model.Server
) -> None:
    def dies(model_call: model.Turn) -> model.Reply:
        if model_call.iteration == 0:
            return model.Answer(calls=(LOOKUP,), thoughts="I look.")
        return model.HttpError(status=401, message="the key was revoked")

    first.script = dies
    llm.script = lambda _: model.Answer(text="web-0 exists [tool 0.0]")
    process = await operator.start(providers={"first": {"base_url": first.url, "model": "gemini-2.5-pro"}})
    await operator.apply(chain(), manifests.investigation())
    manifest = (await operator.finished("web-crash"))["web-crash"]
    assert (manifest["status"]["phase"], manifest["status"]["finalAnalysis"]) == (
        "Completed",
        "web-0 exists [tool 0.0]",
    )
    assert (len(first.requests), len(llm.requests)) == (2, 1)

    failed, (asked,) = first.requests[1], llm.requests
    assert "thoughtSignature" in json.dumps(failed.body["contents"][1])
    (signed,) = [part["thoughtSignature"] for part in failed.body["contents"][1]["parts"] if "functionCall" in part]
    assert signed not in json.dumps(asked.body)
    assert [content["role"] for content in asked.body["contents"]] == ["user", "model", "user"]
    assert asked.body["contents"][0] == failed.body["contents"][0]

    events, calls = await transcript(process, manifest)
    (fell_back,) = [event for event in events if event["type"] == "provider_fallback"]
    assert [fell_back["metadata"][key] for key in ("from", "to", "kind")] == ["first", "scripted", "fatal"]
    assert "the key was revoked" in fell_back["content"]
    assert [(call["turn"], call["provider"], call["model"], call["failure"]) for call in calls] == [
        (0, "first", "gemini-2.5-pro", None),
        (1, "first", "gemini-2.5-pro", "fatal"),
        (1, "scripted", "gemini-2.5-flash", None),
    ]
    await process.stop()


async def test_successor_after_a_takeover_stays_with_the_provider_asked_last(
    operator: Operator, llm: model.Server, first: model.Server
) -> None:
    first.script = lambda _: model.HttpError(status=503, retry_after=0)

    def hangs_once(model_call: model.Turn) -> model.Reply:
        if model_call.iteration == 0:
            return model.Answer(calls=(LOOKUP,))
        return model.Hang() if model_call.repeats == 0 else model.Answer(text="web-0 exists")

    llm.script = hangs_once
    providers = {"first": {"base_url": first.url}}
    process = await operator.start(providers=providers)
    await operator.apply(chain(), manifests.investigation())
    await llm.wait_for(lambda _: llm.requests_of(iteration=1))
    await process.kill()
    await operator.let_leases_pass()
    assert len(first.requests) == 4, "three times again, since another one was left"
    successor = await operator.start(providers=providers)
    manifest = (await operator.finished("web-crash"))["web-crash"]
    assert (manifest["status"]["phase"], manifest["status"]["attempts"]) == ("Completed", 2)
    assert len(first.requests) == 4
    assert [request.iteration for request in llm.requests] == [0, 1, 1]
    events, calls = await transcript(successor, manifest)
    assert [event["type"] for event in events].count("provider_fallback") == 1
    assert [len(call["failed_requests"]) for call in calls] == [4, 0, 0]
    assert {attempt["provider"] for attempt in calls[0]["failed_requests"]} == {"first"}
    await successor.stop()
