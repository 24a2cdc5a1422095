"""Requests to cancel and purge, and what the API and the model had of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tarsy_dev import model, patience

if TYPE_CHECKING:
    from support.operators import Operator, Process


async def uid(operator: Operator, name: str) -> str:
    return str(json.loads(await operator.kubectl("get", "inv", name, "-o", "json"))["metadata"]["uid"])


async def act(process: Process, identity: str, action: str = "/cancel", **body: str) -> tuple[int, Any]:
    content = json.dumps(body).encode() if body else None
    return await process.request("POST", f"/api/v1/investigations/{identity}{action}", body=content)


async def phase(process: Process, identity: str, *wanted: str) -> dict[str, Any]:
    """The investigation, as soon as the phase is one of those."""
    async with patience.limit():
        while True:
            status, read = await process.request("GET", f"/api/v1/investigations/{identity}")
            if status == 200 and read["phase"] in wanted:
                return dict(read)


async def hanging(llm: model.Server, count: int = 1) -> Sequence[model.Request]:
    """The requests that were left without an answer, once there are so many."""
    return await llm.wait_for(lambda requests: requests if len(requests) == count else None)
