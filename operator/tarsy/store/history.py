"""What people and the status are told of an investigation: reads of the store, shaped for them.

`summary` is what the status needs, with the numbers summed by the database; `read` is everything.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Literal, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, Table, func, select, text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.resources import investigation as investigations
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
    """One investigation in numbers, as of `seq`."""

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

    @property
    def phase(self) -> investigations.Phase:
        """Where it stands, in one word for people."""
        match self.ending, self.state:
            case ("Completed" | "CompletedWithErrors" | "Failed" | "Cancelled" | "TimedOut") as ending, _:
                return ending
            case _, "running":
                return "Cancelling" if self.cancel else "Running"
            case _:
                return "Suspended" if self.suspend else "Queued"


@dataclass(frozen=True, kw_only=True)
class Execution:
    """One agent's work in one stage: what it ran with, fixed at its start, and how it ended."""

    stage: str
    id: str
    agent: dict[str, Any]
    """Its settings, resolved."""
    tools: list[dict[str, Any]]
    """The tools that it was shown."""
    started_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of an execution's conversation, as the model saw it."""

    stage: str
    execution: str
    position: int
    """In the conversation, from 0."""
    role: Literal["system", "user", "assistant", "tool"]
    text: str
    thinking: str
    """What the model let us see of its thoughts; it was never sent back as text."""
    tool_calls: list[dict[str, Any]]
    """The calls that it asks for: id, name (`server.tool`), arguments (JSON as text)."""
    tool_call_id: str
    """With role tool: the call that this is the result of."""
    tool_name: str
    failed: bool
    """With role tool: the tool answered with an error, or not at all."""
    in_doubt: bool
    """With role tool: the call may have happened, and was not repeated."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class ModelCall:
    """One model call: what it was asked with, what it cost, and why it brought nothing, if so."""

    stage: str
    execution: str
    position: int
    """Which of the execution's model calls, from 0."""
    provider: str
    model: str
    asked_with: int
    """It was sent the first so many messages of the execution."""
    seconds: float
    input_tokens: int
    output_tokens: int
    thinking_tokens: int
    total_tokens: int
    attempts: list[dict[str, Any]]
    """Requests that failed before, each with its error and the tokens it had counted, which are not in the above."""
    failure: str | None
    failure_text: str | None
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One tool call that was made; its result is the message with its `tool_call_id`."""

    stage: str
    execution: str
    call_id: str
    tool_name: str
    arguments: str
    seconds: float
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Investigation:
    """Everything that is known of one investigation; each list in the order of its commits."""

    phase: investigations.Phase
    summary: Summary
    alert_data: str
    """As the agents read it, masked."""
    severity: str | None
    runbook_url: str | None
    chain: dict[str, Any] | None
    """The chain's spec as it was when the investigation was admitted; None where there was none."""
    executions: list[Execution]
    messages: list[Message]
    llm_interactions: list[ModelCall]
    tool_interactions: list[ToolCall]


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
    (SELECT CAST(coalesce(sum(total_tokens), 0) AS bigint) FROM llm_interactions AS call
     WHERE call.investigation = stages.investigation AND call.stage = stages.name) AS tokens
  FROM stages WHERE investigation = :id ORDER BY position
""")


async def summary(database: databases.Database, investigation: UUID) -> Summary | None:
    """The investigation in numbers; None where there is none of that id."""
    async with database.snapshot() as connection:
        return await _summary(connection, investigation)


async def _summary(connection: sqlalchemy_asyncio.AsyncConnection, investigation: UUID) -> Summary | None:
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


_Row = TypeVar("_Row", Execution, Message, ModelCall, ToolCall)


async def read(database: databases.Database, investigation: UUID) -> Investigation | None:
    """Everything that is known of the investigation; None where there is none of that id."""
    async with database.snapshot() as connection:
        found = await _summary(connection, investigation)
        if found is None:
            return None

        async def rows(shape: type[_Row], table: Table, *order: ColumnElement[Any]) -> list[_Row]:
            columns = [table.c[field.name] for field in fields(shape)]
            of = select(*columns).where(table.c.investigation == investigation).order_by(*order)
            return [shape(**row) for row in (await connection.execute(of)).mappings()]

        facts = tables.investigations.c
        alert = (
            await connection.execute(
                select(facts.alert_data, facts.severity, facts.runbook_url, facts.chain).where(
                    facts.id == investigation
                )
            )
        ).one()
        said, asked, called = tables.messages.c, tables.llm_interactions.c, tables.tool_interactions.c
        return Investigation(
            phase=found.phase,
            summary=found,
            alert_data=alert.alert_data,
            severity=alert.severity,
            runbook_url=alert.runbook_url,
            chain=alert.chain,
            executions=await rows(Execution, tables.executions, tables.executions.c.started_at),
            messages=await rows(Message, tables.messages, said.created_at, said.execution, said.position),
            llm_interactions=await rows(
                ModelCall, tables.llm_interactions, asked.created_at, asked.execution, asked.position
            ),
            tool_interactions=await rows(
                ToolCall,
                tables.tool_interactions,
                called.created_at,
                called.execution,
                func.length(called.call_id),  # 0.10 comes after 0.2
                called.call_id,
            ),
        )
