"""Supervises one claim, from the lease to the last write, and owns the reason for which it ends.

ended          the engine finished; its last commit ended the investigation
given up       claimed too often: it may be what ends the processes
lease lost     another worker has it: stop, write nothing
shutdown       cancelled from outside: give the claim back, for another worker to go on at once
defect         an error of ours: keep the claim, let the lease pass, and be claimed again until attempts run out
"""

from __future__ import annotations

import asyncio
import logging

from tarsy.engine import investigation
from tarsy.store import database as databases
from tarsy.store import journal as journals
from tarsy.store import work
from tarsy.transcript import entries, ports
from tarsy.worker import lease as leases

log = logging.getLogger(__name__)


async def run(
    held: leases.Lease, *, database: databases.Database, kit: ports.Kit, keeper: leases.Keeper, max_attempts: int
) -> None:
    """Run the claimed investigation until it ends, the lease is lost, or this task is cancelled."""
    where = {"investigation": held.claim.investigation, "attempt": held.claim.attempts}
    log.info("claimed", extra={"action": "claimed", **where})
    working = asyncio.create_task(_work(held, database=database, kit=kit, max_attempts=max_attempts))
    held.on_lost(working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        if _cancelled_from_outside():
            await _give_back(held, database=database, where=where)
            raise
        log.warning("another worker has it", extra={"action": "lease_lost", **where})
    except ports.LeaseLostError:
        log.warning("another worker has it", extra={"action": "lease_lost", **where})
    except Exception:  # the supervisor of a run: one that breaks must not break the others
        log.exception("broke", extra={"action": "run_broke", **where})
    else:
        log.info("ended", extra={"action": "ended", **where})
    finally:
        keeper.drop(held)


async def _work(held: leases.Lease, *, database: databases.Database, kit: ports.Kit, max_attempts: int) -> None:
    journal = await journals.PgJournal.open(database, claim=held.claim, clear_to_send=held.clear_to_send)
    if held.claim.attempts > max_attempts:
        message = f"given up after {max_attempts} attempts: each ended with its worker"
        await journal.commit(entries.InvestigationEnded(ending="Failed", reason="AttemptsExhausted", message=message))
        return
    await investigation.run(kit=kit, journal=journal)


async def _give_back(held: leases.Lease, *, database: databases.Database, where: dict[str, object]) -> None:
    try:
        await work.release(database, held.claim)
    except databases.StoreDownError as error:
        log.warning("not given back, its lease will pass: %s", error, extra={"action": "release_failed", **where})
    else:
        log.info("given back", extra={"action": "released", **where})


def _cancelled_from_outside() -> bool:
    """Whether this task itself was cancelled, and not only the work that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
