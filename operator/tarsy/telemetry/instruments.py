"""Instruments of metrics: counters, histograms and gauges whose labels are bounded, and their text for Prometheus.

A label has LABEL_VALUES_MAX different values at most. Each further value becomes OTHER, so that hostile or mistaken
names cannot fill the memory of this process and of Prometheus.

Gauges that describe the database are the same for all replicas. Only the replica that holds a lease exports them, and
only until the lease ends (`LeasedGauge`). So the sum over all replicas is right.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import prometheus_client
from prometheus_client import exposition, metrics_core
from prometheus_client import registry as registries

LABEL_VALUES_MAX = 200
VALUE_MAX = 128
"""Characters of a label's value."""
OTHER = "other"
"""The value of a label that has LABEL_VALUES_MAX other values already."""

T = TypeVar("T", prometheus_client.Counter, prometheus_client.Histogram, prometheus_client.Gauge)

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # a time for each series would double their number


class _Bounds:
    """The known values of the labels of one metric."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._known: tuple[set[str], ...] = tuple(set() for _ in labels)
        self._lock = threading.Lock()

    def bound(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return `values`, with OTHER for each one that is too many."""
        with self._lock:
            return tuple(self._bound(seen, value) for seen, value in zip(self._known, values, strict=True))

    @staticmethod
    def _bound(seen: set[str], value: str) -> str:
        value = value[:VALUE_MAX].encode("utf-8", "replace").decode()
        if value not in seen:
            if len(seen) >= LABEL_VALUES_MAX:
                return OTHER
            seen.add(value)
        return value


class Metric:
    """A metric of the table (`telemetry.metrics`)."""

    kind: ClassVar[str]

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        """`name` is the full name in the exposition; `text` says what it is."""
        self.name = name
        self.text = text
        self.labels = tuple(labels)


class _Registered(Metric, Generic[T]):
    """A metric of the registry."""

    def __init__(self, name: str, text: str, labels: Sequence[str], metric: T) -> None:
        super().__init__(name, text, labels)
        self._metric: T = metric
        self._bounds = _Bounds(labels)
        self._children: dict[tuple[str, ...], T] = {} if labels else {(): metric}

    def _child(self, values: tuple[str, ...]) -> T:
        child = self._children.get(values)
        if child is None:
            bounded = self._bounds.bound(values)
            child = self._metric.labels(*bounded)
            if bounded == values:  # a value that became OTHER is not kept: there may be any number of them
                self._children[values] = child
        return child

    def declare(self, *values: str) -> None:
        """Export these labels from now on. A rate can be computed only from the second value of a series."""
        self._child(values)


class Counter(_Registered[prometheus_client.Counter]):
    """A number that only rises, until the process ends."""

    kind = "counter"

    def __init__(self, registry: registries.CollectorRegistry, name: str, text: str, *labels: str) -> None:
        metric = prometheus_client.Counter(name, text, labels, registry=registry)
        super().__init__(name, text, labels, metric)

    def add(self, *values: str, amount: float = 1) -> None:
        """Add `amount` for these values of the labels, in their order."""
        self._child(values).inc(amount)


class Histogram(_Registered[prometheus_client.Histogram]):
    """A distribution of observed numbers."""

    kind = "histogram"

    def __init__(
        self, registry: registries.CollectorRegistry, name: str, text: str, *labels: str, buckets: Sequence[float]
    ) -> None:
        metric = prometheus_client.Histogram(name, text, labels, registry=registry, buckets=buckets)
        super().__init__(name, text, labels, metric)

    def observe(self, amount: float, *values: str) -> None:
        """Count `amount` for these values of the labels, in their order."""
        self._child(values).observe(amount)


class Gauge(_Registered[prometheus_client.Gauge]):
    """A number of this process that rises and falls."""

    kind = "gauge"

    def __init__(self, registry: registries.CollectorRegistry, name: str, text: str, *labels: str) -> None:
        metric = prometheus_client.Gauge(name, text, labels, registry=registry)
        super().__init__(name, text, labels, metric)

    def add(self, *values: str, amount: float = 1) -> None:
        """Add `amount`, which may be negative, for these values of the labels."""
        self._child(values).inc(amount)

    def set(self, amount: float, *values: str) -> None:
        """Set the number for these values of the labels."""
        self._child(values).set(amount)

    def replace(self, amounts: Mapping[tuple[str, ...], float]) -> None:
        """Set the numbers of all series; those that `amounts` lacks end."""
        self._metric.clear()
        self._children.clear()
        self._bounds = _Bounds(self.labels)
        for values, amount in amounts.items():
            self.set(amount, *values)


Amounts = Mapping[tuple[str, ...], float]
"""The numbers of a gauge by the values of its labels, in their order."""


class LeasedGauge(Metric):
    """A number that describes the database, and that only the holder of a lease exports."""

    kind = "gauge"


class LeasedGauges:
    """The gauges of one lease: they are exported until it ends."""

    def __init__(self, registry: registries.CollectorRegistry, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._amounts: Mapping[LeasedGauge, Amounts] = {}
        self._until = 0.0
        registry.register(self)

    def publish(self, amounts: Mapping[LeasedGauge, Amounts], *, until: float) -> None:
        """Export these numbers until the monotonic time `until`."""
        self._amounts, self._until = amounts, until

    def extend(self, until: float) -> None:
        """Export the same numbers until the monotonic time `until`, because the lease was renewed."""
        self._until = until

    def end(self) -> None:
        """Export no numbers from now on."""
        self._amounts, self._until = {}, 0.0

    def collect(self) -> Iterator[metrics_core.Metric]:
        """Yield the numbers, if the lease has not ended. The registry calls it for each scrape."""
        amounts, until = self._amounts, self._until
        if self._clock() >= until:
            return
        for gauge, rows in amounts.items():
            family = metrics_core.GaugeMetricFamily(gauge.name, gauge.text, labels=gauge.labels)
            bounds, summed = _Bounds(gauge.labels), dict[tuple[str, ...], float]()
            for values, amount in rows.items():
                bounded = bounds.bound(values)
                summed[bounded] = summed.get(bounded, 0.0) + amount
            for values, amount in summed.items():
                family.add_metric(values, amount)
            yield family

    def describe(self) -> Iterable[metrics_core.Metric]:
        """Return nothing: the registry would otherwise collect to learn the names."""
        return ()


def registry() -> registries.CollectorRegistry:
    """Return a registry with the facts of this process and of its Python: memory, processor time, collections."""
    made = registries.CollectorRegistry(auto_describe=True)
    prometheus_client.ProcessCollector(registry=made)
    prometheus_client.PlatformCollector(registry=made)
    prometheus_client.GCCollector(registry=made)
    return made


def render(collected: registries.CollectorRegistry, *, accept: str) -> tuple[bytes, str]:
    """Return all metrics as text, and its media type: Prometheus' format, or OpenMetrics if `accept` asks for it."""
    encode, media_type = exposition.choose_encoder(accept)
    return encode(collected), media_type
