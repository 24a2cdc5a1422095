"""The reference page of the metrics, generated from their table (`tarsy.telemetry.metrics`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tarsy.telemetry import instruments, metrics

from tarsy_dev import tools

PAGE = tools.ROOT / "docs" / "metrics.md"
_INTRODUCTION = f"""\
# Metrics

This page is for people who watch TARSy. `make generate` makes it from the code.

Each process serves its metrics at `/metrics`, for Prometheus and without a token, on an address of their own:
`tarsy operator --metrics-listen`. That is {metrics.DEFAULT_LISTEN} by default; in a pod of the chart it is the port
`metrics` ({metrics.PORT}). The metrics are there before the database is.

    kubectl -n tarsy port-forward deployment/tarsy {metrics.PORT} & sleep 1; curl http://127.0.0.1:{metrics.PORT}/metrics

- **Replicas add up**: each counts what it does itself. What the database knows (marked *duties* below) is read every
  15 s by the one replica that does the duties, and exported by it alone until its lease ends.
- **No label has the name of an alert, a pod or a user.** A label has {instruments.LABEL_VALUES_MAX} values at most in
  a process; further ones are counted as `{instruments.OTHER}`. A tool that a model made up is `{metrics.UNKNOWN}`.
- **Times are in seconds.** Histograms (`_bucket`, `_sum`, `_count`) count what has ended.
- `process_*` and `python_*` are the Prometheus client's own, of the process and its memory.

The chart brings a PodMonitor, alerts and a dashboard: [alerts](alerts/README.md).

"""
_LIMITS = """
## Limits

- A counter begins at 0 when its process starts, and the tokens of a call that is cancelled are not counted.
- `tarsy_investigations` counts ended ones for a day after their end, and only while their object exists.
- `investigation_namespace` (`namespace` is the label that Prometheus gives to the pod it scrapes) is a label of gauges
  of the database alone. Elsewhere, chains of the same name in several namespaces are one value of `chain`.
- A process without a controller exports 0 for `tarsy_watch_closed_seconds` and `tarsy_status_oldest_unwritten_seconds`.
"""


def pages() -> dict[Path, str]:
    """Return the page and its text."""
    return {PAGE: _INTRODUCTION + "\n".join(_table()) + "\n" + _LIMITS}


def _table() -> Iterator[str]:
    yield "| Metric | Type | Labels | Meaning |\n|---|---|---|---|"
    for metric in metrics.all_metrics():
        kind = f"{metric.kind}, *duties*" if isinstance(metric, instruments.LeasedGauge) else metric.kind
        labels = " ".join(f"`{label}`" for label in metric.labels)
        yield f"| `{metric.name}` | {kind} | {labels} | {metric.text} |"
