"""The audit: each change by the API, with time, caller and address.

A row is written in the transaction of its change, so that neither exists without the other. Single statements contain
it: creations (`admission`) and questions (`chat`). Requests without a change leave no row. A change of TARSy itself
belongs to no investigation, and its row says what was changed.
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
"""The changes of TARSy itself."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request to the API, and its address."""

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
