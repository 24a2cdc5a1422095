"""The worker role: it claims and runs investigations, once its models and tools are built."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from tarsy.process import garbage_collection, supervision
from tarsy.process.context import Context
from tarsy.process.runtime import clients
from tarsy.store.base import notify
from tarsy.store.fleet import pins, rate_limits
from tarsy.store.live import text_streams
from tarsy.worker import claimer, leases, run

FIRST_SECONDS = 1.0
"""Seconds that the worker waits for the watch before it builds its models and tools."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """The parts of the role."""

    ground: list[supervision.Part]
    """The parts that stop last."""
    roles: list[supervision.Part]
    has_clients: asyncio.Event
    """Set once the models and tools are built."""


def build(context: Context, *, watching: asyncio.Event | None) -> Worker:
    """Build the role; `watching` is set once the watch of this process is open, if it has one."""
    has_clients = asyncio.Event()
    queue = context.in_force.platform.queue
    lease_manager = leases.LeaseManager(context.database.url, lease=queue.lease, heartbeat=queue.heartbeat)
    text_sender = text_streams.TextSender(context.database, secrets=context.masking.secrets)
    throttle = rate_limits.RateLimits(context.database, {})
    worker_clients = clients.Clients(
        in_force=context.in_force,
        throttle=throttle,
        pins=pins.Pins(context.database),
        open_stream=text_sender.open_stream,
        mask=context.masking.mask_alert,
        secrets=context.masking.secrets,
        loopback=context.options.insecure_dev,
    )
    claims: claimer.Claimer | None = None

    def hint(payload: str) -> bool:
        return claims is not None and claims.hint(payload)  # a new claimer tries to claim without a hint

    def relist(_: str) -> bool:
        if has_clients.is_set():
            worker_clients.pool.relist()
        return False  # other processes have connections of their own to list

    async def run_clients() -> None:
        if watching is not None:  # the watch comes first, because an import blocks all other work
            with suppress(TimeoutError):
                await asyncio.wait_for(watching.wait(), FIRST_SECONDS)
        await worker_clients.begin(context.stack)
        garbage_collection.freeze()
        context.process_reporter.add_source(worker_clients.facts)
        context.in_force.prepare(worker_clients.prepare)
        has_clients.set()
        await worker_clients.run()

    async def work() -> None:
        nonlocal claims
        await has_clients.wait()
        supervisor = run.Supervisor(
            database=context.database,
            runtime=await worker_clients.settled(),
            lease_manager=lease_manager,
            max_attempts=queue.max_attempts,
            own_namespace=context.own_namespace,
            moved=text_sender.announce_commit,
            follow=context.traces.follow if context.traces else lambda _: None,
        )
        claims = claimer.Claimer(
            supervisor,
            database=context.database,
            lease_manager=lease_manager,
            owner=context.owner,
            queue=queue,
            eligible=worker_clients.eligible,
        )
        await claims.run()

    context.channels.listen(
        {notify.WORK: hint, notify.CANCEL: lease_manager.hint, text_streams.WATCHED: text_sender.hint}
    )
    context.channels.listen({pins.CHANGED: relist})
    return Worker(ground=[run_clients, lease_manager.run, text_sender.run], roles=[work], has_clients=has_clients)
