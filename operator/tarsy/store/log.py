"""Appending to the log: each commit is one statement.

The statement checks the fence, inserts the entries, and updates the narrow rows that lists and the status read (`runs`,
`stages`, `executions`). It is composed of the parts that a commit needs. Each part takes its rows as arrays, so that
few different statements serve all commits.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from sqlalchemy import TextClause, text

from tarsy.transcript import entries, entry_versions, excerpts, line_excerpts, messages
from tarsy.transcript.kinds import registry

SEARCHED_MAX = 64 * 1024
"""Characters of the analysis, and of the summary, that a search matches; `tarsy_words` reads no more."""

ERROR_MAX = 200
"""Characters of a provider's error that the status shows while the request is retried."""

NAME_MAX = 200
"""Characters of the name of a call that its facts hold: a model may ask for a tool of any name."""

STAGE_REASONS = ("StagesCompleted", "StagesFailed")
"""The reasons of a run that its stages ended."""

RunAndStage = Callable[[str], tuple[int, str]]
"""Returns the run and stage of an execution by its id."""

_FENCE = """
  fenced AS (
    UPDATE work
    SET log_seq = log_seq + :count,
      attempts_without_progress = CASE WHEN :progresses THEN 0 ELSE attempts_without_progress END,
      revision = revision + CAST(run = 0 AS integer), stale = stale OR run = 0,
      changed = CASE WHEN :changes_stages AND run = 0 THEN tarsy_now() ELSE changed END,
      state = CASE WHEN :ends THEN 'ended' ELSE state END,
      token = CASE WHEN :clear_token THEN NULL ELSE token END
    WHERE investigation = :investigation AND log_seq = :log_seq AND token IS NOT DISTINCT FROM :token
      AND nullif(state, 'ended') IS NOT NULL
    RETURNING investigation, claims, joined, clock_timestamp() AS at
  )"""
# By a function, so that no plan reads the index of all open runs: statistics from a quiet hour say that it is empty.

_RETRY = {"retrying": "text", "retry_seconds": "double precision"}
_COUNTERS = ("iterations", "tool_calls", "input_tokens", "output_tokens", "thinking_tokens", "total_tokens")
_PROGRESS = {"outcome": "text", "error": "text", **dict.fromkeys(_COUNTERS, "bigint"), "cost": "double precision"}

_PARTS: dict[str, tuple[dict[str, str], str]] = {
    "entries": (
        {
            "seq": "bigint",
            "kind": "text",
            "version": "integer",
            "run": "integer",
            "stage": "text",
            "execution": "text",
            "body": "text",
            "opaque": "text",
            "messages": "integer",
            "model_calls": "integer",
            "tool_calls": "integer",
            "call_facts": "text",
        },
        """
    INSERT INTO entries (investigation, seq, at, claim, kind, version, run, stage, execution, body, opaque,
      messages, model_calls, tool_calls, call_facts)
    SELECT investigation, seq, fenced.at, claims, kind, version, run, stage, execution, CAST(body AS json),
      CAST(opaque AS json), messages, model_calls, tool_calls, CAST(call_facts AS json)
    FROM fenced, {rows}""",
    ),
    "wholes": (
        {"execution": "text", "call_id": "text", "whole": "text", "rest": "text"},
        """
    INSERT INTO tool_results (investigation, execution, call_id, whole, rest)
    SELECT investigation, execution, call_id, whole, rest FROM fenced, {rows}""",
    ),
    "new_stages": (
        {"run": "integer", "name": "text", "outcome": "text", "message": "text", "lacks": "text", "cut_off": "boolean"},
        """
    INSERT INTO stages (investigation, run, name, started_at, ended_at, outcome, message, lacks, cut_off)
    SELECT investigation, run, name, CASE WHEN outcome IS DISTINCT FROM 'Skipped' THEN fenced.at END,
      CASE WHEN outcome IS NOT NULL THEN fenced.at END, outcome, message, CAST(lacks AS json), cut_off
    FROM fenced, {rows}""",
    ),
    "ended_stages": (
        {"run": "integer", "name": "text", "outcome": "text", "message": "text", "lacks": "text", "cut_off": "boolean"},
        """
    UPDATE stages
    SET ended_at = fenced.at, outcome = added.outcome, message = added.message,
      lacks = CAST(added.lacks AS json), cut_off = added.cut_off
    FROM fenced, {rows}
    WHERE stages.investigation = fenced.investigation AND stages.run = added.run AND stages.name = added.name""",
    ),
    "new_executions": (
        {
            "id": "text",
            "run": "integer",
            "stage": "text",
            "kind": "text",
            "index": "integer",
            "parent": "text",
            "name": "text",
            "provider": "text",
            "strategy": "text",
            **_PROGRESS,
        },
        """
    INSERT INTO executions
      (investigation, id, run, stage, kind, index, parent, name, provider, strategy, started_at, ended_at, outcome,
      error, iterations, tool_calls, input_tokens, output_tokens, thinking_tokens, total_tokens, cost)
    SELECT investigation, id, run, stage, kind, index, parent, name, provider, strategy, fenced.at,
      CASE WHEN outcome IS NOT NULL THEN fenced.at END, outcome, error,
      iterations, tool_calls, input_tokens, output_tokens, thinking_tokens, total_tokens, cost
    FROM fenced, {rows}""",
    ),
    "moved_executions": (
        {
            "id": "text",
            "provider": "text",
            **_PROGRESS,
            **_RETRY,
        },
        """
    UPDATE executions AS known
    SET iterations = known.iterations + added.iterations, tool_calls = known.tool_calls + added.tool_calls,
      input_tokens = known.input_tokens + added.input_tokens,
      output_tokens = known.output_tokens + added.output_tokens,
      thinking_tokens = known.thinking_tokens + added.thinking_tokens,
      total_tokens = known.total_tokens + added.total_tokens,
      cost = CASE WHEN added.cost IS NULL THEN known.cost ELSE coalesce(known.cost, 0) + added.cost END,
      provider = coalesce(added.provider, known.provider),
      ended_at = CASE WHEN added.outcome IS NOT NULL THEN fenced.at ELSE known.ended_at END,
      outcome = coalesce(added.outcome, known.outcome), error = added.error,
      retrying = added.retrying, retry_at = fenced.at + added.retry_seconds * interval '1 second',
      retry_claim = fenced.claims
    FROM fenced, {rows}
    WHERE known.investigation = fenced.investigation AND known.id = added.id""",
    ),
    "ended_runs": (
        {
            "number": "integer",
            "ending": "text",
            "reason": "text",
            "message": "text",
            "final_analysis": "text",
            "summary": "text",
            "gaps": "text",
            "grounds": "text",
        },
        """
    UPDATE runs
    SET ended_at = fenced.at, ending = added.ending, reason = added.reason, message = added.message,
      final_analysis = added.final_analysis, summary = added.summary, gaps = CAST(added.gaps AS json),
      grounds = added.grounds
    FROM fenced, {rows}
    WHERE runs.investigation = fenced.investigation AND runs.number = added.number""",
    ),
    "settled_requests": (
        {"request": "uuid", "tokens": "bigint", "cost": "numeric", "is_whole": "boolean"},
        """
    DELETE FROM budget_reservations AS reserved
    USING fenced, {rows}
    WHERE reserved.request = added.request
    RETURNING reserved.budget, reserved.unit, reserved.subject, reserved.period, reserved.amount,
      CASE unit WHEN 'tokens' THEN added.tokens WHEN 'cost' THEN coalesce(added.cost, 0) ELSE 1 END AS counted,
      unit = 'model_calls' OR (added.is_whole AND (unit = 'tokens' OR added.cost IS NOT NULL)) AS is_whole
  ), settled AS (
    SELECT budget, unit, subject, period, sum(counted) AS counted,
      sum(CASE WHEN is_whole THEN counted ELSE greatest(counted, amount) END - amount) AS difference
    FROM settled_requests GROUP BY 1, 2, 3, 4
  ), held_ledgers AS (
    SELECT settled.* FROM settled JOIN budget_ledgers AS ledger USING (budget, unit, subject, period)
    ORDER BY budget, unit, subject, period
    FOR NO KEY UPDATE OF ledger
  ), settled_ledgers AS (
    UPDATE budget_ledgers AS ledger
    SET used = ledger.used + held_ledgers.difference, settled = ledger.settled + held_ledgers.counted
    FROM held_ledgers
    WHERE (ledger.budget, ledger.unit, ledger.subject, ledger.period)
      = (held_ledgers.budget, held_ledgers.unit, held_ledgers.subject, held_ledgers.period)""",
    ),
    "ended_investigations": (
        {"ending": "text", "analysis": "text", "summary": "text", "former": "uuid"},
        """
    UPDATE investigations
    SET ended_at = fenced.at, ending = added.ending, previous = coalesce(added.former, investigations.previous),
      words = words || tarsy_words(added.analysis) || tarsy_words(added.summary)
    FROM fenced, {rows}
    WHERE investigations.id = fenced.investigation""",
    ),
}
"""For each part the columns of its rows with their types, and the statement that uses the rows (`added`).

`settled_requests` is followed by expressions of its own: the ledgers of budgets are locked in the order in which
requests lock them (`queue.ledgers`).
"""

_STAGES = frozenset({"new_stages", "ended_stages"})
"""The parts that change an investigation in lists (`work.changed`), beside its end."""

Row = dict[str, Any]


@dataclass(kw_only=True)
class _Changes:
    """The rows of a commit, by part. A row that begins and ends in one commit is inserted in its final state."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    places: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The run and stage of each execution that begins in the commit."""

    def add(self, part: str, row: Row) -> Row:
        self.rows.setdefault(part, []).append(row)
        return row

    def find(self, part: str, **keys: Any) -> Row | None:
        matching = (row for row in self.rows.get(part, ()) if row.items() >= keys.items())
        return next(matching, None)

    def execution(self, identity: str) -> Row:
        """Return the row of an execution, new or not. Any change of it ends a retry."""
        change = self.find("new_executions", id=identity) or self.find("moved_executions", id=identity)
        row = change or self.add("moved_executions", {"id": identity, "provider": None, **_NO_PROGRESS})
        row |= dict.fromkeys(_RETRY)
        return row


_NO_PROGRESS: Row = {"outcome": None, "error": "", **dict.fromkeys(_COUNTERS, 0), "cost": None}


@dataclass(frozen=True)
class Prepared:
    """An entry, and its stored form."""

    entry: entries.Entry
    stored: entry_versions.Stored


def prepare(entry: entries.Entry) -> Prepared:
    """Encode an entry. Raises ValueError if it cannot be stored."""
    return Prepared(entry, entry_versions.encode(entry))


def append_statement(
    added: Sequence[Prepared],
    *,
    investigation: UUID,
    log_seq: int,
    token: UUID | None,
    where: RunAndStage,
    clear_token: bool = False,
) -> tuple[TextClause, dict[str, Any]]:
    """Return the statement that appends `added` after entry `log_seq`, and its values.

    The statement returns a row. If `log_seq` is not the last entry, or `token` is not the claim's, it changes nothing
    and returns no row. With `clear_token` it also ends the claim, so that the claim's worker can no longer write.
    """
    changes = _changes(added, log_seq=log_seq, where=where)
    parts = tuple(part for part in _PARTS if part in changes.rows)
    values = {
        f"{part}_{column}": [row[column] for row in changes.rows[part]] for part in parts for column in _PARTS[part][0]
    }
    fence = {
        "investigation": investigation,
        "token": token,
        "log_seq": log_seq,
        "count": len(added),
        "progresses": not all(isinstance(prepared.entry, entries.ModelRetried) for prepared in added),
        "ends": "ended_runs" in parts,
        "changes_stages": not _STAGES.isdisjoint(parts),
        "clear_token": clear_token,
    }
    return _statement(parts), fence | values


@functools.cache
def _statement(parts: tuple[str, ...]) -> TextClause:
    texts = [_FENCE]
    for part in parts:
        columns, statement = _PARTS[part]
        arrays = ", ".join(f"CAST(:{part}_{column} AS {kind}[])" for column, kind in columns.items())
        rows = f"unnest({arrays}) AS added({', '.join(columns)})"
        texts.append(f"\n  {part} AS ({statement.format(rows=rows)}\n  )")
    return text(f"WITH {','.join(texts)} SELECT investigation, at, joined FROM fenced")  # noqa: S608 - our own texts


def _changes(added: Sequence[Prepared], *, log_seq: int, where: RunAndStage) -> _Changes:
    changes = _Changes()
    # If a run ends for any other reason than its stages, the stages that end with it are cut off.
    cuts_off = any(
        isinstance(prepared.entry, entries.RunEnded) and prepared.entry.reason not in STAGE_REASONS
        for prepared in added
    )
    for seq, prepared in enumerate(added, log_seq + 1):
        _add_changes(changes, prepared.entry, cuts_off=cuts_off)
        run, stage, execution = _where(prepared.entry, changes.places, where)
        stored = prepared.stored
        changes.add(
            "entries",
            {
                "seq": seq,
                "kind": stored.kind,
                "version": stored.version,
                "run": run,
                "stage": stage,
                "execution": execution,
                "body": stored.body,
                "opaque": stored.opaque,
                **_counts(prepared.entry),
                "call_facts": call_facts(prepared.entry),
            },
        )
    return changes


def _counts(entry: entries.Entry) -> Row:
    """Return the numbers of messages and calls in an entry."""
    return {
        "messages": len(registry.messages_of(entry)),
        "model_calls": int(registry.model_call(entry) is not None),
        "tool_calls": len(registry.tool_runs(entry)),
    }


def call_facts(entry: entries.Entry) -> str | None:
    """Return the facts of an entry's calls as JSON, a list of objects; None if it has no calls."""
    facts: list[dict[str, Any]] = [
        {
            "name": excerpts.one_line(run.call.name, NAME_MAX),
            "id": run.call.id[:NAME_MAX],
            "seconds": run.seconds,
            "failed": run.result.failed,
            "failure": ("in_doubt" if run.result.in_doubt else "error") if run.result.failed else None,
        }
        for run in registry.tool_runs(entry)
    ]
    if call := registry.model_call(entry):
        reply = registry.reply(entry)
        failure = reply if isinstance(reply, messages.Failure) else None
        facts.append(
            {
                "name": excerpts.one_line(f"{call.provider}/{call.model}", NAME_MAX),
                "id": entry.call_id[:NAME_MAX] if isinstance(entry, entries.ToolSummarised) else None,
                "seconds": call.seconds,
                "failed": failure is not None,
                "failure": failure and failure.kind,
                "code": failure and excerpts.one_line(failure.code, NAME_MAX),
                "input_tokens": call.usage.input_tokens,
                "output_tokens": call.usage.output_tokens,
                "thinking_tokens": call.usage.thinking_tokens,
                "total_tokens": call.usage.total_tokens,
                "cost": call.cost,
                "attempts": len(call.attempts),
            }
        )
    return json.dumps(facts, ensure_ascii=False, allow_nan=False) if facts else None


def _where(entry: entries.Entry, begun: dict[str, tuple[int, str]], where: RunAndStage) -> tuple[int, str, str]:
    if isinstance(entry, entries.OfRun):
        return entry.run, "", ""
    if isinstance(entry, entries.OfStage):
        return entry.run, entry.stage, ""
    run, stage = begun.get(entry.execution) or where(entry.execution)
    return run, stage, entry.execution


def _add_changes(changes: _Changes, entry: entries.Entry, *, cuts_off: bool) -> None:
    """Add the rows that `entry` changes beside the log."""
    if isinstance(entry, entries.OfExecution) and (call := registry.model_call(entry)):
        _count(changes, entry.execution, call)
    match entry:
        case entries.FellBack():
            changes.execution(entry.execution)["provider"] = entry.provider
        case entries.StageStarted():
            changes.add("new_stages", _stage_row(entry.run, entry.stage))
        case entries.StageEnded():
            row = _stage_row(entry.run, entry.stage)
            new = changes.find("new_stages", run=entry.run, name=entry.stage)
            if new is None:
                new = changes.add("new_stages" if entry.outcome == "Skipped" else "ended_stages", row)
            new |= {
                "outcome": entry.outcome,
                "message": entry.message,
                "lacks": json.dumps(entry.lacks),
                "cut_off": cuts_off,
            }
        case entries.ExecutionStarted():
            changes.places[entry.execution] = (entry.run, entry.stage)
            changes.add("new_executions", _execution_row(entry))
        case entries.ExecutionEnded():
            row = changes.execution(entry.execution)
            row |= {"outcome": entry.outcome, "error": entry.error}
        case entries.ToolsAnswered():
            _count_tools(changes, entry)
        case entries.ModelRetried():
            row = changes.execution(entry.execution)
            row |= {"retrying": _retrying(entry), "retry_seconds": entry.seconds}
        case entries.RunEnded():
            changes.add(
                "ended_runs",
                {
                    "number": entry.run,
                    "ending": entry.ending,
                    "reason": entry.reason,
                    "message": entry.message,
                    "final_analysis": entry.final_analysis,
                    "summary": entry.summary,
                    "gaps": json.dumps([dataclasses.asdict(gap) for gap in entry.gaps]),
                    "grounds": entry.grounds,
                },
            )
            if entry.run == entries.INVESTIGATION:
                searched = {"analysis": entry.final_analysis, "summary": entry.summary}
                changes.add(
                    "ended_investigations",
                    {"ending": entry.ending, "former": UUID(entry.former) if entry.former else None}
                    | {name: value[:SEARCHED_MAX] for name, value in searched.items()},
                )


def _count_tools(changes: _Changes, entry: entries.ToolsAnswered) -> None:
    """Add tool calls to the numbers of their execution, and the full results of which the log has a part."""
    changes.execution(entry.execution)["tool_calls"] += len(entry.runs)
    for run in entry.runs:
        if run.whole is not None:
            stored: Row = {"whole": run.whole, "rest": None}
            if run.excerpt is not None:
                stored = {"whole": "", "rest": line_excerpts.rest(run.whole, run.excerpt)}
            changes.add("wholes", {"execution": entry.execution, "call_id": run.call.id, **stored})


def _count(changes: _Changes, execution: str, call: entries.ModelCall) -> None:
    """Add a model call to the numbers of its execution, and settle its requests in budgets."""
    row = changes.execution(execution)
    for settled in call.settled:
        changes.add(
            "settled_requests",
            {
                "request": UUID(settled.request),
                "tokens": settled.tokens,
                "cost": settled.cost,
                "is_whole": settled.is_whole,
            },
        )
    row["iterations"] += 1
    for tokens in ("input_tokens", "output_tokens", "thinking_tokens", "total_tokens"):
        row[tokens] += getattr(call.usage, tokens)
    if call.cost is not None:
        row["cost"] = (row["cost"] or 0.0) + call.cost


def _retrying(entry: entries.ModelRetried) -> str:
    """Return the provider and the error of a request that is retried, on one line."""
    error = excerpts.one_line(entry.error, ERROR_MAX)
    code = f" (code {entry.code})" if entry.code and entry.code not in error else ""
    return f"{entry.provider}: {error}{code}"


def _stage_row(run: int, name: str) -> Row:
    return {"run": run, "name": name, "outcome": None, "message": "", "lacks": "[]", "cut_off": None}


def _execution_row(entry: entries.ExecutionStarted) -> Row:
    return {
        "id": entry.execution,
        "run": entry.run,
        "stage": entry.stage,
        "kind": entry.kind,
        "index": entry.index,
        "parent": entry.parent,
        "name": entry.name,
        "provider": entry.agent.provider if entry.agent else "",
        "strategy": entry.agent.strategy if entry.agent else "",
        **_NO_PROGRESS,
    }
