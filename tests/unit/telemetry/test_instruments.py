"""Instruments: labels are bounded whatever names come, and gauges of a lease end with it."""

from __future__ import annotations

import re

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import scrapes
from tarsy.telemetry import instruments, metrics

COUNTED = re.compile(r"tarsy_[a-z0-9_]+")


@pytest.fixture
def registry() -> prometheus_client.CollectorRegistry:
    return prometheus_client.CollectorRegistry()


def rendered(registry: prometheus_client.CollectorRegistry) -> str:
    text, _ = instruments.render(registry, accept="")
    return text.decode()


def test_ten_thousand_names_make_201_series(registry: prometheus_client.CollectorRegistry) -> None:
    calls = instruments.Counter(registry, "tarsy_calls_total", "Calls.", "tool")
    seconds = instruments.Histogram(registry, "tarsy_call_seconds", "Time.", "tool", buckets=(1,))
    for number in range(10_000):
        calls.add(f"tool-{number}")
        seconds.observe(0.5, f"tool-{number}")
    text = rendered(registry)
    assert len(list(scrapes.samples(text, "tarsy_calls_total"))) == instruments.LABEL_VALUES_MAX + 1
    assert scrapes.total(text, "tarsy_calls_total") == 10_000
    assert scrapes.total(text, "tarsy_calls_total", tool="other") == 9_800
    assert scrapes.total(text, "tarsy_call_seconds_count", tool="other") == 9_800
    assert len(calls._children) == instruments.LABEL_VALUES_MAX, "memory is bounded too"


def test_a_label_is_bounded_by_itself(registry: prometheus_client.CollectorRegistry) -> None:
    calls = instruments.Counter(registry, "tarsy_calls_total", "Calls.", "server", "tool")
    for number in range(300):
        calls.add("one", f"tool-{number}")
    calls.add("two", "tool-0")
    text = rendered(registry)
    assert scrapes.total(text, "tarsy_calls_total", server="two", tool="tool-0") == 1
    assert scrapes.total(text, "tarsy_calls_total", server="one", tool="other") == 100


@given(st.lists(st.text(), min_size=1, max_size=30))
def test_any_text_can_be_a_value(values: list[str]) -> None:
    registry = prometheus_client.CollectorRegistry()
    calls = instruments.Counter(registry, "tarsy_calls_total", "Calls.", "tool")
    for value in values:
        calls.add(value)
    assert scrapes.total(rendered(registry), "tarsy_calls_total") == len(values)


def test_a_surrogate_and_a_long_text_are_values_too(registry: prometheus_client.CollectorRegistry) -> None:
    calls = instruments.Counter(registry, "tarsy_calls_total", "Calls.", "tool")
    calls.add("\ud800")
    calls.add("x" * 10_000)
    assert scrapes.total(rendered(registry), "tarsy_calls_total", tool="x" * instruments.VALUE_MAX) == 1


def test_replaced_gauges_lose_the_series_that_are_gone(registry: prometheus_client.CollectorRegistry) -> None:
    up = instruments.Gauge(registry, "tarsy_up", "Up.", "server")
    up.replace({("a",): 1, ("b",): 0})
    up.replace({("b",): 1})
    text = rendered(registry)
    assert (scrapes.total(text, "tarsy_up", server="a"), scrapes.total(text, "tarsy_up", server="b")) == (None, 1)


def test_gauges_of_a_lease_end_when_lease_expires_without_notice(registry: prometheus_client.CollectorRegistry) -> None:
    now = 100.0
    leased = instruments.LeasedGauges(registry, clock=lambda: now)
    length = instruments.LeasedGauge("tarsy_queue_length", "Waiting.", ("chain",))
    assert rendered(registry) == ""
    leased.publish({length: {("a",): 3}}, until=115.0)
    now = 114.9
    assert scrapes.total(rendered(registry), "tarsy_queue_length", chain="a") == 3
    now = 115.0
    assert rendered(registry) == ""
    leased.extend(130.0)
    assert scrapes.total(rendered(registry), "tarsy_queue_length") == 3
    leased.end()
    assert rendered(registry) == ""
    leased.extend(200.0)
    assert rendered(registry) == "", "a renewed lease does not bring back old numbers"


def test_gauges_of_a_lease_are_bounded_and_keep_their_sum(registry: prometheus_client.CollectorRegistry) -> None:
    leased = instruments.LeasedGauges(registry, clock=lambda: 0.0)
    length = instruments.LeasedGauge("tarsy_queue_length", "Waiting.", ("chain",))
    leased.publish({length: {(f"chain-{number}",): 1 for number in range(10_000)}}, until=1.0)
    text = rendered(registry)
    assert len(list(scrapes.samples(text, "tarsy_queue_length"))) == instruments.LABEL_VALUES_MAX + 1
    assert scrapes.total(text, "tarsy_queue_length") == 10_000


@pytest.mark.parametrize("metric", list(metrics.all_metrics()), ids=lambda metric: metric.name)
def test_names_follow_prometheus(metric: instruments.Metric) -> None:
    assert COUNTED.fullmatch(metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert metric.text.endswith(".")
    assert not {"alert", "alertname", "pod", "user", "author", "namespace"} & set(metric.labels)
