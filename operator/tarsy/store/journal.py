"""The journal in Postgres: each fact one transaction, under the fence of its claim.

A commit whose reply is lost may have happened. It is tried again with the same precondition, the number of commits so
far; where that number has moved on under the same token, it did happen. So nothing is written twice and nothing is
lost, whichever side of the reply the connection broke on.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import JSON, Column, Table, TextClause, func, select, text
from sqlalchemy.dialects import postgresql

from tarsy import failpoints
from tarsy.config import resolve
from tarsy.resources import chain as chains
from tarsy.store import database as databases
from tarsy.store import notify, tables, work
from tarsy.transcript import entries, messages, ports, record

RETRY_SECONDS = 0.5
_DIALECT = postgresql.dialect()  # type: ignore[no-untyped-call]
_LATER = frozenset({"ended_at", "outcome", "message", "error"})  # of stages and executions: said by their ends

log = logging.getLogger(__name__)

_agent = TypeAdapter(resolve.ResolvedAgent)
_tools = TypeAdapter(tuple[messages.ToolSpec, ...])
_calls = TypeAdapter(tuple[messages.ToolCall, ...])
_attempts = TypeAdapter(tuple[entries.Attempt, ...])
_state = TypeAdapter(messages.ProviderState)


class PgJournal:
    """The facts of one claimed investigation."""

    def __init__(
        self,
        database: databases.Database,
        *,
        claim: work.Claim,
        so_far: record.Record,
        ensure_lease: Callable[[], Awaitable[None]],
    ) -> None:
        self.record = so_far
        self._database = database
        self._claim = claim
        self._commits = claim.commits
        self._unsettled: entries.Entry | None = None
        self._ensure_lease = ensure_lease

    @classmethod
    async def open(
        cls, database: databases.Database, *, claim: work.Claim, ensure_lease: Callable[[], Awaitable[None]]
    ) -> PgJournal:
        """Read what was committed under earlier claims; `ensure_lease` is the lease's (see `ports.Journal`).

        While the database is down, keep trying: a claim is not given up for a moment's silence.
        """
        while True:
            try:
                so_far = await load(database, claim)
            except databases.StoreDownError as error:
                extra = {"action": "load_waits", "investigation": claim.investigation}
                log.warning("a record cannot be read yet: %s", error, extra=extra)
                await asyncio.sleep(RETRY_SECONDS)
            else:
                return cls(database, claim=claim, so_far=so_far, ensure_lease=ensure_lease)

    async def ensure_lease(self) -> None:
        """Wait while the lease is in doubt; LeaseLostError when it is gone."""
        await self._ensure_lease()

    async def commit(self, entry: entries.Entry) -> None:
        """Keep `entry`. While the database is down, keep trying: what has been paid for is not thrown away."""
        await self.settle()
        self.record.check(entry)
        failpoints.hit("journal.commit.before")
        self._unsettled = entry
        await self.settle()
        failpoints.hit("journal.commit.after")
        if isinstance(entry, entries.InvestigationEnded):
            # The only commit that changes the phase: all others the projector finds by itself, once a second.
            await notify.send(self._database, notify.STATUS, str(self._claim.investigation))

    async def settle(self) -> None:
        """Bring a commit to its end that was cancelled under way: it may have happened, and now it has."""
        while self._unsettled is not None:
            try:
                await self._write(self._unsettled)
            except databases.StoreDownError as error:
                log.warning("a commit waits: %s", error, extra=self._where("commit_waits"))
                await asyncio.sleep(RETRY_SECONDS)
            else:
                entry, self._unsettled = self._unsettled, None
                self._commits += 1
                self.record.apply(entry)

    async def _write(self, entry: entries.Entry) -> None:
        fence = {
            "investigation": self._claim.investigation,
            "token": self._claim.token,
            "commits": self._commits,
            "state": "ended" if isinstance(entry, entries.InvestigationEnded) else "running",
        }
        statement, values = self._change(entry)
        async with self._database.single() as connection:
            written = (await connection.execute(statement, fence | values)).first() is not None
            if not written and await work.commits(connection, self._claim) != self._commits + 1:
                raise ports.LeaseLostError(f"investigation {self._claim.investigation} is another worker's now")

    def _change(self, entry: entries.Entry) -> tuple[TextClause, dict[str, Any]]:
        """The statement that keeps `entry`, and its values but for the fence's."""
        match entry:
            case entries.StageStarted():
                return _adding({tables.stages: [{"name": entry.stage, "position": len(self.record.stages)}]})
            case entries.ExecutionStarted():
                return _adding(_execution_started(entry))
            case entries.Answered() | entries.Unanswered():
                called = self._model_called(entry)
                return _adding({tables.llm_interactions: [called], tables.messages: self._added(entry, entry.messages)})
            case entries.ToolsAnswered():
                runs = [
                    {
                        **self._keys(entry.execution),
                        "call_id": run.call.id,
                        "tool_name": run.call.name,
                        "arguments": run.call.arguments,
                        "seconds": run.seconds,
                    }
                    for run in entry.runs
                ]
                results = self._added(entry, [run.result for run in entry.runs])
                return _adding({tables.tool_interactions: runs, tables.messages: results})
            case entries.ExecutionEnded():
                error = None if entry.outcome == "Completed" else entry.text
                return _EXECUTION_ENDED, {"execution": entry.execution, "outcome": entry.outcome, "error": error}
            case entries.StageEnded(outcome="Skipped"):
                position = len(self.record.stages)
                return _STAGE_SKIPPED, {"stage": entry.stage, "position": position, "message": entry.message}
            case entries.StageEnded():
                return _STAGE_ENDED, {"stage": entry.stage, "outcome": entry.outcome, "message": entry.message}
            case entries.InvestigationEnded():
                return _INVESTIGATION_ENDED, {
                    "ending": entry.ending,
                    "reason": entry.reason,
                    "message": entry.message,
                    "final_analysis": entry.final_analysis,
                }

    def _model_called(self, entry: entries.Answered | entries.Unanswered) -> dict[str, Any]:
        log = self.record.execution(entry.execution).log
        failure = entry.failure if isinstance(entry, entries.Unanswered) else None
        added = len(entry.messages) if failure else len(entry.messages) - 1  # the answer itself was not sent
        usage = entry.call.usage
        return {
            **self._keys(entry.execution),
            "position": len(messages.answers(log)),
            "provider": entry.call.provider,
            "model": entry.call.model,
            "asked_with": _count(log) + added,
            "seconds": entry.call.seconds,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "thinking_tokens": usage.thinking_tokens,
            "total_tokens": usage.total_tokens,
            "attempts": _attempts.dump_python(entry.call.attempts, mode="json"),
            "failure": failure.kind if failure else None,
            "failure_text": failure.text if failure else None,
        }

    def _added(
        self, entry: entries.Answered | entries.Unanswered | entries.ToolsAnswered, added: Iterable[messages.Message]
    ) -> list[dict[str, Any]]:
        start = _count(self.record.execution(entry.execution).log)
        return _message_rows(self._keys(entry.execution), start, added)

    def _keys(self, execution: str) -> dict[str, Any]:
        stage = self.record.execution(execution).started.stage
        return {"stage": stage, "execution": execution}

    def _where(self, action: str) -> dict[str, object]:
        return {"action": action, "investigation": self._claim.investigation}


_EXECUTION_ENDED = text(f"""
  WITH {work.FENCED}, ended AS (
    UPDATE executions SET ended_at = now(), outcome = :outcome, error = :error
    FROM fenced WHERE executions.investigation = fenced.investigation AND id = :execution
  )
  SELECT investigation FROM fenced
""")  # noqa: S608 - one text in another

_STAGE_ENDED = text(f"""
  WITH {work.FENCED}, ended AS (
    UPDATE stages SET ended_at = now(), outcome = :outcome, message = :message
    FROM fenced WHERE stages.investigation = fenced.investigation AND name = :stage
  )
  SELECT investigation FROM fenced
""")  # noqa: S608 - as above

_STAGE_SKIPPED = text(f"""
  WITH {work.FENCED}, skipped AS (
    INSERT INTO stages (investigation, name, position, ended_at, outcome, message)
    SELECT investigation, :stage, :position, now(), 'Skipped', :message FROM fenced
  )
  SELECT investigation FROM fenced
""")  # noqa: S608 - as above

_INVESTIGATION_ENDED = text(f"""
  WITH {work.FENCED}, ended AS (
    UPDATE investigations
    SET ended_at = now(), ending = :ending, reason = :reason, message = :message, final_analysis = :final_analysis
    FROM fenced WHERE id = fenced.investigation
  )
  SELECT investigation FROM fenced
""")  # noqa: S608 - as above


def _adding(rows: Mapping[Table, Sequence[Mapping[str, Any]]]) -> tuple[TextClause, dict[str, Any]]:
    """A statement that adds rows to some tables, if the fence lets it; and their values, an array a column."""
    values = {
        f"{table.name}_{column.name}": [_value(column, row) for row in added]
        for table, added in rows.items()
        for column in _columns(table)
    }
    return _insertion(tuple(rows)), values


@functools.cache
def _insertion(added_to: tuple[Table, ...]) -> TextClause:
    parts = [work.FENCED]
    for table in added_to:
        columns = ", ".join(column.name for column in _columns(table))
        arrays = ", ".join(
            f"CAST(:{table.name}_{column.name} AS {column.type.compile(_DIALECT)}[])" for column in _columns(table)
        )
        parts.append(f"""
  {table.name}_added AS (
    INSERT INTO {table.name} (investigation, {columns})
    SELECT investigation, added.* FROM fenced, unnest({arrays}) AS added({columns})
  )""")  # noqa: S608 - names of our own tables
    return text(f"WITH {','.join(parts)} SELECT investigation FROM fenced")  # noqa: S608 - as above


@functools.cache
def _columns(table: Table) -> tuple[Column[Any], ...]:
    """What a commit says of a row: the investigation is the fence's, moments and what comes later are not said."""
    return tuple(
        column
        for column in table.c
        if column.name != "investigation" and column.server_default is None and column.name not in _LATER
    )


def _value(column: Column[Any], row: Mapping[str, Any]) -> Any:
    value = row[column.name]
    # As text, and in a column's own array: JSON functions would refuse an escaped NUL.
    return json.dumps(value) if isinstance(column.type, JSON) and value is not None else value


def _execution_started(entry: entries.ExecutionStarted) -> dict[Table, list[dict[str, Any]]]:
    row = {
        "stage": entry.stage,
        "id": entry.execution,
        "agent": _agent.dump_python(entry.agent, mode="json"),
        "tools": _tools.dump_python(entry.tools, mode="json"),
        "opening": len(entry.messages),
    }
    keys = {"stage": entry.stage, "execution": entry.execution}
    return {tables.executions: [row], tables.messages: _message_rows(keys, 0, entry.messages)}


def _count(log: messages.Log) -> int:
    return sum(isinstance(entry, messages.Message) for entry in log)


def _message_rows(keys: dict[str, Any], start: int, added: Iterable[messages.Message]) -> list[dict[str, Any]]:
    return [
        {
            **keys,
            "position": position,
            "role": message.role,
            "text": message.text,
            "thinking": message.thinking,
            "tool_calls": _calls.dump_python(message.calls, mode="json"),
            "tool_call_id": message.call_id,
            "tool_name": message.tool_name,
            "failed": message.failed,
            "in_doubt": message.in_doubt,
            "provider_state": message.provider_state and _state.dump_python(message.provider_state, mode="json"),
        }
        for position, message in enumerate(added, start)
    ]


async def load(database: databases.Database, claim: work.Claim) -> record.Record:
    """Fold what is stored of the claimed investigation into a record."""
    table = tables.investigations
    facts_of = select(table, func.clock_timestamp().label("now")).where(table.c.id == claim.investigation)
    if claim.commits == 0:
        async with database.single() as connection:
            return record.Record(subject=_subject((await connection.execute(facts_of)).one()))
    async with database.begin() as connection:
        rows = {
            rows_of.name: list(
                await connection.execute(
                    select(rows_of).where(rows_of.c.investigation == claim.investigation).order_by(*order)
                )
            )
            for rows_of, order in (
                (tables.stages, [tables.stages.c.position]),
                (tables.executions, [tables.executions.c.started_at]),
                (tables.messages, [tables.messages.c.position]),
                (tables.llm_interactions, [tables.llm_interactions.c.position]),
            )
        }
        facts = (await connection.execute(facts_of)).one()
    so_far = record.Record(subject=_subject(facts))
    for row in rows["stages"]:
        executions = {
            execution.id: _execution(
                execution,
                said=[m for m in rows["messages"] if m.execution == execution.id],
                asked=[call for call in rows["llm_interactions"] if call.execution == execution.id],
            )
            for execution in rows["executions"]
            if execution.stage == row.name
        }
        ended = row.outcome and entries.StageEnded(stage=row.name, outcome=row.outcome, message=row.message)
        since = time.monotonic() - (facts.now - row.started_at).total_seconds()
        so_far.stages[row.name] = record.Stage(executions=executions, ended=ended, since=since)
    return so_far


def _subject(facts: Any) -> record.Subject:
    return record.Subject(
        id=str(facts.id),
        namespace=facts.namespace,
        name=facts.name,
        alert_type=facts.alert_type,
        alert_data=facts.alert_data,
        severity=facts.severity,
        runbook_url=facts.runbook_url,
        chain_name=facts.chain_name,
        chain=chains.Spec.model_validate(facts.chain),
    )


def _execution(row: Any, *, said: list[Any], asked: list[Any]) -> record.Execution:
    conversation = [_message(message) for message in said]
    failures = [(call.asked_with, call) for call in asked if call.failure]
    log: messages.Log = []
    for position in range(len(conversation) + 1):
        log += [messages.Failure(kind=call.failure, text=call.failure_text) for at, call in failures if at == position]
        log += conversation[position : position + 1]
    started = entries.ExecutionStarted(
        stage=row.stage,
        execution=row.id,
        agent=_agent.validate_python(row.agent),
        tools=_tools.validate_python(row.tools),
        messages=tuple(conversation[: row.opening]),
    )
    ended = row.outcome and entries.ExecutionEnded(
        execution=row.id,
        outcome=row.outcome,
        text=conversation[-1].text if row.outcome == "Completed" else row.error,
    )
    return record.Execution(started=started, log=log, ended=ended)


def _message(row: Any) -> messages.Message:
    return messages.Message(
        role=row.role,
        text=row.text,
        thinking=row.thinking,
        calls=_calls.validate_python(row.tool_calls),
        call_id=row.tool_call_id,
        tool_name=row.tool_name,
        failed=row.failed,
        in_doubt=row.in_doubt,
        provider_state=row.provider_state and _state.validate_python(row.provider_state),
    )
