"""The pages of a real operator: turned off, and as the address in the status of an investigation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from support import manifests
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator

SITE = "https://tarsy.example"


async def transcript(operator: Operator, name: str) -> str:
    """Have an investigation run, and return its `.status.transcript`."""
    await operator.apply(manifests.chain(), manifests.investigation(name))
    manifest = (await operator.finished(name))[name]
    return str(manifest["status"]["transcript"])


async def test_status_leads_to_the_page_at_the_public_address(operator: Operator, llm: model.Server) -> None:
    llm.script = model.answers("root cause")
    process = await operator.start(api={"public_url": SITE})

    address = await transcript(operator, "web-crash")

    path = address.removeprefix(SITE)
    assert path.startswith("/investigations/")
    status, _ = await process.request("GET", f"/api/v1{path}")
    assert status == 200
