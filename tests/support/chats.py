"""Questions about an investigation that has ended, over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tarsy_dev import patience

if TYPE_CHECKING:
    from support.operators import Process

QUESTION = "Which image was it?"


async def ask(process: Process, uid: str) -> tuple[int, Any]:
    body = json.dumps({"question": QUESTION}).encode()
    return await process.request("POST", f"/api/v1/investigations/{uid}/chat", body=body)


async def ended(process: Process, uid: str, *, run: int) -> dict[str, Any]:
    """The run, as soon as it has ended."""
    async with patience.limit():
        while True:
            _, read = await process.request("GET", f"/api/v1/investigations/{uid}")
            if read["runs"][run]["ending"]:
                return dict(read["runs"][run])
