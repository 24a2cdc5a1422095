"""Investigations in the queue of a test's database: admitted, claimed, worked on, and what the store tells of them."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy
from support import leases, manifests
from tarsy.resources import chain as chains
from tarsy.resources import investigation as investigations
from tarsy.store import database as databases
from tarsy.store import history, journal, work

LEASE = timedelta(seconds=60)
OWNER = UUID(int=1)


def chain(**spec: Any) -> chains.AgentChain:
    """A chain as the API server has it, in its third generation."""
    metadata = {"name": "pod-crash", "namespace": "tarsy", "generation": 3}
    return chains.AgentChain.model_validate({"metadata": metadata, "spec": manifests.chain(**spec)["spec"]})


CHAIN = chain()


def subject(name: str = "web-crash", **spec: Any) -> investigations.AlertInvestigation:
    """An investigation as the API server has it, another object each time."""
    metadata = {"name": name, "namespace": "tarsy", "uid": str(uuid.uuid4()), "generation": 1}
    made = {"metadata": metadata, "spec": manifests.investigation(**spec)["spec"]}
    return investigations.AlertInvestigation.model_validate(made)


async def admit(
    database: databases.Database,
    given: investigations.AlertInvestigation | None = None,
    *,
    verdict: chains.AgentChain | work.Refusal = CHAIN,
) -> UUID:
    """Admit an investigation, any new one where none is given; its id."""
    new = given or subject()
    assert await work.admit(database, new, verdict, mask=str)
    return UUID(new.metadata.uid)


async def claim(database: databases.Database, *, max_running: int = 0) -> work.Claim | None:
    """Claim the next one, if there is one."""
    return await work.claim(database, owner=OWNER, lease=LEASE, max_running=max_running)


async def claimed(database: databases.Database) -> work.Claim:
    """Claim the next one, which is there."""
    found = await claim(database)
    assert found is not None
    return found


async def opened(database: databases.Database, claim: work.Claim) -> journal.PgJournal:
    """The journal of a claim, as a worker opens it that knows of nothing wrong with its lease."""
    return await journal.PgJournal.open(database, claim=claim, ensure_lease=leases.clear)


async def summary(database: databases.Database, identity: UUID | str) -> history.Summary:
    """What the store knows of an investigation that was admitted."""
    found = await history.summary(database, UUID(str(identity)))
    assert found is not None
    return found


async def execute(database: databases.Database, statement: str, **values: Any) -> None:
    """Change rows as nothing in the product does, to what only time or a failure makes of them."""
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text(statement), values)


async def let_leases_pass(database: databases.Database) -> None:
    """Let all leases pass now."""
    await execute(database, "UPDATE work SET lease_until = clock_timestamp()")
