"""An investigation that is run again from a stage on: it asks nothing of the earlier stages, also after kills."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from support import audits, manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator, Process

STAGES = ("data-collection", "analysis")
CHAIN = manifests.chain(stages=[manifests.stage(name) for name in STAGES])
LOOK = model.Answer(calls=(model.Call(name="tools__lookup", args={"name": "web-0"}),))


class Investigator:
    """A model whose second stage fails until its provider is mended."""

    def __init__(self) -> None:
        self.is_mended = False
        self.asked: list[str] = []
        """The stages of the requests, in order."""

    def __call__(self, turn: model.Turn) -> model.Answer | model.HttpError:
        stage = "analysis" if "stage 'analysis'" in turn.system else "data-collection"
        self.asked.append(stage)
        if stage == "analysis" and not self.is_mended:
            return model.HttpError(status=401, message="the key was revoked")
        if turn.iteration == 0:
            return LOOK
        return model.Answer(text=f"{stage}: web-0 is out of memory [tool 0.0].")


@pytest.fixture
def investigator(llm: model.Server) -> Investigator:
    llm.script = investigator = Investigator()
    return investigator


async def half_failed(operator: Operator, process: Process) -> dict[str, Any]:
    """An investigation whose first stage completed and whose second one failed; its object."""
    await operator.apply(CHAIN, manifests.investigation("web-crash"))
    made = (await operator.finished("web-crash"))["web-crash"]
    assert made["status"]["phase"] == "CompletedWithErrors"
    return dict(made)


async def retry(process: Process, uid: str, **body: str) -> dict[str, Any]:
    path = f"/api/v1/investigations/{uid}/retry"
    status, answer = await process.request("POST", path, body=json.dumps(body).encode())
    assert status == 202, answer
    return dict(answer)


@pytest.mark.slow
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

    _, shown = await process.request("GET", f"/api/v1/investigations/{answer['id']}")
    assert [stage["copied"] for stage in shown["stage_progress"]] == [True, False]
    _, timeline = await process.request("GET", f"/api/v1/investigations/{answer['id']}/timeline")
    analyses = [event["content"] for event in timeline["events"] if event["type"] == "final_analysis"]
    assert analyses == [f"{stage}: web-0 is out of memory [tool 0.0]." for stage in STAGES]
    _, original = await process.request("GET", f"/api/v1/investigations/{first['metadata']['uid']}")
    assert original["retried_by"] == {"id": answer["id"], "name": answer["name"]}


@pytest.mark.slow
@pytest.mark.parametrize("failpoint", ["journal.commit.before=exit@2", "tool.call.after=exit@1"])
async def test_retry_that_is_killed_goes_on_and_still_asks_nothing_of_the_earlier_stage(
    operator: Operator, investigator: Investigator, failpoint: str
) -> None:
    process = await operator.start()
    first = await half_failed(operator, process)
    await process.stop()
    investigator.asked.clear()
    investigator.is_mended = True

    api = await operator.start(role="api")
    answer = await retry(api, first["metadata"]["uid"], fromStage="analysis")
    dies = await operator.start(role="worker", env={"TARSY_FAILPOINTS": failpoint})
    await dies.ended()
    await operator.start()
    again = (await operator.finished(answer["name"]))[answer["name"]]
    assert again["status"]["phase"] == "Completed"
    assert set(investigator.asked) == {"analysis"}
    _, exported = await api.request("GET", f"/api/v1/investigations/{answer['id']}/export")
    stages = [call["stage"] for call in exported["mcp_interactions"]]
    assert stages == ["data-collection", "analysis"]


@pytest.mark.slow
async def test_retry_whose_api_process_dies_before_it_is_admitted_is_admitted_by_its_receipt(
    operator: Operator, investigator: Investigator
) -> None:
    process = await operator.start()
    first = await half_failed(operator, process)
    await process.stop()
    investigator.asked.clear()
    investigator.is_mended = True

    dies = await operator.start(role="api", env={"TARSY_FAILPOINTS": "intake.create.after=exit@1"})
    with pytest.raises(aiohttp.ClientError):
        await retry(dies, first["metadata"]["uid"], fromStage="analysis")
    await dies.ended()
    items = json.loads(await operator.kubectl("get", "inv", "-o", "json"))["items"]
    (name,) = {item["metadata"]["name"] for item in items} - {"web-crash"}
    await operator.start()
    again = (await operator.finished(name))[name]
    assert again["status"]["phase"] == "Completed"
    assert investigator.asked == ["analysis", "analysis"]
    assert audits.row("retry", name) in await audits.told(operator.database_url)


@pytest.mark.slow
async def test_object_of_a_person_gets_nothing_of_the_investigation_that_it_names(
    operator: Operator, investigator: Investigator
) -> None:
    process = await operator.start()
    first = await half_failed(operator, process)
    answer = await retry(process, first["metadata"]["uid"], fromStage="analysis")
    made = (await operator.finished(answer["name"]))[answer["name"]]
    investigator.asked.clear()
    receipt = made["spec"]["source"]["receipt"]
    for name, source in (("theirs", {"type": "api"}), ("copied", {"type": "api", "receipt": receipt})):
        spec = {**made["spec"], "source": source}
        await operator.apply(manifests.investigation(name, **spec))
        refused = (await operator.finished(name))[name]["status"]
        conditions = {condition["type"]: condition for condition in refused["conditions"]}
        assert (conditions["Accepted"]["status"], conditions["Accepted"]["reason"]) == ("False", "RetryNotProven")
        assert "retryOf" not in refused
    assert not investigator.asked
