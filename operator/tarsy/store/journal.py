"""The journal in Postgres: each fact one transaction, under the fence of its claim.

A commit whose reply is lost may have happened. It is tried again with the same precondition, the number of commits so
far; where that number has moved on under the same token, it did happen. So nothing is written twice and nothing is
lost, whichever side of the reply the connection broke on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import func, select
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy import failpoints
from tarsy.config import resolve
from tarsy.resources import chain as chains
from tarsy.store import database as databases
from tarsy.store import notify, tables, work
from tarsy.transcript import entries, messages, ports, record

RETRY_SECONDS = 0.5

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
        clear_to_send: Callable[[], Awaitable[None]],
    ) -> None:
        self.record = so_far
        self._database = database
        self._claim = claim
        self._commits = claim.commits
        self._unsettled: entries.Entry | None = None
        self._clear_to_send = clear_to_send

    @classmethod
    async def open(
        cls, database: databases.Database, *, claim: work.Claim, clear_to_send: Callable[[], Awaitable[None]]
    ) -> PgJournal:
        """Read what was committed under earlier claims; `clear_to_send` is the lease's (see `ports.Journal`).

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
                return cls(database, claim=claim, so_far=so_far, clear_to_send=clear_to_send)

    async def clear_to_send(self) -> None:
        """Wait while the lease is in doubt; LeaseLostError when it is gone."""
        await self._clear_to_send()

    async def commit(self, entry: entries.Entry) -> None:
        """Keep `entry`. While the database is down, keep trying: what has been paid for is not thrown away."""
        await self.settle()
        self.record.check(entry)
        failpoints.hit("journal.commit.before")
        self._unsettled = entry
        await self.settle()
        failpoints.hit("journal.commit.after")
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
        state = "ended" if isinstance(entry, entries.InvestigationEnded) else "running"
        async with self._database.begin() as connection:
            if await work.fence(connection, self._claim, commits=self._commits, state=state):
                await self._insert(connection, entry)
            elif await work.commits(connection, self._claim) != self._commits + 1:
                raise ports.LeaseLostError(f"investigation {self._claim.investigation} is another worker's now")

    async def _insert(self, connection: sqlalchemy_asyncio.AsyncConnection, entry: entries.Entry) -> None:
        key = {"investigation": self._claim.investigation}
        match entry:
            case entries.StageStarted():
                position = len(self.record.stages)
                await connection.execute(tables.stages.insert(), {**key, "name": entry.stage, "position": position})
            case entries.ExecutionStarted():
                await self._execution_started(connection, entry)
            case entries.Answered():
                await self._model_called(connection, entry)
                await self._append(connection, entry.execution, entry.messages)
            case entries.Unanswered():
                await self._model_called(connection, entry)
            case entries.ToolsAnswered():
                rows = [
                    {
                        **self._keys(entry.execution),
                        "call_id": run.call.id,
                        "tool_name": run.call.name,
                        "arguments": run.call.arguments,
                        "seconds": run.seconds,
                    }
                    for run in entry.runs
                ]
                await connection.execute(tables.tool_interactions.insert(), rows)
                await self._append(connection, entry.execution, [run.result for run in entry.runs])
            case entries.ExecutionEnded():
                error = entry.text if entry.outcome == "Failed" else None
                update = tables.executions.update().where(
                    tables.executions.c.investigation == self._claim.investigation,
                    tables.executions.c.id == entry.execution,
                )
                await connection.execute(update.values(ended_at=func.now(), outcome=entry.outcome, error=error))
            case entries.StageEnded():
                update = tables.stages.update().where(
                    tables.stages.c.investigation == self._claim.investigation, tables.stages.c.name == entry.stage
                )
                await connection.execute(
                    update.values(ended_at=func.now(), outcome=entry.outcome, message=entry.message)
                )
            case entries.InvestigationEnded():
                update = tables.investigations.update().where(tables.investigations.c.id == self._claim.investigation)
                await connection.execute(
                    update.values(
                        ended_at=func.now(),
                        ending=entry.ending,
                        reason=entry.reason,
                        message=entry.message,
                        final_analysis=entry.final_analysis,
                    )
                )

    async def _execution_started(
        self, connection: sqlalchemy_asyncio.AsyncConnection, entry: entries.ExecutionStarted
    ) -> None:
        row = {
            "investigation": self._claim.investigation,
            "stage": entry.stage,
            "id": entry.execution,
            "agent": _agent.dump_python(entry.agent, mode="json"),
            "tools": _tools.dump_python(entry.tools, mode="json"),
            "opening": len(entry.messages),
        }
        await connection.execute(tables.executions.insert(), row)
        keys = {"investigation": row["investigation"], "stage": entry.stage, "execution": entry.execution}
        await connection.execute(tables.messages.insert(), _message_rows(keys, 0, entry.messages))

    async def _model_called(
        self, connection: sqlalchemy_asyncio.AsyncConnection, entry: entries.Answered | entries.Unanswered
    ) -> None:
        log = self.record.execution(entry.execution).log
        added = len(entry.messages) - 1 if isinstance(entry, entries.Answered) else 0
        failure = entry.failure if isinstance(entry, entries.Unanswered) else None
        usage = entry.call.usage
        row = {
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
        await connection.execute(tables.llm_interactions.insert(), row)

    async def _append(
        self, connection: sqlalchemy_asyncio.AsyncConnection, execution: str, added: Iterable[messages.Message]
    ) -> None:
        start = _count(self.record.execution(execution).log)
        await connection.execute(tables.messages.insert(), _message_rows(self._keys(execution), start, added))

    def _keys(self, execution: str) -> dict[str, Any]:
        stage = self.record.execution(execution).started.stage
        return {"investigation": self._claim.investigation, "stage": stage, "execution": execution}

    def _where(self, action: str) -> dict[str, object]:
        return {"action": action, "investigation": self._claim.investigation}


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
    async with database.begin() as connection:
        rows = {
            table.name: list(
                await connection.execute(
                    select(table).where(table.c.investigation == claim.investigation).order_by(*order)
                )
            )
            for table, order in (
                (tables.stages, [tables.stages.c.position]),
                (tables.executions, [tables.executions.c.started_at]),
                (tables.messages, [tables.messages.c.position]),
                (tables.llm_interactions, [tables.llm_interactions.c.position]),
            )
        }
        table = tables.investigations
        facts = (await connection.execute(select(table).where(table.c.id == claim.investigation))).one()
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
        so_far.stages[row.name] = record.Stage(executions=executions, ended=ended)
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
        text=row.error if row.outcome == "Failed" else conversation[-1].text,
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
