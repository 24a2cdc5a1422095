"""The tables, for SQLAlchemy. The migrations create them, and a test compares the two.

`entries` is the log and has all facts of a run that has started. The other tables have narrow rows for lists, queue
and status; the statement that appends to the log updates them. `entries`, `stages`, `executions` and `tool_results`
have no foreign keys, which would lock and dirty the parent's row at each commit.

JSON columns are `json`, not `jsonb`: `json` stores a provider's state byte for byte, and even an escaped NUL, which
`jsonb` refuses.
"""

from __future__ import annotations

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
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects import postgresql

from tarsy.store.base import columns, fleet_tables

metadata = sqlalchemy.MetaData()
"""All tables: those of this module, then those of `fleet_tables`."""

investigations = Table(
    "investigations",
    metadata,
    Column("id", Uuid, primary_key=True),
    columns.moment("admitted_at", default=True),
    columns.text("namespace"),
    columns.text("namespace_uid", nullable=True),
    columns.text("ending", nullable=True),
    columns.moment("ended_at"),
    columns.moment("purged_at"),
    columns.text("alert_type"),
    columns.text("chain_name", nullable=True),
    columns.text("author", default=""),
    columns.text("fingerprint", nullable=True),
    columns.text("name"),
    Column("generation", BigInteger, nullable=False),
    columns.text("alert_data"),
    columns.text("severity", nullable=True),
    columns.text("runbook_url", nullable=True),
    columns.text("alert_status", nullable=True),
    columns.count("duplicates"),
    columns.text("chain_namespace", nullable=True),
    Column("chain_generation", BigInteger),
    columns.text("chain_hash", nullable=True),
    Column("chain_version", Integer),
    Column("chain", JSON),
    Column("stage_names", ARRAY(Text), nullable=False, server_default="{}"),
    Column("stage_agents", ARRAY(Integer), nullable=False, server_default="{}"),
    columns.text("on_resolved", nullable=True),
    Column("chain_ttl_seconds", BigInteger),
    Column("ttl_seconds", BigInteger),
    columns.moment("gone_at"),
    Column("words", postgresql.TSVECTOR),
    Column("previous", Uuid),
    columns.text("target", default=""),
    Column("labels", JSON),
    columns.text("alert_summary", default=""),
    columns.text("generator_url", nullable=True),
    columns.text("external_url", nullable=True),
    Column("agent_names", JSON),
    Column("retry_of", Uuid),
    columns.text("retry_stage", nullable=True),
    Column("copied_entries", BigInteger, nullable=False, server_default="0"),
    columns.moment("deleted_at"),
    columns.moment("restored_at"),
    columns.moment("emptied_at"),
    columns.moment("results_deleted_at"),
    columns.text("hold", nullable=True),
    Column("transcript_retention_days", Integer),
    columns.text("traceparent", nullable=True),
    Column("starters", SmallInteger, nullable=False, server_default="0"),
    Column("split_from", Uuid),
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
- `previous` is the earlier investigation of the same alert (`intake.episodes`), or the one whose result it ended with
  (`engine.recheck`); its row may no longer exist.
- `retry_of` is the ended investigation that this one runs again (`ingest.retries`), `retry_stage` the first stage that
  does; null for all. The entries up to number `copied_entries` are those before it: copies, which cost nothing.
- `traceparent` names the span of another system that the alert carries; null if it carries none.
- `split_from` is the investigation whose group its alert was taken out of (`intake.splits`).
- `starters` is the number of investigations in a row that led to this one: the agents of each started the next one.
"""
Index(
    "investigations_fingerprint",
    investigations.c.namespace,
    investigations.c.fingerprint,
    investigations.c.admitted_at,
    postgresql_where=investigations.c.fingerprint.is_not(None),
)
Index("investigations_retry_of", investigations.c.retry_of, postgresql_where=investigations.c.retry_of.is_not(None))
Index(
    "investigations_split_from", investigations.c.split_from, postgresql_where=investigations.c.split_from.is_not(None)
)
Index("investigations_open", investigations.c.namespace, postgresql_where=investigations.c.ended_at.is_(None))
Index(
    "investigations_present",
    investigations.c.ended_at,
    postgresql_where=investigations.c.ended_at.is_not(None) & investigations.c.gone_at.is_(None),
)
EXPIRES = "extract(epoch FROM timezone('UTC', ended_at)) + coalesce(ttl_seconds, chain_ttl_seconds, 604800)"
"""The second at which an object's time to live is over, if no question was asked; of only immutable functions.

Without a TTL it is a week (`resources.investigations.DEFAULT_TTL_SECONDS`).
"""
Index(
    "investigations_expiring",
    investigations.c.namespace,
    sqlalchemy.text(f"({EXPIRES})"),
    postgresql_where=investigations.c.ended_at.is_not(None)
    & investigations.c.gone_at.is_(None)
    & investigations.c.deleted_at.is_(None),
)
Index(
    "investigations_deleted_objects",
    investigations.c.namespace,
    investigations.c.deleted_at,
    postgresql_where=investigations.c.deleted_at.is_not(None) & investigations.c.gone_at.is_(None),
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
    postgresql_where=investigations.c.deleted_at.is_not(None) & investigations.c.purged_at.is_(None),
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
    columns.text("state"),
    Column("owner", Uuid),
    Column("token", Uuid),
    columns.moment("lease_until"),
    Column("claims", Integer, nullable=False, server_default="0"),
    Column("attempts_without_progress", Integer, nullable=False, server_default="0"),
    columns.count("log_seq"),
    Column("revision", BigInteger, nullable=False, server_default="1"),
    Column("stale", Boolean, nullable=False, server_default=sqlalchemy.true()),
    columns.moment("queued_at", default=True),
    columns.text("cancel", nullable=True),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("suspend", Boolean, nullable=False, server_default=sqlalchemy.false()),
    Column("unreadable_by", ARRAY(Text), nullable=False, server_default="{}"),
    columns.text("unreadable", nullable=True),
    columns.count("changed"),
    columns.moment("passed_over_since"),
    columns.text("queue", default=""),
    columns.count("joined"),
    columns.moment("wake_at"),
    columns.text("wait_reason", nullable=True),
    columns.text("wait_message", nullable=True),
    CheckConstraint("cancel IN ('user', 'deleted', 'resolved')", name="work_cancel_check"),
    CheckConstraint("state IN ('queued', 'running', 'parked', 'ended')", name="work_state_check"),
    postgresql_with=columns.UPDATED_OFTEN,
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
- `queue` is the queue that the run waits in (`queue.turns`): the namespace/name of its chain, "" for a question.
- A parked run has no claim, because all its open executions wait for something outside: `wait_reason` names it in one
  CamelCase word, `wait_message` in a sentence. At `wake_at` it is queued again.
"""
IS_OPEN = "(state <> 'ended' AND run >= 0)"
"""The condition of the index `work_open`, for the statements that look for open runs in all of `work`.

Every run is at least 0. That is in the condition because no claim says it: an index of `state <> 'ended'` would serve
a claim too, and while the statistics are old, Postgres prefers it to `work_queued` and reads all of it.
"""
Index("work_open", work.c.queue, postgresql_where=text(IS_OPEN))
Index(
    "work_queued",
    work.c.queue,
    work.c.priority.desc(),
    work.c.queued_at,
    postgresql_where=(work.c.state == "queued") & ~work.c.suspend,
)
Index("work_running", work.c.queue, postgresql_where=work.c.state == "running")
Index("work_parked", work.c.wake_at, postgresql_where=work.c.state == "parked")
Index("work_stale", work.c.queued_at, postgresql_where=work.c.stale)
Index("work_changed", work.c.changed)

queues = Table(
    "queues",
    metadata,
    columns.text("queue", primary_key=True),
    columns.count("taken"),
    columns.moment("taken_at"),
    Column("max_running", Integer),
    postgresql_with={"fillfactor": 20},
)
"""The claims from each queue (`queue.turns`), one of each chain and one of questions: their number, and the last time.

`max_running` is the limit of today's chain: 0 for none, null if none was written yet. Each claim updates
a row.
"""

budget_ledgers = Table(
    "budget_ledgers",
    metadata,
    columns.text("budget", primary_key=True),
    columns.text("unit", primary_key=True),
    columns.text("subject", primary_key=True),
    columns.text("period", primary_key=True),
    Column("used", Numeric, nullable=False, server_default="0"),
    Column("settled", Numeric, nullable=False, server_default="0"),
    columns.moment("opened_at", default=True),
    postgresql_with={"fillfactor": 20},
)
"""What each subject of a budget has spent in each period (`queue.ledgers`); each request updates a row twice.

`used` has the maxima of requests that are not settled, too; `settled` is what the transcripts have.
"""
Index(
    "budget_ledgers_by_investigation",
    func.split_part(budget_ledgers.c.subject, " ", 1),
    postgresql_where=budget_ledgers.c.period == "",
)

budget_reservations = Table(
    "budget_reservations",
    metadata,
    Column("request", Uuid, primary_key=True),
    columns.text("budget", primary_key=True),
    columns.text("unit", primary_key=True),
    columns.text("subject", primary_key=True),
    columns.text("period", primary_key=True),
    Column("investigation", Uuid, nullable=False),
    Column("token", Uuid, nullable=False),
    Column("amount", Numeric, nullable=False),
    Column("ended", Boolean, nullable=False, server_default="false"),
)
"""The maxima that requests have reserved of ledgers, until the commit of their answer or the end of their claim."""

runs = Table(
    "runs",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    columns.text("kind"),
    columns.moment("started_at"),
    columns.moment("suspended_at"),
    Column("suspended_for", Interval, nullable=False, server_default="0"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    columns.moment("ended_at"),
    columns.text("ending", nullable=True),
    columns.text("reason", nullable=True),
    columns.text("message", nullable=True),
    columns.text("final_analysis", nullable=True),
    columns.text("summary", nullable=True),
    Column("gaps", JSON, nullable=False, server_default="[]"),
    columns.text("grounds", nullable=True),
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
    columns.text("name", primary_key=True),
    columns.moment("started_at"),
    columns.moment("ended_at"),
    columns.text("outcome", nullable=True),
    columns.text("message", default=""),
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
    columns.text("id", primary_key=True),
    Column("run", Integer, nullable=False),
    columns.text("stage"),
    columns.text("kind"),
    Column("index", Integer, nullable=False),
    columns.text("parent"),
    columns.text("name"),
    columns.text("provider"),
    columns.text("strategy", default=""),
    columns.moment("started_at", default=True),
    columns.moment("ended_at"),
    columns.text("outcome", nullable=True),
    columns.text("error", default=""),
    columns.count("iterations"),
    columns.count("tool_calls"),
    columns.count("input_tokens"),
    columns.count("output_tokens"),
    columns.count("thinking_tokens"),
    columns.count("total_tokens"),
    Column("cost", Double),
    columns.text("retrying", nullable=True),
    columns.moment("retry_at"),
    Column("retry_claim", Integer),
    postgresql_with=columns.UPDATED_OFTEN,
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
    columns.moment("at", default=True),
    Column("claim", Integer, nullable=False),
    columns.text("kind"),
    Column("version", Integer, nullable=False),
    Column("run", Integer, nullable=False),
    columns.text("stage"),
    columns.text("execution"),
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
    columns.text("execution", primary_key=True),
    columns.text("call_id", primary_key=True),
    columns.text("whole"),
    columns.text("rest", nullable=True),
)
"""The missing text, masked, of each tool result that the log has in part.

Of an excerpt it is the `rest`, the characters that the excerpt does not show (`transcript.line_excerpts`), and `whole`
is empty; of any other part it is the `whole` result. It is written with the entry, and is not read when the log is
loaded. It may be deleted before its transcript.
"""

feedback = Table(
    "feedback",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    columns.text("author", primary_key=True),
    columns.text("verdict"),
    columns.text("cause", default=""),
    columns.text("note", default=""),
    columns.moment("given_at", default=True),
    columns.moment("changed_at", default=True),
    CheckConstraint("verdict IN ('correct', 'partly', 'wrong')", name="feedback_verdict_check"),
)
"""The feedback of people, one row a person (`operations.feedback`). `cause` and `note` are masked."""
Index("feedback_verdict", feedback.c.verdict, feedback.c.changed_at)

identities = Table(
    "identities",
    metadata,
    columns.text("namespace", primary_key=True),
    columns.text("fingerprint", primary_key=True),
    Column("starts_ms", BigInteger, primary_key=True),
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), nullable=False),
    columns.moment("first_seen", default=True),
    columns.text("alert_type", default=""),
    columns.text("severity", default=""),
    Column("labels", JSON),
    columns.text("status", default="firing"),
    columns.moment("joined_at"),
    Column("joined_number", BigInteger),
    columns.text("alert_json", nullable=True),
    columns.text("group_digest", nullable=True),
)
"""The alerts: each episode that has an investigation. They outlive their objects.

`alert_type`, `severity` and `labels`, those that identify it, are masked. `status` is firing or resolved. `joined_at`
is the time at which it joined the investigation of a group (`intake.groups`); null if that was made for it.
`joined_number` rises with each that joins; `work.joined` is the last one. `alert_json` is the text of an alert that
joined, masked and cut (`ingest.grouping`): an investigation of its own would begin with it.
`group_digest` is that of the group key of its notification (`ingest.grouping.digest`).
"""
Index("identities_investigation", identities.c.investigation)

receipts = Table(
    "receipts",
    metadata,
    columns.text("namespace", primary_key=True),
    columns.text("fingerprint", primary_key=True),
    Column("starts_ms", BigInteger, primary_key=True),
    columns.text("name"),
    columns.text("word"),
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE")),
    columns.moment("created_at", default=True),
    Column("digests", ARRAY(Text), nullable=False, server_default="{}"),
    columns.text("address", default=""),
    Column("previous", Uuid),
    Column("attempt", Integer, nullable=False, server_default="1"),
    Column("split_from", Uuid),
)
"""The objects that intake has created or is about to create (`intake.receipts`).

`name`, `word` and `digests` identify an object as intake's. `address` is the address of the first caller, for the audit
row if intake dies before it writes that. `investigation` is the first one admitted from such an object; any other
object with them is a copy.
`attempt` counts the objects of the episode, from 1; `previous` is the earlier investigation of the alert, `split_from`
the one whose group it is taken out of. The receipt of a group has its key instead of a fingerprint, and 0 for the start
(`intake.groups`).
"""
Index("receipts_name", receipts.c.namespace, receipts.c.name)
Index("receipts_created_at", receipts.c.created_at)
Index("receipts_investigation", receipts.c.investigation)

large_alerts = Table(
    "large_alerts",
    metadata,
    columns.text("namespace", primary_key=True),
    columns.text("object_name", primary_key=True),
    columns.text("name", primary_key=True),
    columns.text("data"),
    columns.moment("created_at", default=True),
    columns.text("summary", default=""),
)
"""Alert data that is too large for the object, until the object is admitted."""
Index("large_alerts_created", large_alerts.c.created_at)

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

audit = Table(
    "audit",
    metadata,
    Column("id", Uuid, primary_key=True, server_default=func.gen_random_uuid()),
    columns.moment("at", default=True),
    columns.text("who"),
    columns.text("address"),
    columns.text("action"),
    Column("investigation", Uuid),
    columns.text("namespace"),
    columns.text("name"),
    Column("detail", JSON, nullable=False, server_default="{}"),
    columns.text("namespace_uid", nullable=True),
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

unserved_alerts = Table(
    "unserved_alerts",
    metadata,
    columns.text("namespace", primary_key=True),
    columns.text("alert_type", primary_key=True),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("alerts", BigInteger, nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)
"""The alerts that no chain took, counted by namespace, masked type and hour (`intake.unserved`)."""

deliveries = Table(
    "deliveries",
    metadata,
    Column("investigation", Uuid, ForeignKey("investigations.id", ondelete="CASCADE"), primary_key=True),
    columns.text("receiver", primary_key=True),
    columns.text("event"),
    Column("revision", BigInteger, nullable=False),
    columns.moment("since", default=True),
    columns.moment("next_at"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    columns.text("problem", default=""),
    columns.count("sent_revision"),
    columns.moment("sent_at"),
    columns.moment("gave_up_at"),
    Column("sent_as", JSON, nullable=False, server_default="{}"),
    columns.text("told_of", default=""),
    columns.text("sent_event", default=""),
    columns.text("sent_told_of", default=""),
    CheckConstraint("event IN ('started', 'ended', 'resolved')", name="deliveries_event_check"),
)
"""The latest message to each receiver about each investigation (`operations.deliveries`).

- `event` is its newest event, at `revision` of the investigation; `since` is the time from which on it is not sent.
- `next_at` is the time of the next attempt; null if nothing is to be sent.
- `attempts` are those since the last success, and number them; `failures` are the failed ones of the present message.
- `problem` is that of the last failure since the last success; `gave_up_at` is the time when it was given up.
- `sent_as` names the message in the receiver, so that a later one changes it.
- `told_of` are the ended stages and the alerts that a receiver of updates hears of; "" for any other receiver.
- `sent_event` and `sent_told_of` are those of the last message that was sent.
"""
Index("deliveries_due", deliveries.c.receiver, deliveries.c.next_at, postgresql_where=deliveries.c.next_at.is_not(None))

budget_messages = Table(
    "budget_messages",
    metadata,
    columns.text("budget", primary_key=True),
    columns.text("unit", primary_key=True),
    columns.text("subject", primary_key=True),
    columns.text("period", primary_key=True),
    columns.text("receiver", primary_key=True),
    Column("threshold", Integer, nullable=False),
    columns.moment("since", default=True),
    columns.moment("next_at"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    columns.text("problem", default=""),
)
"""The latest message to each receiver about each ledger (`operations.budget_messages`)."""
Index(
    "budget_messages_due",
    budget_messages.c.receiver,
    budget_messages.c.next_at,
    postgresql_where=budget_messages.c.next_at.is_not(None),
)

delivery_positions = Table(
    "delivery_positions",
    metadata,
    columns.text("name", primary_key=True),
    Column("changed", BigInteger, nullable=False),
)
"""The transaction number from which on changes of investigations are to be read for `deliveries`; one row."""

unserved = Table(
    "unserved",
    metadata,
    columns.text("alert_type", primary_key=True),
    Column("hour", DateTime(timezone=True), primary_key=True),
    Column("alerts", BigInteger, nullable=False),
    Column("last_at", DateTime(timezone=True), nullable=False),
)
"""The same without the namespace, as builds before the migration `deletions` count them."""

for table in fleet_tables.metadata.tables.values():
    table.to_metadata(metadata)
