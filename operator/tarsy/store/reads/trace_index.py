"""The index of a trace: stages, executions, calls and events in the order in which a person reads them, without texts.

It is ordered by stage and execution, not by commits; a page of it is a part of the log up to one entry, so pages that
name the same entry belong together although the log grows. It reads `call_facts` and no bodies, except those of
entries that an older build wrote. The copies with which a retry begins have no rows: they are in the original's trace.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text

from tarsy.store.base import databases, visibility

RowType = Literal["stage", "execution", "llm", "tool", "event"]
Event = Literal["resumed", "retry", "fallback", "compaction", "servers_away"]
"""The event of a row: its execution goes on under another claim, a request is sent again, another provider is asked,
the conversation is compacted, or MCP servers are away."""

_LAST = 1_000_000
"""A place behind all others."""
_FAILED = "('Failed', 'TimedOut', 'CompletedWithErrors')"


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The filter of rows; a stage and an execution stay with each of their rows."""

    run: int | None = None
    """The run; None for all."""
    failed: bool = False
    """Only what failed."""
    name: str = ""
    """A part of a name: of the call, its execution or stage, or of its failure. In any case of letters."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A stage, an execution, a model call, a tool call or an event."""

    id: str
    """`stage-<name>`, `execution-<id>`, `llm-<n>`, `tool-<n>` or `event-<seq>-<event>`; unique in a run."""
    type: RowType
    event: Event | None
    n: int | None
    """The number of a call among those of its type."""
    seq: int
    """The entry that starts a stage or an execution, or records a call."""
    run: int
    stage: str
    execution: str
    execution_name: str
    name: str
    """A stage's or an execution's own; `provider/model` of a model call; `server.tool` of a tool call."""
    started_at: datetime | None
    """The start; of a tool call the commit of the answer that asked for it. None for a skipped stage."""
    ended_at: datetime | None
    seconds: float | None
    outcome: str | None
    """The outcome of a stage or an execution, None while it runs; ok or failed of a call."""
    failed: bool
    failure: str | None
    failure_code: str | None
    input_tokens: int | None
    output_tokens: int | None
    thinking_tokens: int | None
    total_tokens: int | None
    cost: float | None
    failed_attempts: int
    call_count: int
    """The number of an execution's calls; 0 of all others."""
    tool_call_id: str
    """The id of a tool call, or of the one whose result a model call summarises; else ""."""
    note: str
    """The details of an event, such as the error or the next provider; else ""."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some rows of the index, and what the whole of it has."""

    rows: Sequence[Row]
    total: int
    """The number of rows that the filter leaves."""
    offset: int
    """The number of rows before these."""
    upto: int
    """The entry up to which the log is read."""
    begins_at: datetime | None
    """The start of the first stage or execution."""
    ends_at: datetime | None
    """The last commit."""
    run_count: int
    """The number of runs: the investigation itself and the questions."""
    model_call_count: int
    """The number of model calls, whatever the filter leaves."""
    tool_call_count: int
    failed_call_count: int
    total_tokens: int
    """The tokens of all executions, as of now."""
    cost: float | None
    ended: bool
    """Whether no run goes on."""


_INDEX = text(f"""
  WITH own AS MATERIALIZED (
    SELECT seq, at, kind, run, stage, execution, model_calls, tool_calls, claim,
      CASE kind
        WHEN 'ModelRetried' THEN json_build_object('event', 'retry',
          'name', left(concat(body ->> 'provider', '/', body ->> 'model'), 200), 'code', left(body ->> 'code', 200),
          'attempt', body -> 'attempt', 'seconds', body -> 'seconds', 'error', left(body ->> 'error', 200))
        WHEN 'FellBack' THEN json_build_object('event', 'fallback', 'name', left(body ->> 'provider', 200))
        WHEN 'ContextCompacted' THEN json_build_object('event', 'compaction', 'tokens', body -> 'tokens',
          'results', CASE json_typeof(body -> 'results') WHEN 'array' THEN json_array_length(body -> 'results') END,
          'cut', CASE json_typeof(body -> 'cut') WHEN 'array' THEN json_array_length(body -> 'cut') END)
        WHEN 'ServersAway' THEN json_build_object('event', 'servers_away', 'name', left(array_to_string(ARRAY(
          SELECT json_array_elements_text(CASE json_typeof(body -> 'servers') WHEN 'array' THEN body -> 'servers' END)
          ), ', '), 200))
      END AS event_fact,
      CASE
        WHEN model_calls + tool_calls = 0 OR run <> coalesce(CAST(:run AS integer), run) THEN '[]'
        WHEN json_typeof(call_facts) = 'array' THEN call_facts
        WHEN model_calls > 0 THEN json_build_array(json_build_object(
          'name', left(concat(body #>> '{{call,provider}}', '/', body #>> '{{call,model}}'), 200),
          'id', left(body ->> 'call_id', 200),
          'seconds', body #> '{{call,seconds}}',
          'failed', coalesce(json_typeof(body -> 'failure') = 'object', false),
          'failure', body #> '{{failure,kind}}', 'code', body #> '{{failure,code}}',
          'input_tokens', body #> '{{call,usage,input_tokens}}',
          'output_tokens', body #> '{{call,usage,output_tokens}}',
          'thinking_tokens', body #> '{{call,usage,thinking_tokens}}',
          'total_tokens', body #> '{{call,usage,total_tokens}}',
          'cost', body #> '{{call,cost}}',
          'attempts', CASE json_typeof(body #> '{{call,attempts}}')
            WHEN 'array' THEN json_array_length(body #> '{{call,attempts}}') END))
        ELSE (
          SELECT coalesce(json_agg(json_build_object(
            'name', left(tool_run #>> '{{call,name}}', 200), 'id', left(tool_run #>> '{{call,id}}', 200),
            'seconds', tool_run -> 'seconds',
            'failed', tool_run #> '{{result,failed}}',
            'failure', CASE WHEN tool_run #>> '{{result,failed}}' = 'true' THEN
              CASE WHEN tool_run #>> '{{result,in_doubt}}' = 'true' THEN 'in_doubt' ELSE 'error' END END)), '[]')
          FROM json_array_elements(CASE json_typeof(body -> 'runs') WHEN 'array' THEN body -> 'runs' ELSE '[]' END)
            AS listed(tool_run))
      END AS facts
    FROM entries WHERE investigation = :id AND seq <= :upto AND {visibility.VISIBLE_BY_ID}
  ), numbered AS (
    SELECT *, sum(model_calls) OVER earlier - model_calls AS models_before,
      sum(tool_calls) OVER earlier - tool_calls AS tools_before,
      min(seq) FILTER (WHERE kind IN ('StageStarted', 'StageEnded', 'ExecutionStarted'))
        OVER (PARTITION BY run, stage) AS stage_seq,
      max(at) FILTER (WHERE kind = 'Answered') OVER of_execution AS answered_at,
      kind <> 'RunStarted' AND (
        claim > lag(claim) OVER earlier OR (execution <> '' AND claim > lag(claim) OVER of_execution)) AS is_resumed
    FROM own WINDOW earlier AS (ORDER BY seq), of_execution AS (PARTITION BY execution ORDER BY seq)
  ), of_run AS (
    SELECT * FROM numbered
    WHERE run = coalesce(CAST(:run AS integer), run)
      AND seq > coalesce((SELECT copied_entries FROM investigations WHERE investigations.id = :id), 0)
  ), agents AS (
    SELECT executions.*, of_run.seq, of_run.at, stage_seq, ended.at AS end_at
    FROM of_run
    JOIN executions ON executions.investigation = :id AND executions.id = of_run.execution
    LEFT JOIN (
      SELECT execution, max(at) AS at FROM own WHERE kind = 'ExecutionEnded' GROUP BY execution
    ) AS ended ON ended.execution = of_run.execution
    WHERE of_run.kind = 'ExecutionStarted'
  ), stage_rows AS (
    SELECT of_run.run, of_run.stage, stage_seq,
      min(at) FILTER (WHERE kind = 'StageStarted') AS at, max(at) FILTER (WHERE kind = 'StageEnded') AS end_at,
      max(outcome) AS outcome
    FROM of_run
    LEFT JOIN stages ON stages.investigation = :id AND stages.run = of_run.run AND stages.name = of_run.stage
    WHERE kind IN ('StageStarted', 'StageEnded')
    GROUP BY of_run.run, of_run.stage, stage_seq
  ), call_rows AS (
    SELECT of_run.*, fact, ordinal, CASE WHEN model_calls > 0 THEN 'llm' ELSE 'tool' END AS type,
      CASE WHEN model_calls > 0 THEN models_before ELSE tools_before END + ordinal AS n, agents.name AS execution_name,
      agents.kind <> 'agent' AS is_late, agents.index, agents.seq AS execution_seq
    FROM of_run
    CROSS JOIN LATERAL json_array_elements(facts) WITH ORDINALITY AS listed(fact, ordinal)
    LEFT JOIN agents ON agents.id = of_run.execution
    WHERE of_run.model_calls + of_run.tool_calls > 0
  ), event_rows AS (
    SELECT of_run.*, fact, fact ->> 'event' AS event, agents.name AS execution_name, agents.kind <> 'agent' AS is_late,
      agents.index, agents.seq AS execution_seq
    FROM of_run
    CROSS JOIN LATERAL (VALUES
      (CASE WHEN is_resumed THEN json_build_object('event', 'resumed', 'claim', claim) END), (event_fact)
    ) AS listed(fact)
    LEFT JOIN agents ON agents.id = of_run.execution
    WHERE fact IS NOT NULL
  ), filtered_events AS (
    SELECT * FROM event_rows
    WHERE (NOT CAST(:failed AS boolean) OR event NOT IN ('resumed', 'compaction'))
      AND strpos(lower(concat_ws(' ', event, fact ->> 'name', execution_name, stage, fact ->> 'code')),
        lower(CAST(:name AS text))) > 0
  ), filtered_calls AS (
    SELECT * FROM call_rows
    WHERE (NOT CAST(:failed AS boolean) OR fact ->> 'failed' = 'true')
      AND strpos(lower(concat_ws(' ', fact ->> 'name', execution_name, stage, fact ->> 'failure', fact ->> 'code')),
        lower(CAST(:name AS text))) > 0
  ), filtered_agents AS (
    SELECT * FROM agents
    WHERE id IN (SELECT execution FROM filtered_calls UNION ALL SELECT execution FROM filtered_events) OR (
      (NOT CAST(:failed AS boolean) OR (end_at IS NOT NULL AND outcome IN {_FAILED}))
      AND strpos(lower(concat_ws(' ', name, stage)), lower(CAST(:name AS text))) > 0)
  ), filtered_stages AS (
    SELECT stage_rows.*, usage.* FROM stage_rows
    LEFT JOIN LATERAL (
      SELECT sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
        sum(thinking_tokens) AS thinking_tokens, sum(total_tokens) AS total_tokens, sum(cost) AS cost
      FROM agents WHERE agents.run = stage_rows.run AND agents.stage = stage_rows.stage
    ) AS usage ON true
    WHERE (run, stage) IN (SELECT run, stage FROM filtered_agents UNION ALL SELECT run, stage FROM filtered_events) OR (
      (NOT CAST(:failed AS boolean) OR (end_at IS NOT NULL AND outcome IN {_FAILED}))
      AND strpos(lower(stage), lower(CAST(:name AS text))) > 0)
  ), filtered AS (
    SELECT concat('stage-', stage) AS id, 'stage' AS type, CAST(NULL AS bigint) AS n, stage_seq AS seq, run, stage,
      '' AS execution, '' AS execution_name, at, end_at, CASE WHEN end_at IS NOT NULL THEN outcome END AS outcome,
      CAST(NULL AS timestamptz) AS answered_at,
      json_build_object('name', stage, 'input_tokens', input_tokens, 'output_tokens', output_tokens,
        'thinking_tokens', thinking_tokens, 'total_tokens', total_tokens, 'cost', cost) AS fact, 0 AS call_count,
      stage_seq, false AS is_late, -1 AS index, 0 AS execution_seq, 0 AS level, 0 AS ordinal
    FROM filtered_stages
    UNION ALL
    SELECT concat('execution-', id), 'execution', CAST(NULL AS bigint), seq, run, stage, id, name, at,
      end_at, CASE WHEN end_at IS NOT NULL THEN outcome END, CAST(NULL AS timestamptz),
      json_build_object('name', name, 'input_tokens', input_tokens, 'output_tokens', output_tokens,
        'thinking_tokens', thinking_tokens, 'total_tokens', total_tokens, 'cost', cost), iterations + tool_calls,
      stage_seq, kind <> 'agent', index, seq, 1, 0
    FROM filtered_agents
    UNION ALL
    SELECT concat(type, '-', n), type, n, seq, run, stage, execution,
      coalesce(execution_name, ''), at, at, NULL, answered_at, fact, 0,
      stage_seq, is_late, index, execution_seq, 2, ordinal
    FROM filtered_calls
    UNION ALL
    SELECT concat('event-', seq, '-', event), 'event', NULL, seq, run, stage, execution,
      coalesce(execution_name, ''), at, at, NULL, NULL, fact, 0,
      stage_seq, coalesce(is_late, stage = ''), coalesce(index, CASE stage WHEN '' THEN {_LAST} ELSE -1 END),
      coalesce(execution_seq, 0), 2, CASE event WHEN 'resumed' THEN 0 ELSE {_LAST} END
    FROM filtered_events
  ), ranked AS MATERIALIZED (
    SELECT *,
      row_number() OVER (ORDER BY run, stage_seq, is_late, index, execution_seq, level, seq, ordinal) - 1 AS place
    FROM filtered
  ), first_row AS (
    SELECT coalesce((
      SELECT min(place) / :align * :align FROM ranked
      WHERE :row <> '' AND :row IN (id, concat('entry-', seq), concat(execution, '.', fact ->> 'id'))
    ), :offset) AS first_place
  )
  SELECT total, first_place, begins_at, ends_at, model_call_count, tool_call_count, failed_call_count, totals.*, page.*,
    (SELECT count(*) FROM runs WHERE runs.investigation = :id) AS run_count,
    (SELECT state = 'ended' FROM work WHERE work.investigation = :id) AS ended
  FROM (SELECT count(*) AS total FROM ranked) AS counted
  CROSS JOIN first_row
  CROSS JOIN (
    SELECT min(at) FILTER (WHERE kind IN ('StageStarted', 'ExecutionStarted')) AS begins_at, max(at) AS ends_at,
      coalesce(sum(model_calls), 0) AS model_call_count, coalesce(sum(tool_calls), 0) AS tool_call_count
    FROM of_run
  ) AS axis
  CROSS JOIN (SELECT count(*) AS failed_call_count FROM call_rows WHERE fact ->> 'failed' = 'true') AS failures
  CROSS JOIN (
    SELECT coalesce(sum(total_tokens), 0) AS all_tokens, sum(cost) AS whole_cost FROM agents
  ) AS totals
  LEFT JOIN LATERAL (
    SELECT id, type, n, seq, run, stage, execution, execution_name, at, end_at, outcome, answered_at,
      CAST(fact AS text) AS fact, call_count, place
    FROM ranked WHERE place >= first_place AND place < first_place + :rows
  ) AS page ON true
  ORDER BY place
""")  # noqa: S608 - our own text


async def page(
    database: databases.Database,
    investigation: UUID,
    row_filter: Filter,
    *,
    upto: int,
    offset: int,
    limit: int,
    row: str = "",
    align: int = 1,
) -> Page:
    """Return up to `limit` rows of the index after the first `offset`, of the log up to entry `upto`.

    `row` names a row in place of the offset: by its id, by `entry-<seq>`, or by `<execution>.<tool_call_id>`; if the
    filter leaves it, the rows begin with it, or with an earlier one whose offset is a multiple of `align`.
    """
    rows = await database.run(
        _INDEX,
        id=investigation,
        upto=upto,
        run=row_filter.run,
        failed=row_filter.failed,
        name=row_filter.name,
        offset=offset,
        rows=limit,
        row=row,
        align=align,
    )
    index_rows = await asyncio.to_thread(lambda: [_from_row(row) for row in rows if row.type is not None])
    return Page(
        rows=index_rows,
        total=rows[0].total,
        offset=rows[0].first_place,
        upto=upto,
        begins_at=rows[0].begins_at,
        ends_at=rows[0].ends_at,
        run_count=rows[0].run_count,
        ended=rows[0].ended is not False,
        model_call_count=int(rows[0].model_call_count),
        tool_call_count=int(rows[0].tool_call_count),
        failed_call_count=rows[0].failed_call_count,
        total_tokens=int(rows[0].all_tokens),
        cost=rows[0].whole_cost,
    )


def _from_row(row: Any) -> Row:
    parsed = json.loads(row.fact)
    fact: Mapping[str, Any] = parsed if isinstance(parsed, dict) else {}
    is_call, is_event = row.type in ("llm", "tool"), row.type == "event"
    failed = fact.get("failed") is True if is_call else row.outcome in ("Failed", "TimedOut", "CompletedWithErrors")
    started, ended = row.at, row.end_at
    seconds = _number(fact, "seconds") if is_call or is_event else None
    if is_call:
        lasted = timedelta(seconds=min(max(seconds or 0.0, 0.0), _DAY))
        started = row.answered_at or row.at - lasted if row.type == "tool" else row.at - lasted
    elif is_event:
        ended = row.at + timedelta(seconds=min(max(seconds or 0.0, 0.0), _DAY))
    elif started and ended:
        seconds = (ended - started).total_seconds()
    counts = {name: _integer(fact, name) for name in _TOKENS}
    return Row(
        id=row.id,
        type=row.type,
        event=fact["event"] if is_event else None,
        n=None if row.n is None else int(row.n),
        seq=row.seq,
        run=row.run,
        stage=row.stage,
        execution=row.execution,
        execution_name=row.execution_name,
        name=_text(fact, "name") or "",
        started_at=started,
        ended_at=ended,
        seconds=seconds,
        outcome=("failed" if failed else "ok") if is_call else row.outcome,
        failed=failed,
        failure=_text(fact, "failure"),
        failure_code=_text(fact, "code"),
        **counts,
        cost=_number(fact, "cost"),
        failed_attempts=_integer(fact, "attempts") or (1 if failed and row.type == "tool" else 0),
        call_count=row.call_count,
        tool_call_id=_text(fact, "id") or "",
        note=_note(fact) if is_event else "",
    )


def _note(fact: Mapping[str, Any]) -> str:
    name = _text(fact, "name") or ""
    match fact["event"]:
        case "resumed":
            return f"By claim {_integer(fact, 'claim')}, after a takeover or a rest"
        case "retry":
            return ": ".join(part for part in (_text(fact, "code"), _text(fact, "error")) if part)
        case "fallback":
            return f"To {name}"
        case "servers_away":
            return name
    return f"Results: {_integer(fact, 'results') or 0} as a line, {_integer(fact, 'cut') or 0} cut"


_DAY = 24 * 3600.0
_TOKENS = ("input_tokens", "output_tokens", "thinking_tokens", "total_tokens")


def _number(fact: Mapping[str, Any], name: str) -> float | None:
    value = fact.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number and value is not None else None


def _integer(fact: Mapping[str, Any], name: str) -> int | None:
    value = fact.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(fact: Mapping[str, Any], name: str) -> str | None:
    value = fact.get(name)
    return value if isinstance(value, str) else None


_SEARCHED = text(f"""
  WITH following AS MATERIALIZED (
    SELECT seq, model_calls, tool_calls, models_before, tools_before, sum(bytes) OVER (ORDER BY seq) AS bytes,
      row_number() OVER (ORDER BY seq) AS place
    FROM (
      SELECT seq, model_calls, tool_calls, pg_column_size(body) AS bytes,
        sum(model_calls) OVER (ORDER BY seq) - model_calls AS models_before,
        sum(tool_calls) OVER (ORDER BY seq) - tool_calls AS tools_before
      FROM entries WHERE investigation = :id AND {visibility.VISIBLE_BY_ID}
    ) AS sized
    WHERE seq > :after AND model_calls + tool_calls > 0
  ), searched AS (
    SELECT * FROM following WHERE place = 1 OR (bytes <= :bytes AND place <= :rows)
  )
  SELECT searched.seq, searched.model_calls, searched.tool_calls, searched.models_before, searched.tools_before,
    EXISTS (SELECT FROM following WHERE seq > (SELECT max(seq) FROM searched)) AS more,
    CASE
      WHEN searched.model_calls > 0
        THEN ARRAY[CAST(strpos(lower(CAST(body AS text)), lower(CAST(:needle AS text))) > 0 AS boolean)]
      WHEN strpos(lower(CAST(body AS text)), lower(CAST(:needle AS text))) = 0 THEN ARRAY[]::boolean[]
      ELSE ARRAY(
        SELECT strpos(lower(CAST(tool_run AS text)), lower(CAST(:needle AS text))) > 0
        FROM json_array_elements(CASE json_typeof(body -> 'runs') WHEN 'array' THEN body -> 'runs' ELSE '[]' END)
          WITH ORDINALITY AS runs(tool_run, ordinal)
        ORDER BY ordinal)
    END AS hits
  FROM searched JOIN entries ON investigation = :id AND entries.seq = searched.seq
  WHERE {visibility.VISIBLE_BY_ID}
  ORDER BY searched.seq
""")  # noqa: S608 - our own text

SEARCHED_BYTES = 4 * 1024 * 1024
"""Stored bytes of entries that one search reads, beyond its first entry; they are compressed."""
SEARCHED_ENTRIES = 500


@dataclass(frozen=True, kw_only=True)
class Search:
    """The calls of some entries whose stored texts have a text in them."""

    model_call_numbers: Sequence[int]
    """Numbers of model calls."""
    tool_call_numbers: Sequence[int]
    last: int
    """The last entry that was read."""
    more: bool


async def search(database: databases.Database, investigation: UUID, *, needle: str, after: int) -> Search:
    """Search the answers, arguments and results of calls after entry `after`, as far as one statement may read."""
    rows = await database.run(
        _SEARCHED,
        id=investigation,
        after=after,
        needle=json.dumps(needle, ensure_ascii=False)[1:-1],
        bytes=SEARCHED_BYTES,
        rows=SEARCHED_ENTRIES,
    )
    return Search(
        model_call_numbers=[int(row.models_before) + 1 for row in rows if row.model_calls and any(row.hits)],
        tool_call_numbers=[
            int(row.tools_before) + number
            for row in rows
            if not row.model_calls
            for number, hit in enumerate(row.hits, 1)
            if hit
        ],
        last=rows[-1].seq if rows else after,
        more=bool(rows) and rows[0].more,
    )
