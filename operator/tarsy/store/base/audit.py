"""The table `audit`: each change by the API, with its time, caller and address.

A row is written in the transaction of its change, so that neither exists without the other. The statements that create
an investigation (`intake.queueing`) and ask a question (`queue.questions`) write their rows themselves. A change of
TARSy's own setup belongs to no investigation; its row has the details.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import text
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

Action = Literal["create", "retry", "cancel", "chat", "chat/cancel", "delete", "restore", "hold", "release", "purge"]
Setup = Literal["accept"]
"""The changes of TARSy's own setup."""


@dataclass(frozen=True, kw_only=True)
class Caller:
    """The caller of a request to the API, and its address."""

    who: str
    address: str


_WRITE = text("""
  INSERT INTO audit (who, address, action, investigation, namespace, name, detail)
  SELECT :who, :address, :action, id, namespace, name, CAST(:detail AS json) FROM investigations WHERE id = :id
""")


async def write(
    connection: sqlalchemy_asyncio.AsyncConnection,
    investigation: UUID,
    action: Action,
    *,
    by: Caller,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Write the row of a change that `by` requested, in the transaction of the change."""
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
    """Write the row of a change of the setup, in its transaction; `namespace` is the operator's own."""
    values = {"who": by.who, "address": by.address, "action": action, "namespace": namespace, "name": name}
    await connection.execute(_WRITE_SETUP, {**values, "detail": json.dumps(detail)})
