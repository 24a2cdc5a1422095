"""Investigations in the queue of a test's database: admitted, claimed, worked on, and what the store tells of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy
from support import leases, manifests
from support.masking import NO_SECRETS
from tarsy.config.check import chain_index
from tarsy.config.model import platforms, providers
from tarsy.ingest import decision
from tarsy.resources import chains, investigations, naming
from tarsy.store.base import audit, databases
from tarsy.store.intake import episodes, queueing, receipts
from tarsy.store.queue import heartbeats, journal, work
from tarsy.store.reads import log_entries, summaries
from tarsy.transcript import admission as admitted
from tarsy.transcript import entries, record
from tarsy.worker import eligibility
from tarsy_dev import patience

LEASE = timedelta(seconds=60)
OWNER = UUID(int=1)
CALLER = audit.Caller(who="somebody", address="192.0.2.1")
"""The caller of the API."""
RULE = episodes.Rule(window=timedelta(days=7), cooldown=timedelta(minutes=5))
"""The settings of deduplication."""
BUILD = record.build()
"""The build of this program: the entries that it can read."""
PLATFORM = platforms.Platform(
    defaults=platforms.Defaults(llm_provider="only"),
    llm_providers={"only": providers.GoogleProvider(type="google", model="gemini-2.5-flash")},
    agents=dict.fromkeys(("KubernetesAgent", "SynthesisAgent", "ChatAgent"), platforms.Agent()),
)


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


def admission(
    investigation: investigations.AlertInvestigation, chain: chains.AgentChain | admitted.Refusal = CHAIN
) -> admitted.Admission:
    """Return the decision on an object where `chain` is all that there is; or it is refused."""
    available = [] if isinstance(chain, admitted.Refusal) else [chain]
    decided = decision.decide(
        investigation,
        chain_index.ChainIndex(available, platform=PLATFORM, unusable_providers={}, namespace="tarsy", own="tarsy"),
        mask=str,
        secrets=NO_SECRETS,
    )
    return replace(decided, chain=chain) if isinstance(chain, admitted.Refusal) else decided


async def admit(
    database: databases.Database,
    investigation: investigations.AlertInvestigation | None = None,
    *,
    chain: chains.AgentChain | admitted.Refusal = CHAIN,
) -> UUID:
    """Admit an investigation, any new one where none is given; its id."""
    new = investigation or subject()
    assert await queueing.admit(database, admission(new, chain))
    return UUID(new.metadata.uid)


async def received(
    database: databases.Database, investigation: investigations.AlertInvestigation, *, rule: episodes.Rule = RULE
) -> investigations.AlertInvestigation:
    """The object with the receipt of its alert's episode, as intake makes it."""
    spec = investigation.spec
    assert spec.fingerprint
    assert spec.starts_at
    source = investigations.Source(type="alertmanager")
    receipt = await receipts.issue_for_alert(
        database,
        namespace=investigation.metadata.namespace,
        fingerprint=spec.fingerprint,
        starts_ms=naming.milliseconds(spec.starts_at),
        name=investigation.metadata.name,
        digest=investigations.digest(spec.model_copy(update={"source": source})),
        rule=rule,
        previous=None,
        address=CALLER.address,
    )
    assert isinstance(receipt, receipts.Receipt)
    metadata = investigation.metadata.model_copy(update={"name": receipt.name})
    received = source.model_copy(update={"receipt": receipt.word})
    return investigation.model_copy(update={"metadata": metadata, "spec": spec.model_copy(update={"source": received})})


async def repeat(
    database: databases.Database,
    *,
    fingerprint: str,
    starts_at: datetime,
    namespace: str = "tarsy",
    rule: episodes.Rule = RULE,
) -> UUID | None:
    """Count a firing alert on the investigation that it repeats, as intake does; None: it begins one."""
    (verdict,) = await episodes.look_up(database, (fingerprint, starts_at), namespace=namespace, rule=rule)
    if isinstance(verdict, episodes.Begin):
        return None
    await episodes.count_repeats(database, (verdict.investigation.id, fingerprint))
    return verdict.investigation.id


async def claim(
    database: databases.Database,
    *,
    owner: UUID = OWNER,
    build: str = BUILD,
    max_running: int = 0,
    lease: timedelta = LEASE,
) -> work.Claim | None:
    """Claim the next one, if there is one."""
    return await work.claim(database, owner=owner, lease=lease, build=build, max_running=max_running)


def eligible(**unusable: str) -> eligibility.Eligibility:
    """Return the eligibility of a worker that cannot use these providers, for these reasons."""
    return eligibility.Eligibility(platform=lambda: PLATFORM, unusable=lambda: unusable)


async def claimed(database: databases.Database, *, build: str = BUILD, lease: timedelta = LEASE) -> work.Claim:
    """Claim the next one, which is there."""
    next_claim = await claim(database, build=build, lease=lease)
    assert next_claim is not None
    return next_claim


async def opened(database: databases.Database, claim: work.Claim) -> journal.PgJournal:
    """The journal of a claim, as a worker opens it that knows of nothing wrong with its lease."""
    return await journal.PgJournal.open(database, claim=claim, ensure_lease=leases.clear, suspended=lambda: False)


async def requested_stop(database: databases.Database, claim: work.Claim) -> work.StopRequest | None:
    """Return the stop that the next heartbeat of a claim that holds says is requested of it."""
    heartbeat = heartbeats.Heartbeat(database.url, lease=LEASE)
    try:
        return (await heartbeat.beat({claim.investigation: claim.token}))[claim.token]
    finally:
        await heartbeat.close()


async def summary(database: databases.Database, identity: UUID | str) -> summaries.Summary:
    """Return the store's summary of an investigation that was admitted."""
    loaded = await summaries.load(database, UUID(str(identity)))
    assert loaded is not None
    return loaded


async def log(database: databases.Database, identity: UUID | str) -> Sequence[entries.Logged]:
    """The log of an investigation that was admitted."""
    return await log_entries.load(database, UUID(str(identity)))


async def rows(database: databases.Database, statement: str, **values: Any) -> list[tuple[Any, ...]]:
    """Return the rows as a user of psql sees them."""
    async with database.begin() as connection:
        return [tuple(row) for row in await connection.execute(sqlalchemy.text(statement), values)]


async def execute(database: databases.Database, statement: str, **values: Any) -> None:
    """Change rows as nothing in the product does, to what only time or a failure makes of them."""
    async with database.begin() as connection:
        await connection.execute(sqlalchemy.text(statement), values)


async def insert_rows(database: databases.Database, number: int, *, state: str, chain: str) -> None:
    """Insert rows of investigations without a log; `chain` is SQL that makes the chain's name of a row's `number`."""
    for first in range(0, number, 10_000):
        await execute(
            database,
            f"""
            WITH new AS (
              INSERT INTO investigations
                (id, namespace, name, generation, alert_type, alert_data, chain_namespace, chain_name)
              SELECT gen_random_uuid(), 'tarsy', '{state}-' || number, 1, 'Storm', '', 'tarsy',
                'chain-' || coalesce({chain}, 0)
              FROM generate_series(1 + :first, least(:number, :first + 10000)) AS number
              RETURNING id, chain_name
            )
            INSERT INTO work (investigation, state, queue) SELECT id, :state, 'tarsy/' || chain_name FROM new
            """,  # noqa: S608 - our own text
            first=first,
            number=number,
            state=state,
        )


async def let_leases_pass(database: databases.Database) -> None:
    """Let all leases pass now."""
    await execute(database, "UPDATE work SET lease_until = clock_timestamp()")


async def blocked(database: databases.Database, statements: int = 1) -> None:
    """Return once so many statements wait for a lock."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with patience.limit():
        while len(await rows(database, waits)) < statements:  # noqa: ASYNC110 - it is in the database
            await asyncio.sleep(0.01)
