"""One claim as its run sees it. The lease_manager's thread is tested on a real database."""

from __future__ import annotations

import asyncio
import time
from uuid import UUID

import pytest
from tarsy.store.queue import work
from tarsy.store.reads import phase_rules
from tarsy.transcript import ports
from tarsy.worker import leases

NEVER = -1.0
"""Monotonic seconds that have passed, whenever one looks."""


def make(*, certain: bool = True, cancel: phase_rules.Cancellation | None = None) -> leases.Lease:
    claim = work.Claim(
        joined=0,
        investigation=UUID(int=1),
        token=UUID(int=2),
        run=0,
        attempts=1,
        attempts_without_progress=1,
        log_seq=0,
        cancel=cancel,
        waited=0.0,
        is_takeover=False,
        age=0.0,
        name="tarsy/web",
        alert_type="KubePodCrashLooping",
        chain="pod-crash",
    )
    return leases.Lease(claim, certain_until=time.monotonic() + 3600 if certain else NEVER)


@pytest.mark.parametrize(
    ("reasons", "stopped"),
    [
        ([], None),
        (["user"], "user"),
        (["deadline", "user"], "deadline"),
        (["deleted", "deadline", "user"], "deleted"),
        (["user", "lost"], "lost"),
        (["lost", "user"], "lost"),
    ],
)
def test_the_first_reason_holds_but_a_lost_lease_goes_before_all(
    reasons: list[leases.StopReason], stopped: leases.StopReason | None
) -> None:
    lease = make()
    for reason in reasons:
        lease.stop(reason)
    assert lease.stopped == stopped


def test_run_is_stopped_once_even_if_stop_is_repeated() -> None:
    """Every heartbeat says it again; a second cancel would hit the run while it cleans up."""
    lease, stops = make(), list[str | None]()
    lease.on_stop(lambda: stops.append(lease.stopped))
    assert stops == []
    lease.stop("user")
    lease.stop("user")
    lease.stop("lost")
    assert stops == ["user"]


@pytest.mark.parametrize("cancel", ["user", "deleted"])
def test_a_claim_that_was_cancelled_before_stops_at_once(cancel: phase_rules.Cancellation) -> None:
    lease, stops = make(cancel=cancel), list[str | None]()
    lease.on_stop(lambda: stops.append(lease.stopped))
    assert stops == [cancel]


async def waits(lease: leases.Lease) -> bool:
    """Whether a run would have to wait now; a LeaseLostError passes."""
    try:
        async with asyncio.timeout(0):
            await lease.ensure_lease()
    except TimeoutError:
        return True
    return False


@pytest.mark.parametrize("certain", [True, False])
async def test_certain_lease_passes_at_once_and_lease_in_doubt_waits_even_if_cancelled(certain: bool) -> None:
    lease = make(certain=certain)
    assert await waits(lease) is not certain
    lease.stop("user")
    assert await waits(lease) is not certain


async def test_suspension_is_asked_for_and_stops_nothing_that_is_under_way() -> None:
    """The journal asks for it before each step: what is paid for is finished."""
    lease, stops = make(), list[str | None]()
    lease.on_stop(lambda: stops.append(lease.stopped))
    assert lease.suspend is False
    lease.suspend = True
    assert not await waits(lease)
    assert (lease.stopped, stops) == (None, [])


async def test_a_renewal_ends_the_doubt_unless_it_is_as_old() -> None:
    lease = make(certain=False)
    waiting = asyncio.create_task(lease.ensure_lease())
    await asyncio.sleep(0)
    lease.renew(NEVER)
    assert await waits(lease)
    assert not waiting.done()
    lease.renew(time.monotonic() + 3600)
    await asyncio.wait_for(waiting, 60)
    assert not await waits(lease)


async def test_lost_lease_stays_lost_after_any_renewal() -> None:
    lease = make(certain=False)
    waiting = asyncio.create_task(lease.ensure_lease())
    await asyncio.sleep(0)
    lease.stop("lost")
    with pytest.raises(ports.LeaseLostError):
        await asyncio.wait_for(waiting, 60)
    lease.renew(time.monotonic() + 3600)
    with pytest.raises(ports.LeaseLostError, match="investigation 00000000-0000-0000-0000-000000000001 is lost"):
        await lease.ensure_lease()
