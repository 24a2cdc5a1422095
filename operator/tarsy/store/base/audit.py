"""The table `audit`: each change and export by the API, with its time, caller and address.

A row is written in the transaction of its change, so that neither exists without the other; an export's row is written
before the file is sent. The statements that create an investigation (`intake.queueing`) and ask a question
(`queue.questions`) write their rows themselves. A change of TARSy's own setup, and a sign-in, belong to no
investigation.

The rows of a namespace belong to it as its transcripts do: a later namespace of that name does not inherit them. Rows
that earlier versions wrote, and those of the setup, have no uid and belong to the namespace of that name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from sqlalchemy import TextClause, text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from tarsy.store.base import databases

Action = Literal[
    "create",
    "retry",
    "split",
    "cancel",
    "chat",
    "chat/cancel",
    "feedback",
    "feedback/withdraw",
    "delete",
    "restore",
    "hold",
    "release",
    "purge",
    "export",
]
"""The changes and exports of an investigation."""
Setup = Literal["accept", "session-code", "sign-in", "sign-out"]
"""The actions that belong to no investigation."""
AnyAction = Literal[Action, Setup]
ACTIONS: tuple[AnyAction, ...] = get_args(AnyAction)


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request to the API, and its address."""

    who: str
    address: str


_WRITE = text("""
  INSERT INTO audit (who, address, action, investigation, namespace, namespace_uid, name, detail)
  SELECT :who, :address, :action, id, namespace, namespace_uid, name, CAST(:detail AS json)
  FROM investigations WHERE id = :id
""")


async def write(
    connection: sqlalchemy_asyncio.AsyncConnection,
    investigation: UUID,
    action: Action,
    *,
    by: Caller,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write the row of what `by` requested, in the transaction of the change."""
    values = {"id": investigation, "action": action, "who": by.who, "address": by.address}
    await connection.execute(_WRITE, {**values, "detail": json.dumps(dict(detail or {}))})


_WRITE_SETUP = text("""
  INSERT INTO audit (who, address, action, namespace, name, detail)
  VALUES (:who, :address, :action, :namespace, :name, CAST(:detail AS json))
""")


async def write_setup(
    connection: sqlalchemy_asyncio.AsyncConnection,
    action: Setup,
    name: str,
    detail: Mapping[str, Any],
    *,
    namespace: str,
    by: Caller,
) -> None:
    """Write the row of something that belongs to no investigation, in its transaction.

    `namespace` is the operator's own; `name` is what the action is about, or "".
    """
    values = {"who": by.who, "address": by.address, "action": action, "namespace": namespace, "name": name}
    await connection.execute(_WRITE_SETUP, {**values, "detail": json.dumps(detail)})


@dataclass(frozen=True, kw_only=True)
class Query:
    """The filters of a page of the audit; None filters nothing."""

    namespaces: Mapping[str, str] | None
    """Names of namespaces with their present uids; None is the whole table, with the rows of deleted namespaces."""
    who: str | None = None
    action: AnyAction | None = None
    investigation: UUID | None = None
    name: str | None = None
    """The name of the investigation, or of the MCP server."""
    since: datetime | None = None
    """Then or later."""
    until: datetime | None = None
    """Before then."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a row: the newest row is the first."""

    at: datetime
    id: UUID


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the audit."""

    id: UUID
    at: datetime
    who: str
    address: str
    action: str
    """One of ACTIONS, or an action of a newer version."""
    namespace: str
    name: str
    investigation: UUID | None
    details: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page of the audit."""

    items: list[Row]
    next: Position | None
    """The position after which the next page begins; None for the last page."""


_FILTERS = {
    "namespaces": """EXISTS (
      SELECT FROM unnest(CAST(:namespaces AS text[]), CAST(:uids AS text[])) AS scope (name, uid)
      WHERE scope.name = audit.namespace AND (audit.namespace_uid IS NULL OR audit.namespace_uid = scope.uid)
    )""",
    "namespace": "namespace = :namespace AND (namespace_uid IS NULL OR namespace_uid = :uid)",
    "who": "who = :who",
    "action": "action = :action",
    "investigation": "investigation = :investigation",
    "name": "name = :name",
    "since": "at >= :since",
    "until": "at < :until",
    "after": "(at, id) < (CAST(:after AS timestamptz), CAST(:after_id AS uuid))",
}


async def page(database: databases.Database, query: Query, *, after: Position | None = None, limit: int) -> Page:
    """Return up to `limit` rows that match the query, newest first, from the beginning or after a position.

    Raises StoreDownError.
    """
    values: dict[str, Any] = {
        name: getattr(query, name)
        for name in ("who", "action", "investigation", "name", "since", "until")
        if getattr(query, name) is not None
    }
    if query.namespaces is not None and len(query.namespaces) == 1:
        ((values["namespace"], values["uid"]),) = query.namespaces.items()
    elif query.namespaces is not None:
        values |= {"namespaces": list(query.namespaces), "uids": list(query.namespaces.values())}
    if after is not None:
        values |= {"after": after.at, "after_id": after.id}
    rows = await database.run(_statement(frozenset(values.keys() & _FILTERS)), **values, limit=limit + 1)
    items = [Row(**{**dict(row), "details": json.loads(row.details)}) for row in rows[:limit]]
    return Page(items=items, next=Position(at=items[-1].at, id=items[-1].id) if len(rows) > limit else None)


@functools.cache  # the number of combinations is limited
def _statement(filters: frozenset[str]) -> TextClause:
    conditions = " AND ".join(condition for name, condition in _FILTERS.items() if name in filters)
    return text(f"""
  SELECT id, at, who, address, action, namespace, name, investigation, CAST(detail AS text) AS details
  FROM audit WHERE {conditions or "true"} ORDER BY at DESC, id DESC LIMIT :limit
""")  # noqa: S608 - our own texts
