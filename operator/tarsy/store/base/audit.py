"""The audit: what was done by the API, when, by whom and from where.

A row is written in the transaction of what it tells of in the store, so that there is never one without the other. What
is a single statement writes its row in it: creations (`admission`) and questions (`chat`). What changes nothing leaves
no row. What is done to TARSy itself is of no investigation, and its row says what it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

Action = Literal["create", "cancel", "chat", "chat/cancel", "purge"]
Setup = Literal["accept"]
"""What is done to TARSy itself."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who asks for something by the API, and from where."""

    who: str
    address: str


_WRITE = text("""
  INSERT INTO audit (who, address, action, investigation, namespace, name)
  SELECT :who, :address, :action, id, namespace, name FROM investigations WHERE id = :id
""")


async def write(
    connection: sqlalchemy_asyncio.AsyncConnection, investigation: UUID, action: Action, *, by: Caller
) -> None:
    """Note, in the transaction that does it, what `by` asked for."""
    values = {"id": investigation, "action": action, "who": by.who, "address": by.address}
    await connection.execute(_WRITE, values)


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
    """Note, in the transaction that does it, what `by` asked for; `namespace` is the operator's."""
    values = {"who": by.who, "address": by.address, "action": action, "namespace": namespace, "name": name}
    await connection.execute(_WRITE_SETUP, {**values, "detail": json.dumps(detail)})
