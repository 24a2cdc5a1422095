"""Cancel by the API in every phase, whatever became of the worker, and what the audit tells of all that was done."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from support import audits, manifests, pace
from support.actions import act, hanging, phase, uid
from tarsy_dev import model

if TYPE_CHECKING:
    from support.operators import Operator, Process

LEASE = timedelta(seconds=6)
"""Two cancels after the death of a worker come before it has passed, also on a machine that pauses meanwhile."""

AFTER_LEASE = timedelta(seconds=5)


async def ended_in_time(process: Process, identity: str, *, since: float) -> None:
    """It ends within the lease that began before `since`, and 5 s of an idle machine, by the clock of this one."""
    summary = await phase(process, identity, "Cancelled")
    ended = datetime.fromisoformat(summary["ended_at"]).timestamp()
    assert ended - since < (LEASE + AFTER_LEASE * max(1.0, pace.slowness())).total_seconds()
    assert (summary["cancel"], summary["message"]) == ("user", "cancelled by request")


@pytest.mark.parametrize("beside", ["another operator that has no slot free", "a worker, and no controller"])
async def test_one_whose_worker_was_killed_a_moment_before_ends_soon_after_its_lease(
    operator: Operator, llm: model.Server, beside: str
) -> None:
    """The one that is killed leads, too: nobody does its duties before its own lease has passed."""
    llm.script = lambda _turn: model.Hang()
    await operator.apply(manifests.chain())
    queue = {"slots": 1}
    killed = await operator.start(lease=LEASE, queue=queue)
    await operator.apply(manifests.investigation("cancelled"))
    await hanging(llm)
    identity = await uid(operator, "cancelled")
    if beside == "a worker, and no controller":
        process = await operator.start(role="api")
        worker = await operator.start(lease=LEASE, role="worker", queue=queue)
        await worker.logged("action=")
    else:
        process = await operator.start(lease=LEASE, queue=queue)
        await operator.apply(manifests.investigation("busy"))
        await hanging(llm, 2)
    await killed.kill()
    since = time.time()
    for _ in range(2):
        assert (await act(process, identity))[1]["phase"] == "Cancelling"
    await ended_in_time(process, identity, since=since)
    assert (await act(process, identity))[0] == 409
    assert await audits.told(operator.database_url) == [audits.row("cancel", "cancelled")]
    assert len([one for one in llm.requests if "/cancelled" in one.key.investigation]) == 1, "it is not asked again"
