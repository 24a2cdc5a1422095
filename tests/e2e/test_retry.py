"""An investigation that is run again from a stage on: it asks nothing of the earlier stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator


STAGES = ("data-collection", "analysis")

CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])

LOOK = model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "web-0"}),))


class Investigator:
    """A model whose second stage fails until its provider is mended."""

    def __init__(self) -> None:
        self.is_mended = False
        self.asked: list[str] = []
        """The stages of the requests, in order."""

    def __call__(self, request: model.Turn) -> model.Answer | model.HttpError:
        stage = "analysis" if "stage 'analysis'" in request.system else "data-collection"
        self.asked.append(stage)
        if stage == "analysis" and not self.is_mended:
            return model.HttpError(status=401, message="the key was revoked")
        if request.iteration == 0:
            return LOOK
        return model.Answer(text=f"{stage}: web-0 is out of memory [tool 0.0].")


async def test_retry_from_a_stage_makes_no_model_call_for_earlier_stages(operator: Operator, llm: model.Server) -> None:
    llm.script = investigator = Investigator()
    process = await operator.start()
    await operator.apply(CHAIN, manifests.investigation("web-crash"))
    first = (await operator.finished("web-crash"))["web-crash"]
    assert first["status"]["phase"] == "CompletedWithErrors"
    investigator.asked.clear()
    investigator.is_mended = True

    path = f"/api/v1/investigations/{first['metadata']['uid']}/retry"
    status, answer = await process.request("POST", path, body=b'{"fromStage": "analysis"}')
    assert status == 202, answer
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
