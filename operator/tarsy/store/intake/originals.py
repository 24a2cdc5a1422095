"""Reads an ended investigation that is to be run again."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility
from tarsy.store.reads import snapshots, summaries
from tarsy.transcript import admission

_CHAIN = text(f"""
  SELECT namespace_uid, chain_name, chain_namespace, chain_generation, chain_hash, chain_version,
    CAST(chain AS text) AS chain
  FROM investigations WHERE id = :id AND {visibility.VISIBLE}
""")  # noqa: S608 - our own text


async def load(database: databases.Database, investigation: UUID) -> admission.Original | None:
    """Return the investigation; None if there is none, or its transcript was purged.

    Raises snapshots.UnreadableError if this program cannot read its chain.
    """
    details = await summaries.details(database, investigation, runs=1)
    rows = await database.run(_CHAIN, id=investigation)
    if details is None or not rows:
        return None
    (row,) = rows
    summary = details.summary
    chain = None
    if row.chain_name is not None:
        chain = admission.AdmittedChain(
            name=row.chain_name,
            namespace=row.chain_namespace,
            generation=row.chain_generation,
            hash=row.chain_hash,
            spec=snapshots.chain_of(row.chain, version=row.chain_version),
        )
    return admission.Original(
        id=str(investigation),
        namespace=summary.namespace,
        namespace_uid=row.namespace_uid,
        name=summary.name,
        has_ended=summary.ended_at is not None,
        alert_type=summary.alert_type,
        alert_data=details.alert_data,
        alert_summary=summary.alert_summary,
        severity=details.severity,
        runbook_url=details.runbook_url,
        fingerprint=details.fingerprint,
        labels=summary.labels,
        generator_url=details.generator_url,
        external_url=details.external_url,
        mcp=details.mcp,
        chain=chain,
        stage_outcomes={
            stage.name: stage.outcome for stage in summary.stages if stage.outcome is not None and not stage.cut_off
        },
    )
