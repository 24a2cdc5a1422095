"""The audit: what was done by the API, when, by whom and from where.

A row is written in the transaction of what it tells of in the store, so that there is never one without the other. What
is a single statement writes its row in it: creations (`admission`) and questions (`chat`). What changes nothing leaves
no row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

Action = Literal["create", "cancel", "chat", "chat/cancel", "purge"]


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
    given = {"id": investigation, "action": action, "who": by.who, "address": by.address}
    await connection.execute(_WRITE, given)
