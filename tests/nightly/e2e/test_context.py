"""Three hundred long results in a real operator, against a model that refuses more than it takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from support import manifests
from tarsy_dev import mcp_server, model

if TYPE_CHECKING:
    from support.operators import Operator, Process

TAKES = 128_000
LENGTH = 20_000
TURNS = {"known": (5, 100, 20, 5, 5, 5, 60, 100), "unknown": (5, 70, 20, 5)}
"""Calls of each turn; a hundred results are four times what the model takes."""
ALERT = "web-0 restarts, says the alert"


def looking(turn: model.Turn) -> model.Answer:
    turns = TURNS[turn.key.investigation.rpartition("/")[2]]
    if turn.iteration == len(turns):
        return model.Answer(text="It is the memory.")
    calls = [model.Call(name="tools__flood", args={"size": LENGTH}) for _ in range(turns[turn.iteration])]
    return model.Answer(calls=model.keyed(turn, calls))


def results(request: model.Request) -> list[str]:
    """What the last turn's tools showed."""
    parts = request.body["contents"][-1]["parts"]
    return [part["functionResponse"]["response"]["output"] for part in parts if "functionResponse" in part]


def shown(text: str) -> int:
    return text.count("all work and no play")


async def read(process: Process, found: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The transcript, and what the timeline tells of compaction."""
    path = f"/api/v1/investigations/{found['metadata']['uid']}"
    _, transcript = await process.request("GET", f"{path}/export")
    told: list[dict[str, Any]] = []
    page = {"last": 0, "more": True}
    while page["more"]:
        _, page = await process.request("GET", f"{path}/timeline?after={page['last']}")
        told += page["events"]
    return transcript, [event for event in told if event["type"] == "context_compacted"]


def check(requests: Sequence[model.Request], turns: Sequence[int]) -> None:
    """Each holds alert and last turn: all results, whole where they fit together, and a good piece of each else."""
    for request in requests:
        first = request.body["contents"][0]["parts"][0]["text"]
        assert ALERT in first
        if request.iteration:
            number = turns[request.iteration - 1]
            least = LENGTH / 21 - 1 if number <= 10 else LENGTH / 21 / 20
            assert [shown(text) >= least for text in results(request)] == [True] * number, request.iteration


async def test_three_hundred_long_results_end_well_whether_or_not_it_is_known_what_the_model_takes(
    operator: Operator, llm: model.Server, toolbox: mcp_server.Server
) -> None:
    llm.script = model.limited(looking, TAKES)
    many = {"tool_calls": 1000, "one_tool_calls": 1000}
    process = await operator.start(providers={"narrow": {"context_tokens": TAKES}}, limits=many)
    chains = [
        manifests.chain(name, name=name, stages=[manifests.stage("analysis", llmProvider=provider)])
        for name, provider in (("known", "narrow"), ("unknown", "scripted"))
    ]
    asked = [manifests.investigation(name, alertType=name, alertData=ALERT) for name in ("known", "unknown")]
    await operator.apply(*chains, *asked)
    found = await operator.finished("known", "unknown")
    assert {one["status"]["phase"] for one in found.values()} == {"Completed"}
    assert len(toolbox.calls) == sum(map(sum, TURNS.values())) == 400

    known, unknown = (llm.of(investigation=f"{operator.namespace}/{name}") for name in ("known", "unknown"))
    assert [request.status for request in known] == [200] * (len(TURNS["known"]) + 1), "what is known is not tried"
    refused = [request for request in unknown if request.status == 400]
    assert 1 <= len(refused) <= 3 * len(TURNS["unknown"])
    check(known, TURNS["known"])
    check([request for request in unknown if request.status == 200], TURNS["unknown"])

    read_all = await asyncio.gather(*(read(process, one) for one in found.values()))
    for name, (transcript, told) in zip(found, read_all, strict=True):
        whole = [message["text"] for message in transcript["messages"] if message["role"] == "tool"]
        assert [len(text) for text in whole] == [LENGTH] * sum(TURNS[name]), "the transcript keeps them"
        given = list(itertools.chain.from_iterable(event["metadata"]["results"] for event in told))
        assert len(given) == len(set(given)) >= sum(TURNS[name]) / 2
        assert any(event["metadata"]["cut"] for event in told)
        failures = [call for call in transcript["llm_interactions"] if call["failure"]]
        assert len(failures) == (len(refused) if name == "unknown" else 0)
        assert all("exceeds the maximum number of tokens" in call["failure_text"] for call in failures)
        assert found[name]["status"]["usage"]["llmCalls"] == len(TURNS[name]) + 1 + len(failures)
    await process.stop()
