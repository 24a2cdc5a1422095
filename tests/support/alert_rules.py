"""The alerts about TARSy itself, judged by promtool over samples that were scraped from real operators."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import scrapes
from tarsy_dev import chart

RULES = chart.CHART / "files" / "rules.yaml"
STEP = 30
"""Seconds between two samples."""
BEFORE, AFTER = 60, 60
"""Samples of the state before a break, and after it: half an hour each."""
_AGES = ("tarsy_status_oldest_unwritten_seconds", "tarsy_queue_oldest_seconds")
"""Gauges that grow with time while nothing changes."""

Alert = tuple[str, frozenset[tuple[str, str]]]
"""A firing alert: its name, and its labels without severity and alert type."""


def alert(name: str, **labels: str) -> Alert:
    return name, frozenset(labels.items())


@dataclass(frozen=True)
class Scraped:
    """The metrics scraped of a process before a break and after it; "" if it was not there."""

    namespace: str
    before: str
    after: str


def _values(exposition: str, namespace: str) -> dict[str, float]:
    """The samples of TARSy's own metrics, by series, with the labels that a PodMonitor adds."""
    added = {"namespace": namespace, "pod": f"{namespace}-7c9d", "instance": "10.0.0.1:9464"}
    return {
        sample.name
        + "{"
        + ",".join(f"{key}={json.dumps(value)}" for key, value in (sample.labels | added).items())
        + "}": sample.value
        for family in scrapes.families(exposition)
        for sample in family.samples
        if family.name.startswith("tarsy_")
    }


def _series(scraped: Scraped) -> Iterator[dict[str, str]]:
    before, after = _values(scraped.before, scraped.namespace), _values(scraped.after, scraped.namespace)
    for name in sorted(before.keys() | after.keys()):
        parts: list[str] = []
        for values, count in ((before, BEFORE), (after, AFTER)):
            value = values.get(name)
            rise = STEP if value and name.startswith(_AGES) else 0
            gone = f"stale _x{count - 2}" if parts else f"_x{count - 1}"  # a scrape without a series ends it at once
            parts.append(gone if value is None else f"{str(value).replace('inf', 'Inf')}+{rise}x{count - 1}")
        yield {"series": name, "values": " ".join(parts)}


def judge(folder: Path, series: Iterable[Mapping[str, str]], expected: set[Alert], *, at: str) -> None:
    """Have promtool judge the rules over these series: exactly the `expected` alerts fire `at` that time."""
    samples = []
    for name, labels in expected:
        written = "".join(f",{key}={json.dumps(value)}" for key, value in sorted(labels))
        samples.append({"labels": f'{{alertname="{name}"{written}}}', "value": 1})
    groups = "alertname, namespace, provider, server, chain, code, budget, subject, receiver"
    expression = {
        "expr": f'group by ({groups}) (ALERTS{{alertstate="firing"}})',
        "eval_time": at,
        "exp_samples": samples,
    }
    test: dict[str, Any] = {"interval": f"{STEP}s", "input_series": list(series), "promql_expr_test": [expression]}
    path = folder / "alerts.json"
    document = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP}s", "tests": [test]}
    path.write_text(json.dumps(document))  # which is YAML too
    done = subprocess.run(
        [str(scrapes.PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def judge_scrapes(folder: Path, scraped: Iterable[Scraped], expected: set[Alert]) -> None:
    """Have promtool judge the rules eight minutes after the break: no alert takes longer, or lasts shorter."""
    series = [line for scrape in scraped for line in _series(scrape)]
    judge(folder, series, expected, at=f"{(BEFORE + 16) * STEP}s")
