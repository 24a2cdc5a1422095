"""The tables of the processes together: leases, pins, facts, limits. `tables` has those of investigations."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import ARRAY, JSON, BigInteger, Column, DateTime, Integer, Table, Uuid

from tarsy.store.base import columns

metadata = sqlalchemy.MetaData()

leaders = Table(
    "leaders",
    metadata,
    columns.text("role", primary_key=True),
    Column("owner", Uuid, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
)
"""The leases of the roles that only one process may have (`fleet.leader`)."""

throttles = Table(
    "throttles",
    metadata,
    columns.text("provider", primary_key=True),
    Column("seconds", ARRAY(BigInteger), nullable=False, server_default="{}"),
    Column("requests", ARRAY(Integer), nullable=False, server_default="{}"),
    Column("tokens", ARRAY(BigInteger), nullable=False, server_default="{}"),
    postgresql_with={"fillfactor": 20},
)
"""The requests to each rate-limited provider: the grants of each second of the last minute (`fleet.rate_limits`).

A row has a page almost to itself, because each request updates it.
"""

catalogue = Table(
    "catalogue",
    metadata,
    Column("process", Uuid, primary_key=True),
    columns.text("kind", primary_key=True),
    columns.text("name", primary_key=True),
    columns.text("state"),
    columns.moment("since", default=True),
    columns.moment("seen_at", default=True),
    Column("detail", JSON, nullable=False, server_default="{}"),
)
"""The process facts: the process itself, its MCP servers and tools, its providers, its configuration.

`since` is the beginning of the state. A process with an old `seen_at` counts as gone.
"""

tool_pins = Table(
    "tool_pins",
    metadata,
    columns.text("server", primary_key=True),
    columns.text("tool", primary_key=True),
    columns.text("hash"),
    columns.moment("pinned_at", default=True),
    columns.text("confirmed_by", default=""),
    columns.moment("seen_at", default=True),
)
"""The pins of MCP servers' tools: the hash of each description when it was first seen, or when an admin accepted it.

Rows stay when their tool is removed; `seen_at` is the last day on which the platform file had the server.
"""

notices = Table(
    "notices",
    metadata,
    columns.text("name", primary_key=True),
    Column("told_at", DateTime(timezone=True), nullable=False),
)
"""The times of notices that all processes together post once in an interval."""

clusters = Table(
    "clusters", metadata, columns.text("uid", primary_key=True), columns.moment("first_seen", default=True)
)
"""The cluster (uid of kube-system) that this database belongs to."""
