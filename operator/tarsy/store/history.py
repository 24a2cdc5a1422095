"""What people and the status are told of an investigation: reads of the store, shaped for them.

`summary` is what the status needs, with the numbers summed by the database; `transcript` is everything that was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import select, text

from tarsy.store import database as databases
from tarsy.store import tables


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage in numbers."""

    name: str
    outcome: str | None
    message: str
    started_at: datetime
    ended_at: datetime | None
    iterations: int
    tool_calls: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One investigation in numbers, as of `seq`; `now` is the database's time when it was read."""

    id: UUID
    seq: int
    projected_seq: int
    state: str
    attempts: int
    namespace: str
    name: str
    generation: int
    alert_type: str
    chain_name: str | None
    chain_namespace: str | None
    chain_generation: int | None
    chain_hash: str | None
    stage_names: tuple[str, ...]
    """The chain's stages, those that have not started too."""
    stages: tuple[Stage, ...]
    admitted_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    ending: str | None
    reason: str
    message: str
    final_analysis: str
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    llm_calls: int
    cancel: str | None
    suspend: bool
    duplicates: int
    alert_status: Literal["firing", "resolved"] | None


_FACTS = text("""
  SELECT work.seq, work.projected_seq, work.state, work.attempts, work.cancel, work.suspend, investigations.*,
    (SELECT count(*) FROM llm_interactions WHERE investigation = :id) AS llm_calls,
    (SELECT coalesce(sum(input_tokens), 0) FROM llm_interactions WHERE investigation = :id) AS input_tokens,
    (SELECT coalesce(sum(output_tokens), 0) FROM llm_interactions WHERE investigation = :id) AS output_tokens,
    (SELECT coalesce(sum(thinking_tokens), 0) FROM llm_interactions WHERE investigation = :id) AS thinking_tokens,
    (SELECT coalesce(sum(total_tokens), 0) FROM llm_interactions WHERE investigation = :id) AS total_tokens
  FROM work JOIN investigations ON id = investigation
  WHERE investigation = :id
""")

_STAGES = text("""
  SELECT name, outcome, coalesce(message, '') AS message, started_at, ended_at,
    (SELECT count(*) FROM llm_interactions AS call
     WHERE call.investigation = stages.investigation AND call.stage = stages.name) AS iterations,
    (SELECT count(*) FROM tool_interactions AS call
     WHERE call.investigation = stages.investigation AND call.stage = stages.name) AS tool_calls,
    (SELECT coalesce(sum(total_tokens), 0) FROM llm_interactions AS call
     WHERE call.investigation = stages.investigation AND call.stage = stages.name) AS tokens
  FROM stages WHERE investigation = :id ORDER BY position
""")


async def summary(database: databases.Database, investigation: UUID) -> Summary | None:
    """The investigation in numbers; None where there is none of that id."""
    async with database.single() as connection:
        facts = (await connection.execute(_FACTS, {"id": investigation})).one_or_none()
        if facts is None:
            return None
        stages = [Stage(**row) for row in (await connection.execute(_STAGES, {"id": investigation})).mappings()]
    chain: dict[str, Any] = facts.chain or {"stages": []}
    return Summary(
        id=facts.id,
        seq=facts.seq,
        projected_seq=facts.projected_seq,
        state=facts.state,
        attempts=facts.attempts,
        namespace=facts.namespace,
        name=facts.name,
        generation=facts.generation,
        alert_type=facts.alert_type,
        chain_name=facts.chain_name,
        chain_namespace=facts.chain_namespace,
        chain_generation=facts.chain_generation,
        chain_hash=facts.chain_hash,
        stage_names=tuple(stage["name"] for stage in chain["stages"]),
        stages=tuple(stages),
        admitted_at=facts.admitted_at,
        started_at=facts.started_at,
        ended_at=facts.ended_at,
        ending=facts.ending,
        reason=facts.reason or "",
        message=facts.message or "",
        final_analysis=facts.final_analysis or "",
        input_tokens=int(facts.input_tokens),
        output_tokens=int(facts.output_tokens),
        thinking_tokens=int(facts.thinking_tokens),
        total_tokens=int(facts.total_tokens),
        llm_calls=facts.llm_calls,
        cancel=facts.cancel,
        suspend=facts.suspend,
        duplicates=facts.duplicates,
        alert_status=facts.alert_status,
    )


async def transcript(database: databases.Database, investigation: UUID) -> dict[str, Sequence[dict[str, Any]]]:
    """Every message, model call and tool call, in the order in which they were committed, as JSON-ready rows."""
    async with database.begin() as connection:
        return {
            table.name: [
                {key: value for key, value in row.items() if key not in ("investigation", "provider_state")}
                for row in (
                    await connection.execute(
                        select(table).where(table.c.investigation == investigation).order_by(table.c.created_at, *order)
                    )
                ).mappings()
            ]
            for table, order in (
                (tables.messages, [tables.messages.c.execution, tables.messages.c.position]),
                (tables.llm_interactions, [tables.llm_interactions.c.execution, tables.llm_interactions.c.position]),
                (tables.tool_interactions, [tables.tool_interactions.c.execution, tables.tool_interactions.c.call_id]),
            )
        }
