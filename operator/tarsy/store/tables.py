"""The tables as SQLAlchemy sees them; the migrations make them, and a test compares the two.

Rows below a stage carry investigation, stage and execution. JSON that nobody queries is `json`, not `jsonb`: it keeps
what a provider gave us byte for byte, an escaped NUL included, which `jsonb` refuses.
"""

from __future__ import annotations

import datetime as dt
import uuid

import sqlalchemy
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    Interval,
    Table,
    Text,
    Uuid,
    func,
)

metadata = sqlalchemy.MetaData()

_NOW = func.now()


def _moment(name: str, *, default: bool = False) -> Column[dt.datetime]:
    moment = DateTime(timezone=True)
    return Column(name, moment, nullable=False, server_default=_NOW) if default else Column(name, moment)


def _text(name: str, *, nullable: bool = False, primary_key: bool = False) -> Column[str]:
    return Column(name, Text, nullable=nullable, primary_key=primary_key)


def _investigation() -> Column[uuid.UUID]:
    return Column(
        "investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True, nullable=False
    )


def _of_execution() -> list[Column[uuid.UUID] | Column[str] | ForeignKeyConstraint]:
    return [
        Column("investigation", Uuid, primary_key=True),
        _text("stage"),
        _text("execution", primary_key=True),
        ForeignKeyConstraint(
            ["investigation", "execution"], ["executions.investigation", "executions.id"], ondelete="CASCADE"
        ),
    ]


investigations = Table(
    "investigations",
    metadata,
    Column("id", Uuid, primary_key=True),
    _text("namespace"),
    _text("name"),
    Column("generation", BigInteger, nullable=False),
    _text("alert_type"),
    _text("alert_data"),
    _text("chain_name", nullable=True),
    _text("chain_namespace", nullable=True),
    Column("chain_generation", BigInteger),
    Column("chain", JSON),
    _moment("admitted_at", default=True),
    _moment("started_at"),
    _moment("ended_at"),
    _text("ending", nullable=True),
    _text("reason", nullable=True),
    _text("message", nullable=True),
    _text("final_analysis", nullable=True),
    _text("fingerprint", nullable=True),
    _text("severity", nullable=True),
    _text("runbook_url", nullable=True),
    _text("chain_hash", nullable=True),
    _text("alert_status", nullable=True),
    Column("duplicates", BigInteger, nullable=False, server_default="0"),
    Column("ttl_seconds", BigInteger),
    _moment("gone_at"),
    CheckConstraint("alert_status IN ('firing', 'resolved')", name="investigations_alert_status_check"),
)
"""The facts: what came in, which chain it runs, how it ended, and since when its object is known to be gone."""

work = Table(
    "work",
    metadata,
    _investigation(),
    _text("state"),
    Column("owner", Uuid),
    Column("token", Uuid),
    _moment("lease_until"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("commits", BigInteger, nullable=False, server_default="0"),
    Column("seq", BigInteger, nullable=False, server_default="1"),
    Column("projected_seq", BigInteger, nullable=False, server_default="0"),
    _moment("queued_at", default=True),
    _text("cancel", nullable=True),
    Column("fruitless", Integer, nullable=False, server_default="0"),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("suspend", Boolean, nullable=False, server_default=sqlalchemy.false()),
    _moment("suspended_at"),
    Column("suspended_for", Interval, nullable=False, server_default="0"),
    CheckConstraint("cancel IN ('user', 'deleted', 'resolved')", name="work_cancel_check"),
    CheckConstraint("state IN ('queued', 'running', 'ended')", name="work_state_check"),
)
"""The queue and the fence: one narrow row an investigation. `seq` rises with every change that a status shows.

`suspend` is what is wanted; `suspended_at` is since when it stands still, and `suspended_for` how long it did before.
"""
Index("work_claimable", work.c.priority.desc(), work.c.queued_at, postgresql_where=work.c.state != "ended")
Index("work_unprojected", work.c.investigation, postgresql_where=work.c.projected_seq < work.c.seq)

Index(
    "investigations_fingerprint",
    investigations.c.namespace,
    investigations.c.fingerprint,
    investigations.c.admitted_at,
    postgresql_where=investigations.c.fingerprint.is_not(None),
)
Index(
    "investigations_present",
    investigations.c.ended_at,
    postgresql_where=investigations.c.ended_at.is_not(None) & investigations.c.gone_at.is_(None),
)

identities = Table(
    "identities",
    metadata,
    _text("namespace", primary_key=True),
    _text("fingerprint", primary_key=True),
    Column("starts_ms", BigInteger, primary_key=True),
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), nullable=False),
    _moment("first_seen", default=True),
)
"""The alert episodes that have been admitted, past the deletion of their objects."""

large_alerts = Table(
    "large_alerts",
    metadata,
    _text("namespace", primary_key=True),
    _text("object_name", primary_key=True),
    _text("name", primary_key=True),
    _text("data"),
    _moment("created_at", default=True),
)
"""Alert data that is too large for its object, until that object is admitted."""

duties = Table(
    "duties",
    metadata,
    _text("name", primary_key=True),
    Column("owner", Uuid, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
)
"""Which process does what only one may do, and until when."""

clusters = Table("clusters", metadata, _text("uid", primary_key=True), _moment("first_seen", default=True))
"""The clusters (uid of kube-system) that this database belongs to: one, unless somebody made a mistake."""

stages = Table(
    "stages",
    metadata,
    _investigation(),
    _text("name", primary_key=True),
    Column("position", Integer, nullable=False),
    _moment("started_at", default=True),
    _moment("ended_at"),
    _text("outcome", nullable=True),
    _text("message", nullable=True),
)

executions = Table(
    "executions",
    metadata,
    Column("investigation", Uuid, primary_key=True),
    _text("stage"),
    _text("id", primary_key=True),
    Column("agent", JSON, nullable=False),
    Column("tools", JSON, nullable=False),
    Column("opening", Integer, nullable=False),
    _moment("started_at", default=True),
    _moment("ended_at"),
    _text("outcome", nullable=True),
    _text("error", nullable=True),
    ForeignKeyConstraint(["investigation", "stage"], ["stages.investigation", "stages.name"], ondelete="CASCADE"),
)
"""What each agent runs with, fixed at its start; `opening` counts the messages that it began with. No output: its
analysis is its last message."""

messages = Table(
    "messages",
    metadata,
    *_of_execution(),
    Column("position", Integer, primary_key=True),
    _text("role"),
    _text("text"),
    _text("thinking"),
    Column("tool_calls", JSON, nullable=False),
    _text("tool_call_id"),
    _text("tool_name"),
    Column("failed", Boolean, nullable=False),
    Column("in_doubt", Boolean, nullable=False),
    Column("provider_state", JSON(none_as_null=True)),
    _moment("created_at", default=True),
    CheckConstraint("role IN ('system', 'user', 'assistant', 'tool')", name="messages_role_check"),
)
"""The conversations, exactly as the models saw them."""

llm_interactions = Table(
    "llm_interactions",
    metadata,
    *_of_execution(),
    Column("position", Integer, primary_key=True),
    _text("provider"),
    _text("model"),
    Column("asked_with", Integer, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("thinking_tokens", BigInteger, nullable=False),
    Column("total_tokens", BigInteger, nullable=False),
    Column("attempts", JSON, nullable=False),
    _text("failure", nullable=True),
    _text("failure_text", nullable=True),
    _moment("created_at", default=True),
    CheckConstraint("failure IN ('timeout', 'rejected', 'fatal')", name="llm_interactions_failure_check"),
)
"""The model calls. `asked_with` is how many messages of the execution were sent: the range, not a copy."""

tool_interactions = Table(
    "tool_interactions",
    metadata,
    *_of_execution(),
    _text("call_id", primary_key=True),
    _text("tool_name"),
    _text("arguments"),
    Column("seconds", Double, nullable=False),
    _moment("created_at", default=True),
)
"""The tool calls; their results are messages."""
