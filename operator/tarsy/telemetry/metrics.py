"""The table of all metrics: names, meanings, labels.

Names follow Prometheus: the prefix `tarsy_`, the unit at the end, `_total` for counters. Times are in seconds, sizes in
bytes. No label holds the name of an alert, a pod or a user. Names of providers, models, MCP servers, tools and chains
come from the platform file, from servers and from chains; each label is bounded (`telemetry.instruments`).

Modules of all rooms add to these metrics where things happen. `docs/metrics.md` is generated from this table.
"""

from __future__ import annotations

from collections.abc import Iterator

from tarsy.telemetry import instruments

REGISTRY = instruments.registry()

_FAST = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CALL = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_RUN = (1, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600)

PORT = 9464
"""The port of the metrics: that of the Prometheus exporters of OpenTelemetry, because 9090 is Prometheus' own."""
DEFAULT_LISTEN = f"127.0.0.1:{PORT}"
UNKNOWN = "unknown"
"""The value of a label whose name nobody configured, such as a tool that a model made up."""


def _counter(name: str, text: str, *labels: str) -> instruments.Counter:
    return instruments.Counter(REGISTRY, name, text, *labels)


def _histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> instruments.Histogram:
    return instruments.Histogram(REGISTRY, name, text, *labels, buckets=buckets)


def _gauge(name: str, text: str, *labels: str) -> instruments.Gauge:
    return instruments.Gauge(REGISTRY, name, text, *labels)


def _leased(name: str, text: str, *labels: str) -> instruments.LeasedGauge:
    return instruments.LeasedGauge(name, text, labels)


# The process.
BUILD_INFO = _gauge("tarsy_build_info", "1, with the version and the roles of the process.", "version", "roles")
PLATFORM_FILE_VALID = _gauge(
    "tarsy_platform_file_valid", "1 if the platform file is in force as it stands now, 0 if it has a problem."
)
RELOADS = _counter(
    "tarsy_platform_reloads_total",
    "Changed platform files: renewed (in force), invalid (refused), failed (valid, but not in force).",
    "outcome",
)

# What the database knows: exported by the holder of the duties' lease alone.
DUTIES = instruments.LeasedGauges(REGISTRY)
OF_NAMESPACE = "investigation_namespace"
"""The namespace of investigations; `namespace` is the label that Prometheus gives to the pod that it scrapes.

Counters and histograms have no such label: with their other labels and buckets they would be too many series for a
hundred namespaces.
"""
INVESTIGATIONS = _leased(
    "tarsy_investigations",
    "Open investigations, and those that ended within 24 hours and whose object exists, by phase, chain and reason.",
    "phase",
    OF_NAMESPACE,
    "chain",
    "reason",
)
QUEUE_LENGTH = _leased(
    "tarsy_queue_length", "Investigations and questions that wait for a worker.", OF_NAMESPACE, "chain"
)
QUEUE_OLDEST = _leased(
    "tarsy_queue_oldest_seconds",
    "Time that the longest waiting one has waited for a worker; 0 if none waits.",
    OF_NAMESPACE,
    "chain",
)
ATTEMPTS = _leased(
    "tarsy_attempts_without_progress",
    "The most claims in a row without a commit that an open investigation has; above 1, its workers end.",
    OF_NAMESPACE,
    "chain",
)
UNSERVED = _leased(
    "tarsy_alerts_unserved",
    "Alerts of the last day, repeats included, that no chain took, by the namespace that they were sent to.",
    OF_NAMESPACE,
)
FEEDBACK = _leased(
    "tarsy_feedback",
    "Verdicts of people, correct, partly or wrong, that were given or changed within 30 days, by the chain of the "
    "investigation and the provider of its final analysis.",
    "chain",
    "provider",
    "verdict",
)
TABLE_BYTES = _leased("tarsy_table_bytes", "Size of a table in the database, with indexes and large values.", "table")
BUDGET_USED = _leased(
    "tarsy_budget_used_ratio",
    "Part of a budget's limit that is spent or reserved in the present period, by calendar period.",
    "budget",
    "subject",
)
RETENTION_DUE = _leased(
    "tarsy_retention_due",
    "What retention is about to delete, also in a dry run: transcripts, purges, rows by kind; read each minute.",
    "kind",
)

# Investigations, by the workers that run them.
FIRST_MODEL_CALL = _histogram(
    "tarsy_alert_to_first_model_call_seconds",
    "Time from the admission of an investigation to its first model call.",
    buckets=_RUN,
)
INVESTIGATION_SECONDS = _histogram(
    "tarsy_investigation_seconds",
    "Time from the first claim of an investigation to its end by a worker, without suspensions.",
    "chain",
    "ending",
    buckets=_RUN,
)
STAGE_SECONDS = _histogram(
    "tarsy_stage_seconds", "Time of a stage, without suspensions.", "chain", "outcome", buckets=_RUN
)
ITERATION_SECONDS = _histogram(
    "tarsy_iteration_seconds", "Time of an iteration: a model call and the tool calls of its answer.", buckets=_CALL
)
CLAIMS = _counter("tarsy_claims_total", "Investigations and questions that workers claimed.")
TAKEOVERS = _counter("tarsy_takeovers_total", "Claims of investigations whose former worker had lost its lease.")
LEASES_LOST = _counter("tarsy_leases_lost_total", "Runs that stopped because another worker held their investigation.")
HEARTBEATS_FAILED = _counter("tarsy_heartbeats_failed_total", "Heartbeats that did not reach the database.")

# Models.
MODEL_OUTCOMES = ("answered", "timeout", "rejected", "fatal", "cancelled")
MODEL_CALLS = _counter(
    "tarsy_model_calls_total",
    "Model calls that ended, retries included: answered, timeout, rejected (by the provider), fatal, cancelled.",
    "provider",
    "model",
    "chain",
    "outcome",
)
MODEL_CALL_SECONDS = _histogram(
    "tarsy_model_call_seconds", "Time of a model call, retries and waits included.", "provider", "model", buckets=_CALL
)
MODEL_ERRORS = _counter(
    "tarsy_model_request_errors_total",
    "Failed requests to a provider, by HTTP status, or one of empty, context_overflow and other.",
    "provider",
    "model",
    "code",
)
MODEL_RETRIES = _counter("tarsy_model_retries_total", "Requests that were sent again.", "provider", "model")
MODEL_TOKENS = _counter("tarsy_model_tokens_total", "Tokens: input, output, thinking.", "provider", "model", "kind")
MODEL_COST = _counter("tarsy_model_cost_total", "Cost, in the currency of the provider's `price`.", "provider", "model")
MODEL_FALLBACKS = _counter(
    "tarsy_model_fallbacks_total",
    "Executions that left a provider for its fallback.",
    "provider",
    "model",
    "fallback",
)
RECHECKS = _counter(
    "tarsy_rechecks_total",
    "Investigations of which the calls of the last one were made again: unchanged, changed (and investigated).",
    "outcome",
)
MODEL_SLOT_WAIT = _histogram(
    "tarsy_model_slot_wait_seconds",
    "Time that requests waited for a slot of their provider.",
    "provider",
    buckets=_CALL,
)
MODEL_RATE_WAIT = _histogram(
    "tarsy_model_rate_limit_wait_seconds",
    "Time that requests waited for the limits a minute of their provider.",
    "provider",
    buckets=_CALL,
)
PROVIDER_UP = _gauge(
    "tarsy_provider_up",
    "1 if the last call of this process was answered, or none was made; 0 if it failed.",
    "provider",
)

# Tools.
TOOL_CALLS = _counter(
    "tarsy_tool_calls_total",
    "Tool calls: answered, failed, away (the MCP server could not be reached), cancelled.",
    "server",
    "tool",
    "outcome",
)
TOOL_CALL_SECONDS = _histogram(
    "tarsy_tool_call_seconds", "Time of a tool call, waits included.", "server", "tool", buckets=_CALL
)
TOOL_SLOT_WAIT = _histogram(
    "tarsy_tool_slot_wait_seconds", "Time that tool calls waited for a slot of their server.", "server", buckets=_CALL
)
SERVER_UP = _gauge("tarsy_mcp_server_up", "1 if this process is connected to the MCP server, else 0.", "server")
TOOLS_DRIFTED = _gauge(
    "tarsy_mcp_tools_drifted", "Tools of an MCP server that differ from their pins and are not called.", "server"
)

# Masking.
MASKED = _counter("tarsy_masked_secrets_total", "Secrets that were replaced in texts.")
WITHHELD = _counter(
    "tarsy_masking_withheld_total",
    "Texts that were withheld whole: budget (too much work), error (a defect).",
    "reason",
)

# The cluster.
STATUS_AGE = _gauge(
    "tarsy_status_oldest_unwritten_seconds",
    "Time since when the status that is longest out of date in the cluster has not been written; 0 if none is.",
)
STATUSES_REFUSED = _counter(
    "tarsy_statuses_refused_total", "Statuses that the API server refused; each is a defect of TARSy."
)
DELIVERIES = _counter(
    "tarsy_deliveries_total",
    "Attempts to send a message to a receiver of `deliveries`: sent, failed; and messages that were given_up.",
    "receiver",
    "outcome",
)
WATCH_CLOSED = _gauge(
    "tarsy_watch_closed_seconds", "Time since when a kind is not watched; 0 while all are; +Inf before the first watch."
)

# The API.
WEBHOOK_ANSWERS = _counter(
    "tarsy_webhook_answers_total", "Answers to webhooks: alertmanager, grafana, unknown.", "format", "code"
)
WEBHOOKS_REFUSED = _counter(
    "tarsy_webhook_refused_total", "Notifications that were answered 503 because others were being taken."
)
WEBHOOK_ALERTS = _counter(
    "tarsy_webhook_alerts_total",
    "Alerts of notifications: created, joined (to a group), repeated, resolved, ignored,"
    " waiting (refused, because a limit was reached).",
    "outcome",
)
ALERT_OWNERS = _counter(
    "tarsy_alert_owners_total",
    "Alerts of chains that group by owner: found, unnamed (by their labels), elsewhere (of another cluster), absent,"
    " forbidden, unavailable; all but found are investigated alone.",
    "outcome",
)
LIVE_SUBSCRIBERS = _gauge("tarsy_live_subscribers", "Open WebSockets and event streams.")

# The database.
DATABASE_UP = _gauge("tarsy_database_up", "1 if this process reached the database lately, else 0.")
DATABASE_CONNECTIONS = _gauge(
    "tarsy_database_connections_in_use", "Connections in use: statements, transactions.", "pool"
)
DATABASE_WAIT = _histogram(
    "tarsy_database_connection_wait_seconds", "Time until a connection was free or open.", "pool", buckets=_FAST
)
DATABASE_SECONDS = _histogram(
    "tarsy_database_seconds", "Time of a statement, or of a transaction, with a connection.", "pool", buckets=_FAST
)
DATABASE_ERRORS = _counter(
    "tarsy_database_errors_total", "Statements and transactions that failed because the database was unavailable."
)


def all_metrics() -> Iterator[instruments.Metric]:
    """Yield the metrics, in the order of this module."""
    yield from (value for value in globals().values() if isinstance(value, instruments.Metric))


def render(accept: str) -> tuple[bytes, str]:
    """Return all metrics of this process as text, and its media type; see `instruments.render`."""
    return instruments.render(REGISTRY, accept=accept)
