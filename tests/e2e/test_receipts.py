"""Strangers who may create investigations, API processes that die half way, and two that are told the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support import manifests
from support.strangers import NAME, notify, objects, stranger
from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator

WITHOUT_TOOLS = manifests.stage("analysis", mcpServers=[])
"""So that each run is one request."""


@pytest.mark.parametrize("suspend", [True, False])
async def test_an_object_of_a_stranger_swallows_no_alert(
    operator: Operator, llm: model.Server, *, suspend: bool
) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await operator.apply(
        manifests.chain(stages=[WITHOUT_TOOLS]),
        stranger(suspend=suspend),
        stranger("guessed", receipt="0" * 32, suspend=suspend),
        stranger("without", suspend=suspend),
    )
    async with patience.limit():
        while not all(manifest.get("status", {}).get("phase") for manifest in (await objects(operator)).values()):
            pass  # until all three have been admitted
    outcome, name = await notify(process)
    assert (outcome, name.startswith(f"{NAME[-54:].lstrip('-')}-")) == ("created", True)
    finished = await operator.finished(name)
    assert finished[name]["status"]["phase"] == "Completed"
    assert await notify(process) == ("repeated", name)
    assert await notify(process, started="2026-11-21T21:00:00Z") == ("repeated", name), "within its cool-down"
    manifests_by_name = await objects(operator)
    assert len(manifests_by_name) == 4
    assert "alertStatus" not in manifests_by_name["guessed"]["status"]
