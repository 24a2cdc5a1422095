"""Investigations whose second stage failed, and their retry from there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support import manifests
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

    def __call__(self, request: model.Turn) -> model.Answer | model.HttpError:
        stage = "analysis" if "stage 'analysis'" in request.system else "data-collection"
        self.asked.append(stage)
        if stage == "analysis" and not self.is_mended:
            return model.HttpError(status=401, message="the key was revoked")
        if request.iteration == 0:
            return LOOK
        return model.Answer(text=f"{stage}: web-0 is out of memory [tool 0.0].")


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
