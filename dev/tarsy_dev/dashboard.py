"""The Grafana dashboard of the chart, generated from the table of its panels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tarsy_dev import tools

FILE = tools.ROOT / "helm" / "tarsy" / "files" / "dashboard.json"
_COLUMNS, _WIDTH, _HEIGHT = 3, 8, 7
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_OF = 'namespace=~"$namespace"'


@dataclass(frozen=True)
class Panel:
    """A graph over time; each of its queries has a legend."""

    title: str
    unit: str
    """Of Grafana."""
    queries: tuple[tuple[str, str], ...]


def _rate(metric: str, by: str, where: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{_OF}{where}}}[$__rate_interval]))"


def _quantile(metric: str, by: str = "") -> str:
    groups = f"le, {by}" if by else "le"
    return f"histogram_quantile(0.95, sum by ({groups}) (rate({metric}_bucket{{{_OF}}}[$__rate_interval])))"


PANELS = (
    Panel(
        "Investigations by phase",
        "short",
        ((f"sum by (phase) (tarsy_investigations{{{_OF}}})", "{{phase}}"),),
    ),
    Panel("Queue length by chain", "short", ((f"sum by (chain) (tarsy_queue_length{{{_OF}}})", "{{chain}}"),)),
    Panel("Longest wait in the queue", "s", ((f"max(tarsy_queue_oldest_seconds{{{_OF}}})", "oldest"),)),
    Panel(
        "From alert to first model call, 95 %",
        "s",
        ((_quantile("tarsy_alert_to_first_model_call_seconds"), "first model call"),),
    ),
    Panel("Investigations, 95 %", "s", ((_quantile("tarsy_investigation_seconds", "chain"), "{{chain}}"),)),
    Panel(
        "Ends by chain",
        "ops",
        ((_rate("tarsy_investigation_seconds_count", "chain, ending"), "{{chain}} {{ending}}"),),
    ),
    Panel(
        "Model calls",
        "ops",
        ((_rate("tarsy_model_calls_total", "provider, outcome"), "{{provider}} {{outcome}}"),),
    ),
    Panel(
        "Model calls, 95 %",
        "s",
        ((_quantile("tarsy_model_call_seconds", "provider, model"), "{{provider}} {{model}}"),),
    ),
    Panel(
        "Failed requests and retries",
        "ops",
        (
            (_rate("tarsy_model_request_errors_total", "provider, code"), "{{provider}} {{code}}"),
            (_rate("tarsy_model_retries_total", "provider"), "{{provider}} retries"),
            (_rate("tarsy_model_fallbacks_total", "provider, fallback"), "{{provider}} to {{fallback}}"),
        ),
    ),
    Panel("Tokens", "short", ((_rate("tarsy_model_tokens_total", "provider, kind"), "{{provider}} {{kind}}"),)),
    Panel(
        "Cost in an hour",
        "short",
        ((f"sum by (provider, model) (increase(tarsy_model_cost_total{{{_OF}}}[1h]))", "{{provider}} {{model}}"),),
    ),
    Panel(
        "Waits for slots and for limits, 95 %",
        "s",
        (
            (_quantile("tarsy_model_slot_wait_seconds", "provider"), "{{provider}} slot"),
            (_quantile("tarsy_model_rate_limit_wait_seconds", "provider"), "{{provider}} limit"),
            (_quantile("tarsy_tool_slot_wait_seconds", "server"), "{{server}} slot"),
        ),
    ),
    Panel("Tool calls", "ops", ((_rate("tarsy_tool_calls_total", "server, outcome"), "{{server}} {{outcome}}"),)),
    Panel("Tool calls, 95 %", "s", ((_quantile("tarsy_tool_call_seconds", "server"), "{{server}}"),)),
    Panel(
        "MCP servers and pins",
        "short",
        (
            (f"max by (server) (tarsy_mcp_server_up{{{_OF}}})", "{{server}} up"),
            (f"max by (server) (tarsy_mcp_tools_drifted{{{_OF}}})", "{{server}} changed tools"),
        ),
    ),
    Panel(
        "Webhook answers and alerts",
        "ops",
        (
            (_rate("tarsy_webhook_answers_total", "code"), "{{code}}"),
            (_rate("tarsy_webhook_alerts_total", "outcome"), "{{outcome}}"),
        ),
    ),
    Panel(
        "Age of statuses and of the watch",
        "s",
        (
            (f"max(tarsy_status_oldest_unwritten_seconds{{{_OF}}})", "status"),
            (f"max(tarsy_watch_closed_seconds{{{_OF}}})", "watch"),
        ),
    ),
    Panel(
        "Claims, takeovers, lost leases",
        "ops",
        (
            (_rate("tarsy_claims_total", "namespace"), "claims"),
            (_rate("tarsy_takeovers_total", "namespace"), "takeovers"),
            (_rate("tarsy_leases_lost_total", "namespace"), "lost leases"),
        ),
    ),
    Panel(
        "Database: statements, waits, errors",
        "s",
        (
            (_quantile("tarsy_database_seconds", "pool"), "{{pool}}"),
            (_quantile("tarsy_database_connection_wait_seconds", "pool"), "{{pool}} wait"),
        ),
    ),
    Panel("Tables", "bytes", ((f"sum by (table) (tarsy_table_bytes{{{_OF}}})", "{{table}}"),)),
    Panel(
        "Masked secrets and withheld texts",
        "ops",
        (
            (_rate("tarsy_masked_secrets_total", "namespace"), "masked"),
            (_rate("tarsy_masking_withheld_total", "reason"), "withheld: {{reason}}"),
        ),
    ),
    Panel(
        "Feedback of 30 days",
        "short",
        ((f"sum by (chain, verdict) (tarsy_feedback{{{_OF}}})", "{{chain}} {{verdict}}"),),
    ),
    Panel("Live subscribers", "short", ((f"sum(tarsy_live_subscribers{{{_OF}}})", "subscribers"),)),
    Panel(
        "Memory of processes",
        "bytes",
        ((f"process_resident_memory_bytes{{{_OF}}} and on (instance) tarsy_build_info", "{{instance}}"),),
    ),
    Panel(
        "Processor of processes",
        "percentunit",
        (
            (
                f"rate(process_cpu_seconds_total{{{_OF}}}[$__rate_interval]) and on (instance) tarsy_build_info",
                "{{instance}}",
            ),
        ),
    ),
)


def pages() -> dict[Any, str]:
    """Return the file and its text."""
    return {FILE: json.dumps(_dashboard(), indent=1) + "\n"}


def _dashboard() -> dict[str, Any]:
    return {
        "title": "TARSy",
        "uid": "tarsy",
        "schemaVersion": 39,
        "tags": ["tarsy"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus"}
    yield {
        "name": "namespace",
        "type": "query",
        "datasource": _DATASOURCE,
        "query": "label_values(tarsy_build_info, namespace)",
        "refresh": 2,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, _COLUMNS)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _DATASOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + index), "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }
