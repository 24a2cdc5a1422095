"""The worker role: it claims and runs investigations, once models and tools are there."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from tarsy.process import garbage, supervision
from tarsy.process.runtime import clients
from tarsy.process.shared import Shared
from tarsy.store.base import notify
from tarsy.store.fleet import pins, rate_limits
from tarsy.store.live import text_streams
from tarsy.worker import claimer, leases, run

FIRST_SECONDS = 1.0
"""For so long what answers to the outside comes first."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The parts of the role."""

    ground: list[supervision.Part]
    """The parts that the other ones stand on."""
    roles: list[supervision.Part]
    has_clients: asyncio.Event
    """Set once models and tools are there."""


def build(shared: Shared, *, watching: asyncio.Event | None) -> Worker:
    """Build the role; `watching` is set once the watch of this process is open, if it has one."""
    has_clients = asyncio.Event()
    queue = shared.in_force.platform.queue
    lease_manager = leases.LeaseManager(shared.database.url, lease=queue.lease, heartbeat=queue.heartbeat)
    text_sender = text_streams.TextSender(shared.database, secrets=shared.masking.secrets)
    throttle = rate_limits.RateLimits(shared.database, {})
    worker_clients = clients.Clients(
        in_force=shared.in_force,
        throttle=throttle,
        pins=pins.Pins(shared.database),
        open_stream=text_sender.open_stream,
        mask=shared.masking.mask_alert,
        secrets=shared.masking.secrets,
        loopback=shared.options.insecure_dev,
    )
    claims: claimer.Claimer | None = None

    def hint(payload: str) -> bool:
        return claims is not None and claims.hint(payload)  # it looks for work when it begins

    def confirmed(_: str) -> bool:
        if has_clients.is_set():
            worker_clients.pool.relist()
        return False  # others have their own servers

    async def equip() -> None:
        if watching is not None:  # in this order: an import blocks all other work
            with suppress(TimeoutError):
                await asyncio.wait_for(watching.wait(), FIRST_SECONDS)
        await worker_clients.begin(shared.stack)
        garbage.keep_for_good()
        shared.kept.hear(worker_clients.facts)
        shared.in_force.prepare(worker_clients.prepare)
        has_clients.set()
        await worker_clients.run()

    async def work() -> None:
        nonlocal claims
        await has_clients.wait()
        supervisor = run.Supervisor(
            database=shared.database,
            runtime=await worker_clients.settled(),
            lease_manager=lease_manager,
            max_attempts=queue.max_attempts,
            moved=text_sender.announce_commit,
        )
        claims = claimer.Claimer(
            supervisor,
            database=shared.database,
            lease_manager=lease_manager,
            owner=shared.owner,
            queue=queue,
            eligible=worker_clients.eligible,
        )
        await claims.run()

    shared.channels.listen(
        {notify.WORK: hint, notify.CANCEL: lease_manager.hint, text_streams.WATCHED: text_sender.hint}
    )
    shared.channels.listen({pins.CHANGED: confirmed})
    return Worker(ground=[equip, lease_manager.run, text_sender.run], roles=[work], has_clients=has_clients)
