"""Supervisors of a worker that claims from a test's database, and whose executions all ask one model."""

from __future__ import annotations

import time
from typing import Any

from support import queue
from tarsy.config.model import platforms
from tarsy.store.base import databases
from tarsy.store.queue import work
from tarsy.transcript import memory, ports
from tarsy.worker import claimer, leases, run


def supervisor(
    database: databases.Database,
    model: ports.Model,
    *,
    toolbox: ports.Toolbox | None = None,
    own_namespace: str = "tarsy",
    **options: Any,
) -> run.Supervisor:
    """The supervisor, which gives a run up after 3 attempts; no heartbeat renews its leases."""
    tools = toolbox or memory.DictToolbox({})
    return run.Supervisor(
        database=database,
        runtime=ports.Runtime(platform=queue.PLATFORM, model=lambda _: model, toolbox=lambda *_: tools),
        lease_manager=leases.LeaseManager(database.url, lease=queue.LEASE, heartbeat=queue.LEASE / 4),
        max_attempts=3,
        own_namespace=own_namespace,
        **options,
    )


async def run_next(worker: run.Supervisor) -> work.Claim:
    """Claim what comes next, which is there, and run it as far as it goes."""
    lease = await hold_next(worker)
    await worker.run(lease)
    return lease.claim


async def hold_next(worker: run.Supervisor) -> leases.Lease:
    """Claim what comes next, which is there."""
    return worker.lease_manager.hold(await queue.claimed(worker.database), sent=time.monotonic())


def claims(worker: run.Supervisor) -> claimer.Claimer:
    """The claimer of a worker with one slot."""
    return claimer.Claimer(
        worker,
        database=worker.database,
        lease_manager=worker.lease_manager,
        owner=queue.OWNER,
        queue=platforms.Queue(slots=1),
        eligible=queue.eligible(),
    )
