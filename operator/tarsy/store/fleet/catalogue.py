"""The table `catalogue`: process facts, which every process can read.

The facts are the process itself, its MCP servers and tools, its providers, its watch, its configuration. A process
renews one narrow row. It writes its other rows when they change; they are valid while the narrow row is fresh, by the
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
"""A process that has not renewed its row for this time counts as gone."""
FORGOTTEN = timedelta(hours=1)
"""The rows of a process that has not renewed its row for this time are deleted; a crash loop must not leave many."""
ROWS_MAX = 10_000
SERVERS_MAX = 1000
"""The maximal number of servers whose tools are used to check chains and alerts."""

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
    """Write facts of a process, including the one of kind `process`; return whether the process was unknown."""
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


_DELETE_OTHERS = text("""
  DELETE FROM catalogue AS fact
  WHERE process = :process AND NOT EXISTS (
    SELECT 1 FROM json_to_recordset(CAST(:current AS json)) AS current_fact (kind text, name text)
    WHERE current_fact.kind = fact.kind AND current_fact.name = fact.name
  )
""")


async def delete_others(
    database: databases.Database, process: UUID, facts: Collection[component_states.ComponentState]
) -> None:
    """Delete all other facts of a process, such as those of a server that its platform file no longer has."""
    keys = [{"kind": fact.kind, "name": fact.name} for fact in facts]
    await database.run(_DELETE_OTHERS, process=process, current=json.dumps(keys))


_LEAVE = text("DELETE FROM catalogue WHERE process = :process")


async def leave(database: databases.Database, process: UUID) -> None:
    """Delete the facts of a process that stops."""
    await database.run(_LEAVE, process=process)


_FORGET = text("""
  DELETE FROM catalogue AS fact
  WHERE NOT EXISTS (
    SELECT 1 FROM catalogue AS present
    WHERE present.process = fact.process AND present.kind = 'process'
      AND present.seen_at > clock_timestamp() - CAST(:within AS interval)
  ) AND fact.seen_at < clock_timestamp() - CAST(:within AS interval)
""")


async def forget(database: databases.Database, *, within: timedelta = FORGOTTEN) -> None:
    """Delete the facts of processes that were not seen `within` that time."""
    await database.run(_FORGET, within=within)


D = TypeVar("D")


@dataclass(frozen=True, kw_only=True)
class Report(Generic[D]):
    """A fact of a live process, as read."""

    process: UUID
    host: str
    """The name of the process's pod or machine."""
    kind: str
    name: str
    state: str
    since: datetime
    detail: D


AnyReport: TypeAlias = Report[Any]

_READ = text("""
  SELECT fact.process, owner.name AS host, fact.kind, fact.name, fact.state, fact.since, fact.detail
  FROM catalogue AS fact JOIN catalogue AS owner ON owner.process = fact.process AND owner.kind = 'process'
  WHERE owner.seen_at > clock_timestamp() - CAST(:within AS interval) AND fact.kind = ANY(:kinds)
  ORDER BY fact.kind, fact.name, owner.name, fact.process
  LIMIT :limit
""")


async def read(
    database: databases.Database, *kinds: component_states.Kind, within: timedelta = FRESH
) -> Sequence[AnyReport]:
    """Return the facts of the processes seen `within` that time, by kind, name and host; at most ROWS_MAX."""
    rows = await database.run(_READ, kinds=list(kinds), within=within, limit=ROWS_MAX)
    return [_from_row(row) for row in rows]


_TOOLS = text("""
  SELECT DISTINCT ON (fact.name) fact.process, owner.name AS host, fact.kind, fact.name, fact.state, fact.since,
    fact.detail
  FROM catalogue AS fact JOIN catalogue AS owner ON owner.process = fact.process AND owner.kind = 'process'
  WHERE owner.seen_at > clock_timestamp() - CAST(:within AS interval) AND fact.kind = 'tools'
  ORDER BY fact.name, fact.since DESC, fact.process
  LIMIT :limit
""")


async def tools(
    database: databases.Database, *, limit: int, within: timedelta = FRESH
) -> Sequence[Report[component_states.Tools]]:
    """Return the latest report of tools for each MCP server, by name; at most `limit` servers."""
    return [_from_row(row) for row in await database.run(_TOOLS, within=within, limit=limit)]


async def tools_by_server(database: databases.Database) -> tool_filters.Catalogue:
    """Return the tools of each MCP server in its latest report, and which of them are stopped."""
    tools_of = {
        report.name: tool_filters.tools_from_detail(report.detail)
        for report in await tools(database, limit=SERVERS_MAX)
    }
    for report in await read(database, "server"):
        listed = tools_of.get(report.name, [])
        names = {tool.name for tool in listed}
        stopped = {stopped_tool.tool for stopped_tool in report.detail.stopped}
        listed += [tool_filters.Tool(name=name, read_only=True, stopped=True) for name in sorted(stopped - names)]
    return tools_of


WORKERS = """
  SELECT process FROM catalogue
  WHERE kind = 'process' AND seen_at > clock_timestamp() - CAST(:fresh AS interval)
    AND CAST(detail AS jsonb) @> '{"roles": ["worker"]}'"""
"""The processes of role worker that were seen within `:fresh`."""

_WORKERS = text(f"""
  WITH workers AS ({WORKERS})
  SELECT workers.process, fact.name,
    CASE fact.state WHEN 'unusable' THEN fact.detail ->> 'problem' ELSE '' END AS problem
  FROM workers LEFT JOIN catalogue AS fact ON fact.process = workers.process AND fact.kind = 'provider'
  ORDER BY fact.name, workers.process
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
