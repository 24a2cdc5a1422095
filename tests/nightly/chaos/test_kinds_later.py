"""The operator is there before its kinds are, as after `helm install` and `kubectl apply` in the wrong order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import manifests
from tarsy_dev import controlplane, model, patience, tools

if TYPE_CHECKING:
    from support.operators import Operator, Process


@pytest.fixture
def plane(tmp_path: Path, programs: dict[str, Path]) -> Iterator[controlplane.ControlPlane]:
    """A control plane of the test's own, without our kinds."""
    with controlplane.ControlPlane(folder=tmp_path / "plane", audited=True) as running:
        yield running


async def reads(process: Process, wanted: str) -> None:
    """Wait until readiness says this, "" for nothing; a watch without an answer is asked for anew after 70 s."""
    async with patience.limit():
        while (await process.request("GET", "/readyz", token=""))[1].get("detail", "") != wanted:
            pass  # each is an answer of the process


async def test_an_operator_waits_for_its_kinds_and_works_once_they_are_there(
    operator: Operator, llm: model.Server
) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start()
    await process.logged("the API server does not serve the kinds of tarsy.dev/v1alpha1: apply crds/")
    kinds = "the CRDs agentchains, alertinvestigations (api, controller)"
    await reads(process, f"not ready: {kinds}; the watch (controller)")
    body = json.dumps({"alert_type": "kubernetes", "data": "web-0 restarts"}).encode()
    status, problem = await process.request("POST", "/api/v1/alerts", body=body)
    told = "the kinds of tarsy.dev/v1alpha1 are not installed: kubectl apply -f crds/; send it again"
    assert (status, problem["detail"]) == (503, told)

    await operator.kubectl("apply", "--server-side", "-f", str(tools.ROOT / "crds"))
    await operator.kubectl("wait", "--for=condition=Established", "-f", str(tools.ROOT / "crds"))
    await operator.apply(manifests.chain(), manifests.investigation())
    found = await operator.finished("web-crash")
    assert found["web-crash"]["status"]["phase"] == "Completed"
    await reads(process, "")
    await process.stop()
