"""The tables, for SQLAlchemy. The migrations create them, and a test compares the two.

`entries` is the log and has all facts of a run that has started. The other tables have narrow rows for lists, queue
and status; the statement that appends to the log updates them. `entries`, `stages`, `executions` and `tool_results`
have no foreign keys, which would lock and dirty the parent's row at each commit.

JSON columns are `json`, not `jsonb`: `json` stores a provider's state byte for byte, and even an escaped NUL, which
`jsonb` refuses.
"""

from __future__ import annotations

import datetime as dt

import sqlalchemy
from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    Interval,
    LargeBinary,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects import postgresql

metadata = sqlalchemy.MetaData()

_NOW = func.now()
_UPDATED_OFTEN = {"fillfactor": 70}
"""For rows that each commit updates: with free space in its page, a new row version needs no index entries."""


def _moment(name: str, *, default: bool = False) -> Column[dt.datetime]:
    moment = DateTime(timezone=True)
    return Column(name, moment, nullable=False, server_default=_NOW) if default else Column(name, moment)


def _text(name: str, *, nullable: bool = False, primary_key: bool = False, default: str | None = None) -> Column[str]:
    return Column(name, Text, nullable=nullable, primary_key=primary_key, server_default=default)


def _count(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default="0")


investigations = Table(
    "investigations",
    metadata,
    Column("id", Uuid, primary_key=True),
    _moment("admitted_at", default=True),
    _text("namespace"),
    _text("namespace_uid", nullable=True),
    _text("ending", nullable=True),
    _moment("ended_at"),
    _moment("purged_at"),
    _text("alert_type"),
    _text("chain_name", nullable=True),
    _text("author", default=""),
    _text("fingerprint", nullable=True),
    _text("name"),
    Column("generation", BigInteger, nullable=False),
    _text("alert_data"),
    _text("severity", nullable=True),
    _text("runbook_url", nullable=True),
    _text("alert_status", nullable=True),
    _count("duplicates"),
    _text("chain_namespace", nullable=True),
    Column("chain_generation", BigInteger),
    _text("chain_hash", nullable=True),
    Column("chain_version", Integer),
    Column("chain", JSON),
    Column("stage_names", ARRAY(Text), nullable=False, server_default="{}"),
    Column("stage_agents", ARRAY(Integer), nullable=False, server_default="{}"),
    _text("on_resolved", nullable=True),
    Column("chain_ttl_seconds", BigInteger),
    Column("ttl_seconds", BigInteger),
    _moment("gone_at"),
    Column("words", postgresql.TSVECTOR),
    Column("previous", Uuid),
    _text("target", default=""),
    Column("labels", JSON),
    _text("alert_summary", default=""),
    _text("generator_url", nullable=True),
    _text("external_url", nullable=True),
    Column("agent_names", JSON),
    Column("retry_of", Uuid),
    _text("retry_stage", nullable=True),
    Column("copied_entries", BigInteger, nullable=False, server_default="0"),
    _moment("deleted_at"),
    _moment("restored_at"),
    _moment("emptied_at"),
    _moment("results_deleted_at"),
    _text("hold", nullable=True),
    Column("transcript_retention_days", Integer),
    _text("traceparent", nullable=True),
    CheckConstraint("alert_status IN ('firing', 'resolved')", name="investigations_alert_status_check"),
    postgresql_with={"fillfactor": 85, "toast_tuple_target": 700, "parallel_workers": 0},
)
"""The alerts and their chains, fixed at admission except generation, ttl_seconds, alert_status and duplicates.

- `ended_at` and `ending` are those of run 0.
- `gone_at` is the time when the object was found to be gone.
- `deleted_at` is the time since which the transcript is hidden, `restored_at` the end of the last such time,
  `purged_at` the time since which it cannot be restored, `emptied_at` the time when the last of its rows was deleted.
  The row of a purged investigation stays for a while, so that its alert is not investigated again
  (`operations.retention`).
- `results_deleted_at` is the time when the full texts of its tool results were deleted before the transcript.
- `hold` is the reason that keeps it from all deletion. `transcript_retention_days` is the chain's, fixed at admission.
- `words` are the words that a search matches; `target` is the subject of the alert, on one line.
- `labels` are those that identify the alert, `alert_summary` is the first line of its annotation `summary`, and
  `agent_names` has a list of names for each stage of the chain. Rows of earlier builds lack them.
- `fingerprint` is the alert's, if intake created the object; an object that a user created has none, even if its spec
  has one.
- `previous` is the earlier investigation of the same alert (`intake.episodes`); its row may no longer exist.
- `retry_of` is the ended investigation that this one runs again (`ingest.retries`), `retry_stage` the first stage that
  does; null for all. The entries up to number `copied_entries` are those before it: copies, which cost nothing.
- `traceparent` names the span of another system that the alert carries; null if it carries none.
"""
Index(
    "investigations_fingerprint",
    investigations.c.namespace,
    investigations.c.fingerprint,
    investigations.c.admitted_at,
    postgresql_where=investigations.c.fingerprint.is_not(None),
)
Index("investigations_retry_of", investigations.c.retry_of, postgresql_where=investigations.c.retry_of.is_not(None))
Index("investigations_open", investigations.c.namespace, postgresql_where=investigations.c.ended_at.is_(None))
Index(
    "investigations_present",
    investigations.c.ended_at,
    postgresql_where=investigations.c.ended_at.is_not(None) & investigations.c.gone_at.is_(None),
)
_VISIBLE = investigations.c.purged_at.is_(None) & investigations.c.deleted_at.is_(None)
Index(
    "investigations_listed",
    investigations.c.namespace,
    investigations.c.admitted_at,
    investigations.c.id,
    postgresql_where=_VISIBLE,
)
Index(
    "investigations_counted",
    investigations.c.namespace,
    investigations.c.ending,
    investigations.c.namespace_uid,
    postgresql_where=_VISIBLE,
)
Index(
    "investigations_kept",
    investigations.c.transcript_retention_days,
    investigations.c.ended_at,
    postgresql_where=investigations.c.ended_at.is_not(None) & _VISIBLE & investigations.c.hold.is_(None),
)
Index(
    "investigations_deleted",
    investigations.c.deleted_at,
    postgresql_where=investigations.c.deleted_at.is_not(None)
    & investigations.c.purged_at.is_(None)
    & investigations.c.hold.is_(None),
)
Index(
    "investigations_purged",
    investigations.c.purged_at,
    postgresql_where=investigations.c.purged_at.is_not(None) & investigations.c.emptied_at.is_(None),
)
Index(
    "investigations_emptied",
    investigations.c.ended_at,
    postgresql_where=investigations.c.emptied_at.is_not(None) & investigations.c.gone_at.is_not(None),
)
Index(
    "investigations_with_results",
    investigations.c.ended_at,
    postgresql_where=investigations.c.ended_at.is_not(None)
    & investigations.c.purged_at.is_(None)
    & investigations.c.results_deleted_at.is_(None)
    & investigations.c.hold.is_(None),
)
Index(
    "investigations_words",
    investigations.c.words,
    postgresql_using="gin",
    postgresql_with={"gin_pending_list_limit": 64},
)

work = Table(
    "work",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    Column("run", Integer, nullable=False, server_default="0"),
    _text("state"),
    Column("owner", Uuid),
    Column("token", Uuid),
    _moment("lease_until"),
    Column("claims", Integer, nullable=False, server_default="0"),
    Column("attempts_without_progress", Integer, nullable=False, server_default="0"),
    _count("log_seq"),
    Column("revision", BigInteger, nullable=False, server_default="1"),
    Column("stale", Boolean, nullable=False, server_default=sqlalchemy.true()),
    _moment("queued_at", default=True),
    _text("cancel", nullable=True),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("suspend", Boolean, nullable=False, server_default=sqlalchemy.false()),
    Column("unreadable_by", ARRAY(Text), nullable=False, server_default="{}"),
    _text("unreadable", nullable=True),
    _count("changed"),
    _moment("passed_over_since"),
    CheckConstraint("cancel IN ('user', 'deleted', 'resolved')", name="work_cancel_check"),
    CheckConstraint("state IN ('queued', 'running', 'ended')", name="work_state_check"),
    postgresql_with=_UPDATED_OFTEN,
)
"""The queue and the fence: one narrow row for each investigation, about its latest run.

- `log_seq` is the number of the log's last entry: the precondition of the next commit.
- `revision` rises with each change that the status shows, and with feedback, which lists show; `stale` says that the
  status in the cluster is older. The status shows run 0, so later runs change neither.
- `changed` is the last transaction that changed a run, a stage, or a request to stop, and not only counters
  (`reads.changes`); 0 if there was none since the column was added.
- `claims` counts the claims of all runs; `cancel` and `suspend` are the latest run's.
- `unreadable` describes the part of the log that the programs `unreadable_by` could not read.
- `passed_over_since` is the time since which all live workers have passed it over (`fleet.passed_over`).
"""
Index("work_claimable", work.c.priority.desc(), work.c.queued_at, postgresql_where=work.c.state != "ended")
Index("work_stale", work.c.queued_at, postgresql_where=work.c.stale)
Index("work_changed", work.c.changed)

runs = Table(
    "runs",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    _text("kind"),
    _moment("started_at"),
    _moment("suspended_at"),
    Column("suspended_for", Interval, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    _moment("ended_at"),
    _text("ending", nullable=True),
    _text("reason", nullable=True),
    _text("message", nullable=True),
    _text("final_analysis", nullable=True),
    _text("summary", nullable=True),
    Column("gaps", JSON, nullable=False, server_default="[]"),
    _text("grounds", nullable=True),
    CheckConstraint("kind IN ('investigation', 'chat')", name="runs_kind_check"),
)
"""The runs of an investigation; run 0 is the investigation itself, later runs are questions about it.

`started_at` is the time of the first claim. `suspended_at` is the start of the present suspension, `suspended_for` the
sum of the earlier ones. `attempts` counts the claims that were not released. Only this table holds the final analysis.
"""

stages = Table(
    "stages",
    metadata,
    Column("investigation", Uuid, primary_key=True),
    Column("run", Integer, primary_key=True),
    _text("name", primary_key=True),
    _moment("started_at"),
    _moment("ended_at"),
    _text("outcome", nullable=True),
    _text("message", default=""),
    Column("lacks", JSON, nullable=False, server_default="[]"),
    Column("cut_off", Boolean),
)
"""The stages that have started or were skipped; `lacks` is a list of sentences.

`cut_off` says whether the end of the run ended the stage. It is null while the stage is open, and for stages that an
earlier build ended (`phase_rules.CUT_OFF`).
"""

executions = Table(
    "executions",
    metadata,
    Column("investigation", Uuid, primary_key=True),
    _text("id", primary_key=True),
    Column("run", Integer, nullable=False),
    _text("stage"),
    _text("kind"),
    Column("index", Integer, nullable=False),
    _text("parent"),
    _text("name"),
    _text("provider"),
    _text("strategy", default=""),
    _moment("started_at", default=True),
    _moment("ended_at"),
    _text("outcome", nullable=True),
    _text("error", default=""),
    _count("iterations"),
    _count("tool_calls"),
    _count("input_tokens"),
    _count("output_tokens"),
    _count("thinking_tokens"),
    _count("total_tokens"),
    Column("cost", Double),
    _text("retrying", nullable=True),
    _moment("retry_at"),
    Column("retry_claim", Integer),
    postgresql_with=_UPDATED_OFTEN,
)
"""The executions in numbers; their settings and results are in the log.

`provider` is the one of the latest request: the agent's own, or a fallback. `cost` is null if no call had a price.
While a request is retried, `retrying` holds the provider and the error, `retry_at` the time, `retry_claim` the claim.
"""

entries = Table(
    "entries",
    metadata,
    Column("investigation", Uuid, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    _moment("at", default=True),
    Column("claim", Integer, nullable=False),
    _text("kind"),
    Column("version", Integer, nullable=False),
    Column("run", Integer, nullable=False),
    _text("stage"),
    _text("execution"),
    Column("body", JSON, nullable=False),
    Column("opaque", JSON(none_as_null=True)),
    Column("messages", Integer, nullable=False, server_default="0"),
    Column("model_calls", Integer, nullable=False, server_default="0"),
    Column("tool_calls", Integer, nullable=False, server_default="0"),
    Column("call_facts", JSON(none_as_null=True)),
)
"""The log, append-only (`transcript.entries`).

`body` is JSON of storable text. `opaque` may have escapes that Postgres cannot parse, so no view reads it. The numbers
of an entry's messages and calls are columns, so that a page of them is numbered without reading earlier bodies.
`call_facts` lists an object for each call, without texts (`reads.trace_index`); null in entries of older builds.
"""

tool_results = Table(
    "tool_results",
    metadata,
    Column("investigation", Uuid, primary_key=True),
    _text("execution", primary_key=True),
    _text("call_id", primary_key=True),
    _text("whole"),
    _text("rest", nullable=True),
)
"""What the log lacks, masked, of each tool result that it has in part.

Of an excerpt it is the `rest`, the characters that the excerpt does not show (`transcript.line_excerpts`), and `whole`
is empty; of any other part it is the `whole` result. It is written with the entry, and is not read when the log is
loaded. It may be deleted before its transcript.
"""

feedback = Table(
    "feedback",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    _text("author", primary_key=True),
    _text("verdict"),
    _text("cause", default=""),
    _text("note", default=""),
    _moment("given_at", default=True),
    _moment("changed_at", default=True),
    CheckConstraint("verdict IN ('correct', 'partly', 'wrong')", name="feedback_verdict_check"),
)
"""The feedback of people, one row a person (`operations.feedback`). `cause` and `note` are masked."""
Index("feedback_verdict", feedback.c.verdict, feedback.c.changed_at)

identities = Table(
    "identities",
    metadata,
    _text("namespace", primary_key=True),
    _text("fingerprint", primary_key=True),
    Column("starts_ms", BigInteger, primary_key=True),
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), nullable=False),
    _moment("first_seen", default=True),
)
"""The alert episodes that were admitted; they outlive their objects."""
Index("identities_investigation", identities.c.investigation)

receipts = Table(
    "receipts",
    metadata,
    _text("namespace", primary_key=True),
    _text("fingerprint", primary_key=True),
    Column("starts_ms", BigInteger, primary_key=True),
    _text("name"),
    _text("word"),
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE")),
    _moment("created_at", default=True),
    Column("digests", ARRAY(Text), nullable=False, server_default="{}"),
    _text("address", default=""),
    Column("previous", Uuid),
    Column("attempt", Integer, nullable=False, server_default="1"),
)
"""The objects that intake has created or is about to create (`intake.receipts`).

`name`, `word` and `digests` identify an object as intake's. `address` is the address of the first caller, for the audit
row if intake dies before it writes that. `investigation` is the first one admitted from such an object; any other
object with them is a copy.
`attempt` counts the objects of the episode, from 1; `previous` is the earlier investigation of the alert.
"""
Index("receipts_name", receipts.c.namespace, receipts.c.name)
Index("receipts_created_at", receipts.c.created_at)
Index("receipts_investigation", receipts.c.investigation)

large_alerts = Table(
    "large_alerts",
    metadata,
    _text("namespace", primary_key=True),
    _text("object_name", primary_key=True),
    _text("name", primary_key=True),
    _text("data"),
    _moment("created_at", default=True),
    _text("summary", default=""),
)
"""Alert data that is too large for the object, until the object is admitted."""

leaders = Table(
    "leaders",
    metadata,
    _text("role", primary_key=True),
    Column("owner", Uuid, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
)
"""The leases of the roles that only one process may have (`fleet.leader`)."""

browser_sessions = Table(
    "browser_sessions",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("is_code", Boolean, nullable=False),
    Column("identity", JSON, nullable=False),
    Column("until", DateTime(timezone=True), nullable=False),
    Column("session_until", DateTime(timezone=True), nullable=False),
    Index("browser_sessions_until", "until"),
)
"""The sessions of browsers and the one-time codes that begin them, each as a digest."""

throttles = Table(
    "throttles",
    metadata,
    _text("provider", primary_key=True),
    Column("seconds", ARRAY(BigInteger), nullable=False, server_default="{}"),
    Column("requests", ARRAY(Integer), nullable=False, server_default="{}"),
    Column("tokens", ARRAY(BigInteger), nullable=False, server_default="{}"),
    postgresql_with={"fillfactor": 20},
)
"""The requests to each rate-limited provider: the grants of each second of the last minute (`fleet.rate_limits`).

A row has a page almost to itself, because each request updates it.
"""

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    _moment("at", default=True),
    _text("who"),
    _text("address"),
    _text("action"),
    Column("investigation", Uuid),
    _text("namespace"),
    _text("name"),
    Column("detail", JSON, nullable=False, server_default="{}"),
    _text("namespace_uid", nullable=True),
)
"""The changes and exports by the API (`audit`).

Append-only; the rows stay when a transcript is purged. A row without an investigation is about TARSy's own setup, or a
session of a browser; `detail` describes it. Each filter of `audit.page` has an index with the page's order.
"""
Index("audit_investigation", audit.c.investigation, audit.c.at, audit.c.id)
Index("audit_at", audit.c.at, audit.c.id)
Index("audit_namespace", audit.c.namespace, audit.c.at, audit.c.id)
Index("audit_who", audit.c.who, audit.c.at, audit.c.id)
Index("audit_action", audit.c.action, audit.c.at, audit.c.id)
Index("audit_name", audit.c.name, audit.c.at, audit.c.id)

catalogue = Table(
    "catalogue",
    metadata,
    Column("process", Uuid, primary_key=True),
    _text("kind", primary_key=True),
    _text("name", primary_key=True),
    _text("state"),
    _moment("since", default=True),
    _moment("seen_at", default=True),
    Column("detail", JSON, nullable=False, server_default="{}"),
)
"""The process facts: the process itself, its MCP servers and tools, its providers, its configuration.

`since` is the beginning of the state. A process with an old `seen_at` counts as gone.
"""

tool_pins = Table(
    "tool_pins",
    metadata,
    _text("server", primary_key=True),
    _text("tool", primary_key=True),
    _text("hash"),
    _moment("pinned_at", default=True),
    _text("confirmed_by", default=""),
    _moment("seen_at", default=True),
)
"""The pins of MCP servers' tools: the hash of each description when it was first seen, or when an admin accepted it.

Rows stay when their tool is removed; `seen_at` is the last day on which the platform file had the server.
"""

unserved = Table(
    "unserved",
    metadata,
    _text("alert_type", primary_key=True),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("alerts", BigInteger, nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)
"""The alerts that no chain took, counted by masked type and hour (`intake.unserved`)."""

notices = Table(
    "notices", metadata, _text("name", primary_key=True), Column("told_at", DateTime(timezone=True), nullable=False)
)
"""The times of notices that all processes together post once in an interval."""

clusters = Table("clusters", metadata, _text("uid", primary_key=True), _moment("first_seen", default=True))
"""The cluster (uid of kube-system) that this database belongs to."""
