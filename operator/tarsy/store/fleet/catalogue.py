"""The catalogue of process facts, which every process can read.

The facts are the process itself, its MCP servers and tools, its providers, its watch, its configuration. A process
renews one narrow row; its other rows are written when they change, and count for as long as that one is fresh, by the
database's clock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from sqlalchemy import text

from tarsy.config.check import worker_reports
from tarsy.config.model import tool_filters
from tarsy.store.base import databases
from tarsy.telemetry import component_states

FRESH = timedelta(seconds=30)
"""A process that has not been seen for so long is not there."""
FORGOTTEN = timedelta(hours=1)
"""One that has not been seen for so long leaves no rows; a crash loop is to leave few."""
ROWS_MAX = 10_000
SERVERS_MAX = 1000
"""The servers whose tools chains and alerts are checked against, at most."""

_WRITE = text("""
  INSERT INTO catalogue (process, kind, name, state, since, seen_at, detail)
  SELECT :process, kind, name, state, since, clock_timestamp(), detail
  FROM json_to_recordset(CAST(:facts AS json))
    AS given (kind text, name text, state text, since timestamptz, detail json)
  ON CONFLICT (process, kind, name) DO UPDATE
  SET state = excluded.state, since = excluded.since, seen_at = excluded.seen_at, detail = excluded.detail
  RETURNING kind, xmax = 0 AS is_new
""")


async def write(
    database: databases.Database, process: UUID, facts: Collection[component_states.ComponentState]
) -> bool:
    """Keep what a process says of itself, its fact of kind `process` among it; return whether it was not known."""
    values = [
        {
            "kind": fact.kind,
            "name": fact.name,
            "state": fact.state,
            "since": fact.since.isoformat(),
            "detail": component_states.encode(fact.detail),
        }
        for fact in facts
    ]
    rows = await database.run(_WRITE, process=process, facts=json.dumps(values, allow_nan=False, default=dict))
    return any(row.is_new for row in rows if row.kind == "process")


_KEEP_ONLY = text("""
  DELETE FROM catalogue AS said
  WHERE process = :process AND NOT EXISTS (
    SELECT 1 FROM json_to_recordset(CAST(:known AS json)) AS given (kind text, name text)
    WHERE given.kind = said.kind AND given.name = said.name
  )
""")


async def keep_only(
    database: databases.Database, process: UUID, facts: Collection[component_states.ComponentState]
) -> None:
    """Forget what a process has said of all but these: a server that its platform file has lost is none any more."""
    keys = [{"kind": fact.kind, "name": fact.name} for fact in facts]
    await database.run(_KEEP_ONLY, process=process, known=json.dumps(keys))


_LEAVE = text("DELETE FROM catalogue WHERE process = :process")


async def leave(database: databases.Database, process: UUID) -> None:
    """Forget a process that stops."""
    await database.run(_LEAVE, process=process)


_FORGET = text("""
  DELETE FROM catalogue AS said
  WHERE NOT EXISTS (
    SELECT 1 FROM catalogue AS known
    WHERE known.process = said.process AND known.kind = 'process'
      AND known.seen_at > clock_timestamp() - CAST(:within AS interval)
  ) AND said.seen_at < clock_timestamp() - CAST(:within AS interval)
""")


async def forget(database: databases.Database, *, within: timedelta = FORGOTTEN) -> None:
    """Forget the processes that have not been seen `within` that time."""
    await database.run(_FORGET, within=within)


D = TypeVar("D")


@dataclass(frozen=True, kw_only=True)
class Report(Generic[D]):
    """A fact of a live process."""

    process: UUID
    host: str
    """The name of the machine, or pod, that it runs on."""
    kind: str
    name: str
    state: str
    since: datetime
    detail: D


AnyReport: TypeAlias = Report[Any]

_READ = text("""
  SELECT said.process, there.name AS host, said.kind, said.name, said.state, said.since, said.detail
  FROM catalogue AS said JOIN catalogue AS there ON there.process = said.process AND there.kind = 'process'
  WHERE there.seen_at > clock_timestamp() - CAST(:within AS interval) AND said.kind = ANY(:kinds)
  ORDER BY said.kind, said.name, there.name, said.process
  LIMIT :limit
""")


async def read(
    database: databases.Database, *kinds: component_states.Kind, within: timedelta = FRESH
) -> Sequence[AnyReport]:
    """Return the facts of the processes seen `within` that time, by kind, name and host; at most ROWS_MAX."""
    rows = await database.run(_READ, kinds=list(kinds), within=within, limit=ROWS_MAX)
    return [_from_row(row) for row in rows]


_TOOLS = text("""
  SELECT DISTINCT ON (said.name) said.process, there.name AS host, said.kind, said.name, said.state, said.since,
    said.detail
  FROM catalogue AS said JOIN catalogue AS there ON there.process = said.process AND there.kind = 'process'
  WHERE there.seen_at > clock_timestamp() - CAST(:within AS interval) AND said.kind = 'tools'
  ORDER BY said.name, said.since DESC, said.process
  LIMIT :limit
""")


async def tools(
    database: databases.Database, *, limit: int, within: timedelta = FRESH
) -> Sequence[Report[component_states.Tools]]:
    """Return the tools of each MCP server, by name, as reported most recently; at most `limit` servers."""
    return [_from_row(row) for row in await database.run(_TOOLS, within=within, limit=limit)]


async def tools_by_server(database: databases.Database) -> tool_filters.Catalogue:
    """Return the tools of each MCP server, as reported most recently, and which of them are stopped."""
    tools_by_server = {
        report.name: tool_filters.tools_from_detail(report.detail)
        for report in await tools(database, limit=SERVERS_MAX)
    }
    for report in await read(database, "server"):
        listed = tools_by_server.get(report.name, [])
        names = {tool.name for tool in listed}
        stopped = {stopped_tool.tool for stopped_tool in report.detail.stopped}
        listed += [tool_filters.Tool(name=name, read_only=True, stopped=True) for name in sorted(stopped - names)]
    return tools_by_server


WORKERS = """
  SELECT process FROM catalogue
  WHERE kind = 'process' AND seen_at > clock_timestamp() - CAST(:fresh AS interval)
    AND CAST(detail AS jsonb) @> '{"roles": ["worker"]}'"""
"""The processes that work and were seen `:fresh` that time."""

_WORKERS = text(f"""
  WITH workers AS ({WORKERS})
  SELECT workers.process, said.name,
    CASE said.state WHEN 'unusable' THEN said.detail ->> 'problem' ELSE '' END AS problem
  FROM workers LEFT JOIN catalogue AS said ON said.process = workers.process AND said.kind = 'provider'
  ORDER BY said.name, workers.process
""")  # noqa: S608 - our own text


async def workers(database: databases.Database, *, within: timedelta = FRESH) -> worker_reports.Workers:
    """Return the reports on LLM providers of the workers that were seen `within` that time."""
    rows = await database.run(_WORKERS, fresh=within)
    problems_by_provider: dict[str, list[str]] = {}
    for row in rows:
        if row.name is not None:
            problems_by_provider.setdefault(row.name, []).append(row.problem)
    return worker_reports.Workers(count=len({row.process for row in rows}), reports=problems_by_provider)


def _from_row(row: databases.Row) -> AnyReport:
    return Report(
        process=row.process,
        host=row.host,
        kind=row.kind,
        name=row.name,
        state=row.state,
        since=row.since,
        detail=component_states.decode(row.kind, json.loads(row.detail)),
    )
