"""Rows of new investigations, queued or refused, and alert data that is too large for its object.

An admission is one statement. If the object refers to alert data that the store does not have, this statement refuses
the investigation instead.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.dialects import postgresql

from tarsy.resources import naming
from tarsy.store.base import batch_limits, databases, notify, tables, visibility
from tarsy.transcript import admission, entries, entry_versions, record

_ADMIT = text("""
  WITH receipt AS (
    UPDATE receipts SET investigation = :id
    WHERE namespace = :namespace AND name = :name AND word = CAST(:receipt AS text)
      AND (investigation = :id OR :just_created OR (investigation IS NULL AND CAST(:digest AS text) = ANY (digests)))
    RETURNING word, address, previous, split_from
  ), stands AS (
    SELECT CAST(:fingerprint AS text) AS fingerprint, CAST(:starts_ms AS bigint) AS starts_ms FROM receipt
  ), taken AS (
    DELETE FROM large_alerts
    WHERE namespace = :namespace AND object_name = :name AND name = :alert_data_ref
    RETURNING data, summary
  ), alert AS (
    SELECT coalesce(CAST(:alert_data AS text), (SELECT data FROM taken)) AS data
  ), decided AS (
    SELECT data, clock_timestamp() AS at,
      CASE WHEN data IS NULL THEN 'AlertDataNotFound' ELSE CAST(:refused_reason AS text) END AS reason,
      CASE WHEN data IS NULL THEN CAST(:missing_message AS text) ELSE CAST(:refused_message AS text) END AS message,
      CASE WHEN data IS NULL THEN CAST(:missing_body AS text) ELSE CAST(:refused_body AS text) END AS body
    FROM alert
  ), added AS (
    INSERT INTO investigations (
      id, namespace, namespace_uid, name, generation, author, words,
      alert_type, alert_data, severity, runbook_url, fingerprint, alert_status,
      chain_name, chain_namespace, chain_generation, chain_hash, chain_version, chain, stage_names, stage_agents,
      on_resolved, chain_ttl_seconds, ttl_seconds, target, ended_at, ending, previous,
      labels, alert_summary, generator_url, external_url, agent_names, transcript_retention_days, traceparent,
      starters, split_from
    )
    SELECT :id, :namespace, :namespace_uid, :name, :generation, :author, tarsy_words(coalesce(data, '')),
      :alert_type, coalesce(data, ''), :severity, :runbook_url,
      stands.fingerprint, CASE WHEN stands.fingerprint IS NOT NULL THEN 'firing' END,
      snapshot.chain_name, chain_namespace, chain_generation, chain_hash, chain_version, chain,
      coalesce(stage_names, '{}'), coalesce(stage_agents, '{}'), on_resolved, chain_ttl_seconds, :ttl_seconds, :target,
      CASE WHEN reason IS NOT NULL THEN decided.at END, CASE WHEN reason IS NOT NULL THEN 'Failed' END,
      (SELECT previous FROM receipt),
      CAST(:labels AS json), coalesce((SELECT summary FROM taken), :alert_summary), :generator_url, :external_url,
      agent_names, transcript_retention_days, :traceparent, :depth,
      (SELECT split_from FROM receipt)
    FROM decided LEFT JOIN (
      SELECT CAST(:chain_name AS text) AS chain_name, CAST(:chain_namespace AS text) AS chain_namespace,
        CAST(:chain_generation AS bigint) AS chain_generation, CAST(:chain_hash AS text) AS chain_hash,
        CAST(:chain_version AS integer) AS chain_version, CAST(:chain AS json) AS chain,
        CAST(:stage_names AS text[]) AS stage_names, CAST(:stage_agents AS integer[]) AS stage_agents,
        CAST(:agent_names AS json) AS agent_names,
        CAST(:on_resolved AS text) AS on_resolved, CAST(:chain_ttl_seconds AS bigint) AS chain_ttl_seconds,
        CAST(:transcript_retention_days AS integer) AS transcript_retention_days
    ) AS snapshot ON reason IS NULL
    LEFT JOIN stands ON true
    ON CONFLICT (id) DO NOTHING
    RETURNING id, chain_namespace, chain_name
  ), queued AS (
    INSERT INTO work (investigation, state, priority, suspend, log_seq, queue)
    SELECT id, CASE WHEN reason IS NULL THEN 'queued' ELSE 'ended' END, :priority, :suspend,
      CASE WHEN reason IS NULL AND CAST(:selected_body AS text) IS NULL THEN 0 ELSE 1 END,
      coalesce(chain_namespace || '/' || chain_name, '')
    FROM added, decided
  ), first_limit AS (
    INSERT INTO queues (queue, max_running)
    SELECT chain_namespace || '/' || chain_name, CAST(:max_running AS integer)
    FROM added WHERE chain_name IS NOT NULL
    ON CONFLICT (queue) DO NOTHING
  ), first_run AS (
    INSERT INTO runs (investigation, number, kind, suspended_at, ended_at, ending, reason, message)
    SELECT id, 0, 'investigation', CASE WHEN :suspend THEN clock_timestamp() END,
      CASE WHEN reason IS NOT NULL THEN decided.at END, CASE WHEN reason IS NOT NULL THEN 'Failed' END, reason,
      message
    FROM added, decided
  ), refused AS (
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body)
    SELECT id, 1, decided.at, 0, 'RunEnded', CAST(:version AS integer), 0, '', '', CAST(body AS json)
    FROM added, decided WHERE reason IS NOT NULL
  ), selected AS (
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body)
    SELECT id, 1, decided.at, 1, 'ToolsSelected', CAST(:selected_version AS integer), 0, '', '',
      CAST(:selected_body AS json)
    FROM added, decided WHERE reason IS NULL AND CAST(:selected_body AS text) IS NOT NULL
  ), audited AS (
    INSERT INTO audit (who, address, action, investigation, namespace, namespace_uid, name, detail)
    SELECT :author, CASE WHEN :just_created THEN :address ELSE receipt.address END,
      CASE WHEN receipt.split_from IS NULL THEN :action ELSE 'split' END, id, :namespace, :namespace_uid, :name,
      CASE WHEN receipt.split_from IS NULL THEN CAST(:detail AS json)
        ELSE json_build_object('split_from', receipt.split_from) END
    FROM added, receipt
  ), identified AS (
    INSERT INTO identities AS its (investigation, namespace, fingerprint, starts_ms, alert_type, severity, labels,
      group_digest)
    SELECT id, :namespace, fingerprint, starts_ms, :alert_type, coalesce(:severity, ''), CAST(:labels AS json),
      CAST(:group_digest AS text)
    FROM added, stands WHERE starts_ms IS NOT NULL
    ON CONFLICT (namespace, fingerprint, starts_ms) DO UPDATE
    SET investigation = excluded.investigation, first_seen = now(), alert_type = excluded.alert_type,
      severity = excluded.severity, labels = excluded.labels,
      status = CASE WHEN (SELECT split_from FROM receipt) IS NULL THEN 'firing' ELSE its.status END,
      group_digest = coalesce(excluded.group_digest, its.group_digest), joined_at = NULL,
      joined_number = NULL, alert_json = NULL
  )
  SELECT id FROM added
""")
# The investigation, even a refused one, takes over an episode that is no longer remembered, or whose investigation came
# to nothing (`store.intake.episodes`). Only an object that intake created stands for an alert
# (`store.intake.receipts`). The alert's tool selection is written as an entry of claim 1, although there is no claim
# yet: as an entry of claim 0 it would make the first claim look like a takeover.


UNPROVEN = (
    "spec.retryOf counts only in objects that TARSy's API creates, which checks who may read the former investigation: "
    "POST /api/v1/investigations/{id}/retry"
)
"""The refusal of an object that claims to retry another investigation and has no receipt."""


async def admit(
    database: databases.Database,
    decided: admission.Admission,
    *,
    just_created: bool = False,
    address: str = "",
    hints: list[notify.Hint] | None = None,
) -> bool:
    """Queue an admitted investigation, or record its refusal; return False if that was done before.

    The investigation stands for its alert if its object has the stored receipt, the receipt was issued for such a spec,
    and no other object had the receipt before. An object that the caller has `just_created` with the receipt always
    does. An object with a receipt gets an audit row: with the `address` of the request if the caller has just created
    it, else with the address for which the receipt was issued. If this raises StoreDownError, nothing was stored.

    Workers and controllers get hints of it, unless the caller sends them together with others: then they are added to
    `hints`.
    """
    missing = f"alertDataRef '{decided.alert_data_ref}' does not exist: another object used it, or it has expired"
    values = {
        "id": UUID(decided.id),
        "namespace": decided.namespace,
        "namespace_uid": decided.namespace_uid,
        "name": decided.name,
        "author": decided.author,
        "address": address,
        "generation": decided.generation,
        "alert_type": decided.alert_type,
        "alert_data": decided.alert_data,
        "alert_data_ref": decided.alert_data_ref or "",
        "severity": decided.severity,
        "runbook_url": decided.runbook_url,
        "fingerprint": decided.fingerprint,
        "starts_ms": naming.milliseconds(decided.starts_at) if decided.fingerprint and decided.starts_at else None,
        "receipt": decided.receipt,
        "digest": decided.digest,
        "just_created": just_created,
        "priority": decided.priority,
        "suspend": decided.suspend,
        "ttl_seconds": decided.ttl_seconds,
        "target": decided.target,
        "labels": json.dumps(dict(decided.labels)),
        "alert_summary": decided.alert_summary,
        "generator_url": decided.generator_url,
        "external_url": decided.external_url,
        "group_digest": decided.group_digest,
        "traceparent": decided.traceparent,
        "depth": decided.depth,
        "version": entry_versions.VERSIONS["RunEnded"],
        "selected_version": entry_versions.VERSIONS["ToolsSelected"],
        "selected_body": entry_versions.encode(entries.ToolsSelected(mcp=decided.mcp)).body if decided.mcp else None,
        "missing_message": missing,
        "missing_body": _refusal("AlertDataNotFound", missing),
        "action": "create",
        "detail": "{}",
    }
    if decided.retry is not None:
        return await _admit_retry(database, decided, decided.retry, values)
    added = bool(await database.run(_ADMIT, **values, **_chain(decided.chain)))
    its_hints = ((notify.WORK, ""), (notify.STATUS, decided.id))
    if added and hints is not None:
        hints.extend(its_hints)
    elif added:
        await notify.send(database, *its_hints)
    return added


# The lock keeps a deletion away until the copy is committed. It is a statement of its own, because one that waits for
# the lock does not see what the deletion has committed.
_HOLD_ORIGINAL = text("SELECT FROM work WHERE investigation = :original FOR NO KEY UPDATE")
_ORIGINAL = text(f"""
  WITH receipt AS (
    SELECT FROM receipts
    WHERE namespace = :namespace AND name = :name AND word = CAST(:receipt AS text)
      AND (investigation = :id OR :just_created OR (investigation IS NULL AND CAST(:digest AS text) = ANY (digests)))
    FOR UPDATE
  )
  SELECT EXISTS (SELECT FROM receipt) AS is_proven,
    cardinality(CAST(:stages AS text[])) = (
      SELECT count(*) FROM stages
      WHERE investigation = :original AND run = 0 AND name = ANY(CAST(:stages AS text[])) AND ended_at IS NOT NULL
        AND EXISTS (SELECT FROM investigations WHERE id = :original AND {visibility.VISIBLE})
    ) AS is_complete
""")  # noqa: S608 - our own text
_COPY = text("""
  WITH added AS (
    SELECT investigation, log_seq FROM work WHERE investigation = :id AND state = 'queued'
  ), copies AS (
    SELECT seq, row_number() OVER (ORDER BY seq) AS position FROM entries
    WHERE investigation = :original AND run = 0
      AND (stage = ANY(CAST(:stages AS text[])) OR (kind = 'RunbookRead' AND CAST(:from_stage AS text) IS NOT NULL))
  ), log AS (
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body, opaque,
      messages, model_calls, tool_calls, call_facts)
    SELECT added.investigation, log_seq + position, at, 1, kind, version, run, stage, execution, body, opaque,
      messages, model_calls, tool_calls, call_facts
    FROM added, copies JOIN entries ON entries.investigation = :original AND entries.seq = copies.seq
  ), their_stages AS (
    INSERT INTO stages (investigation, run, name, started_at, ended_at, outcome, message, lacks, cut_off)
    SELECT added.investigation, run, name, started_at, ended_at, outcome, message, lacks, cut_off
    FROM added, stages
    WHERE stages.investigation = :original AND run = 0 AND name = ANY(CAST(:stages AS text[]))
  ), their_executions AS (
    INSERT INTO executions (investigation, id, run, stage, kind, index, parent, name, provider, strategy, started_at,
      ended_at, outcome, error)
    SELECT added.investigation, id, run, stage, kind, index, parent, name, provider, strategy, started_at, ended_at,
      outcome, error
    FROM added, executions
    WHERE executions.investigation = :original AND run = 0 AND stage = ANY(CAST(:stages AS text[]))
  ), their_results AS (
    INSERT INTO tool_results (investigation, execution, call_id, whole, rest)
    SELECT added.investigation, execution, call_id, whole, rest
    FROM added, tool_results JOIN executions ON id = execution AND executions.investigation = :original
    WHERE tool_results.investigation = :original AND run = 0 AND stage = ANY(CAST(:stages AS text[]))
  ), linked AS (
    UPDATE investigations
    SET retry_of = :original, retry_stage = :from_stage,
      copied_entries = CASE WHEN CAST(:from_stage AS text) IS NULL THEN 0
        ELSE log_seq + (SELECT count(*) FROM copies) END,
      alert_status = (SELECT alert_status FROM investigations WHERE id = :original)
    FROM added WHERE id = added.investigation
  ), original AS (
    UPDATE work SET revision = revision + 1, stale = true, changed = tarsy_now()
    FROM added WHERE work.investigation = :original
  )
  UPDATE work SET log_seq = work.log_seq + (SELECT count(*) FROM copies)
  FROM added WHERE work.investigation = added.investigation
""")
# The numbers of copied executions are 0: no sum has the tokens and the cost of the original. Its entries are written
# under the first claim, as the tool selection is.


async def _admit_retry(
    database: databases.Database, decided: admission.Admission, retry: admission.Retry, values: dict[str, Any]
) -> bool:
    """Admit an investigation that retries another one, with copies of the earlier stages, in one transaction.

    It is refused without a receipt: the author of an object may lack the right to read the original's transcript.
    """
    copied = {
        "id": values["id"],
        "original": UUID(retry.original),
        "stages": list(retry.copied_stages),
        "from_stage": retry.from_stage,
    }
    chain = decided.chain
    detail = {"retry_of": retry.original, "from_stage": retry.from_stage}
    async with database.begin() as connection:
        await connection.execute(_HOLD_ORIGINAL, {"original": copied["original"]})
        proof = {name: values[name] for name in ("id", "namespace", "name", "receipt", "digest", "just_created")}
        original = (
            await connection.execute(_ORIGINAL, proof | {name: copied[name] for name in ("original", "stages")})
        ).one()
        if not original.is_proven:
            chain = admission.Refusal(reason="RetryNotProven", message=UNPROVEN)
        elif not original.is_complete:
            message = "spec.retryOf: the transcript of the investigation was deleted: create a new one"
            chain = admission.Refusal(reason="NotRetriable", message=message)
        values |= {"action": "retry", "detail": json.dumps(detail), **_chain(chain)}
        added = (await connection.execute(_ADMIT, values)).first() is not None
        if added:
            await connection.execute(_COPY, copied)
    if added:
        await notify.send(database, (notify.WORK, ""), (notify.STATUS, decided.id), (notify.STATUS, retry.original))
    return added


_CHAIN_VALUES = (
    *("chain_name", "chain_namespace", "chain_generation", "chain_hash", "chain_version", "chain", "stage_names"),
    *(
        "stage_agents",
        "agent_names",
        "on_resolved",
        "chain_ttl_seconds",
        "transcript_retention_days",
        "max_running",
        "refused_reason",
        "refused_message",
        "refused_body",
    ),
)


def _chain(outcome: admission.AdmittedChain | admission.Refusal) -> dict[str, Any]:
    """Return the values of the chain's snapshot, or of the refusal."""
    values: dict[str, Any] = dict.fromkeys(_CHAIN_VALUES)
    if isinstance(outcome, admission.Refusal):
        return values | {
            "refused_reason": outcome.reason,
            "refused_message": outcome.message,
            "refused_body": _refusal(outcome.reason, outcome.message),
        }
    spec = outcome.spec
    return values | {
        "chain_name": outcome.name,
        "chain_namespace": outcome.namespace,
        "chain_generation": outcome.generation,
        "chain_hash": outcome.hash,
        "chain_version": record.CHAIN_VERSION,
        "chain": json.dumps(spec.model_dump(mode="json", by_alias=True, exclude_none=True)),
        "stage_names": [stage.name for stage in spec.stages],
        "stage_agents": [len(stage.members) for stage in spec.stages],
        "agent_names": json.dumps([[member.name for member in stage.members] for stage in spec.stages]),
        "on_resolved": spec.on_resolved,
        "chain_ttl_seconds": spec.ttl_seconds_after_finished,
        "transcript_retention_days": spec.transcript_retention_days,
        "max_running": spec.max_running or 0,
    }


def _refusal(reason: str, message: str) -> str:
    return entry_versions.encode(entries.RunEnded(ending="Failed", reason=reason, message=message)).body


_IS_KNOWN = text("SELECT 1 FROM work WHERE investigation = :investigation")


async def is_known(database: databases.Database, investigation: UUID) -> bool:
    """Whether the investigation has been admitted or refused."""
    return bool(await database.run(_IS_KNOWN, investigation=investigation))


async def keep_large(
    database: databases.Database, *, namespace: str, object_name: str, name: str, data: str, summary: str = ""
) -> None:
    """Store alert data and the alert's summary for the object `object_name`, which refers to them by `name`.

    Idempotent.
    """
    insert = postgresql.insert(tables.large_alerts).values(
        namespace=namespace, object_name=object_name, name=name, data=data, summary=summary
    )
    async with database.begin() as connection:
        await connection.execute(insert.on_conflict_do_nothing())


_DROP_UNUSED = text(f"""
  WITH candidates AS MATERIALIZED (
    SELECT ctid AS place, CAST(pg_column_size(data) AS bigint) AS size FROM large_alerts
    WHERE created_at < now() - interval '1 hour' ORDER BY created_at LIMIT {batch_limits.ROWS} FOR UPDATE SKIP LOCKED
  )
  DELETE FROM large_alerts WHERE ctid = ANY(ARRAY({batch_limits.limited("place")}))
  RETURNING 1 AS dropped
""")  # noqa: S608 - our own texts


async def drop_unused_large(database: databases.Database) -> None:
    """Delete a batch of alert data whose object was not admitted within an hour, the oldest first."""
    await database.run(_DROP_UNUSED)
