"""The table `tool_pins`: the pins of MCP servers' tools, for all processes.

The first process that sees a tool pins it; later only an admin changes the pin. A pin stays when its tool or server is
removed, and the tool is compared with it when it returns.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from sqlalchemy import text

from tarsy.store.base import audit, databases, notify

CHANGED = "tarsy_pins"
"""The channel for accepted changes of tools; the payload is the server's name."""
UNSEEN_MAX = 2000
"""Tools of one server that are pinned when first seen; a server with new names each time must not fill the table."""

NAMES_MAX = 10
"""Tools that are named in a log line."""

log = logging.getLogger(__name__)

_READ = text("SELECT tool, hash FROM tool_pins WHERE server = :server")

_FIRST = text("""
  INSERT INTO tool_pins (server, tool, hash)
  SELECT :server, tool, hash
  FROM json_to_recordset(CAST(:seen AS json)) AS given (tool text, hash text)
  ORDER BY tool
  LIMIT CAST(:limit AS bigint)
  ON CONFLICT (server, tool) DO NOTHING
""")

_CONFIRM = text("""
  INSERT INTO tool_pins AS known (server, tool, hash, confirmed_by)
  SELECT :server, tool, hash, :who
  FROM json_to_recordset(CAST(:hashes AS json)) AS given (tool text, hash text)
  ORDER BY tool
  ON CONFLICT (server, tool) DO UPDATE
  SET hash = excluded.hash, pinned_at = clock_timestamp(), confirmed_by = excluded.confirmed_by
  WHERE known.hash <> excluded.hash
  RETURNING tool
""")

PLATFORM_FILE = "the platform file"
"""The author of the hashes in the platform file."""


class Pins:
    """The pins of all servers in Postgres; implements `tools.pins.PinStore`."""

    def __init__(self, database: databases.Database) -> None:
        self._database = database

    async def pinned(self, server: str, *, seen: Mapping[str, str], confirmed: Mapping[str, str]) -> Mapping[str, str]:
        """Pin new tools, and return the pins of the seen ones (`tools.pins.PinStore`). The first commit sets a pin."""
        pinned_hashes = await self._read(server)
        if changed := {
            tool: tool_hash for tool, tool_hash in confirmed.items() if pinned_hashes.get(tool) != tool_hash
        }:
            values = {"server": server, "hashes": _json(changed), "who": PLATFORM_FILE}
            await self._database.run(_CONFIRM, **values)
        if unseen := {tool: tool_hash for tool, tool_hash in seen.items() if tool not in pinned_hashes}:
            limit = max(0, UNSEEN_MAX - len(pinned_hashes))
            await self._database.run(_FIRST, server=server, seen=_json(unseen), limit=limit)
            pinned_hashes = await self._read(server)
            names = ", ".join([tool for tool in unseen if tool in pinned_hashes][:NAMES_MAX])
            log_fields = {"action": "tools_pinned", "server": server, "names": names}
            log.info("pinned new tools of %s", server, extra=log_fields)
        return {tool: pinned_hashes[tool] for tool in seen if tool in pinned_hashes}

    async def _read(self, server: str) -> Mapping[str, str]:
        return {row.tool: row.hash for row in await self._database.run(_READ, server=server)}


_PINNED = text(
    "SELECT tool, hash FROM tool_pins WHERE server = :server AND tool = ANY(:tools) ORDER BY tool FOR UPDATE"
)


async def confirm(
    database: databases.Database, server: str, hashes: Mapping[str, str], *, by: audit.Caller, namespace: str
) -> Mapping[str, str]:
    """Pin tools at these hashes on request of `by`, and write the audit row, for the operator's `namespace`.

    Return the tools whose pin has changed, each with its former hash, or "" if it had none.
    """
    async with database.begin() as connection:
        pinned = await connection.execute(_PINNED, {"server": server, "tools": list(hashes)})
        before = {row.tool: row.hash for row in pinned}
        values = {"server": server, "hashes": _json(hashes), "who": by.who}
        changed = [row.tool for row in await connection.execute(_CONFIRM, values)]
        detail = {tool: {"from": before.get(tool, ""), "to": hashes[tool]} for tool in changed}
        if changed:
            await audit.write_setup(connection, "accept", server, detail, namespace=namespace, by=by)
    if changed:
        await notify.send(database, (CHANGED, server))
    return {tool: before.get(tool, "") for tool in changed}


def _json(hashes: Mapping[str, str]) -> str:
    return json.dumps([{"tool": tool, "hash": tool_hash} for tool, tool_hash in hashes.items()])
