"""An investigation that is run again from a stage on: it asks nothing of the earlier stages, also after kills."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import aiohttp
import pytest
from support import audits
from support.retried_stages import Investigator, half_failed, retry
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator


@pytest.fixture
def investigator(llm: model.Server) -> Investigator:
    llm.script = investigator = Investigator()
    return investigator


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
    await operator.let_leases_pass()
    await operator.start()
    again = (await operator.finished(answer["name"]))[answer["name"]]
    assert again["status"]["phase"] == "Completed"
    assert set(investigator.asked) == {"analysis"}
    _, exported = await api.request("GET", f"/api/v1/investigations/{answer['id']}/export")
    stages = [call["stage"] for call in exported["mcp_interactions"]]
    assert stages == ["data-collection", "analysis"]


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
    (name,) = {manifest["metadata"]["name"] for manifest in items} - {"web-crash"}
    await operator.start()
    again = (await operator.finished(name))[name]
    assert again["status"]["phase"] == "Completed"
    assert investigator.asked == ["analysis", "analysis"]
    assert audits.row("retry", name) in await audits.audit_rows(operator.database_url)
