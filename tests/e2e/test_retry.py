"""An investigation that is run again from a stage on: it asks nothing of the earlier stages, also after kills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.retried_stages import STAGES, Investigator, half_failed, retry
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator


@pytest.fixture
def investigator(llm: model.Server) -> Investigator:
    llm.script = investigator = Investigator()
    return investigator


async def test_retry_from_a_stage_asks_nothing_of_the_earlier_one(
    operator: Operator, investigator: Investigator
) -> None:
    process = await operator.start()
    first = await half_failed(operator, process)
    investigator.asked.clear()
    investigator.is_mended = True

    answer = await retry(process, first["metadata"]["uid"], fromStage="analysis")
    objects = await operator.finished(answer["name"])
    again = objects[answer["name"]]
    assert investigator.asked == ["analysis", "analysis"]
    assert again["status"]["phase"] == "Completed"
    retry_of = {"name": "web-crash", "uid": first["metadata"]["uid"], "fromStage": "analysis"}
    assert again["status"]["retryOf"] == again["spec"]["retryOf"] == retry_of
    assert again["spec"]["alertData"] == first["spec"]["alertData"]
    assert again["status"]["usage"]["llmCalls"] == 2
    assert [stage["toolCalls"] for stage in again["status"]["stages"]] == [0, 1]

    _, investigation = await process.request("GET", f"/api/v1/investigations/{answer['id']}")
    assert [stage["copied"] for stage in investigation["stage_progress"]] == [True, False]
    _, timeline = await process.request("GET", f"/api/v1/investigations/{answer['id']}/timeline")
    analyses = [event["content"] for event in timeline["events"] if event["type"] == "final_analysis"]
    assert analyses == [f"{stage}: web-0 is out of memory [tool 0.0]." for stage in STAGES]
    _, original = await process.request("GET", f"/api/v1/investigations/{first['metadata']['uid']}")
    assert original["retried_by"] == {"id": answer["id"], "name": answer["name"]}
