"""Plain numbers under names and labels: what one process counted, what it sends to another, and the text that scrapers read.

A snapshot is these numbers as bytes. Counters and histograms of several processes add up; so do the gauges of worker processes, and of every
other gauge the largest is told. Each family stands in the text once, whoever its numbers come from.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from taskmill.clock import SECOND
from taskmill.telemetry.table import METRICS, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

__all__ = ["MOST_NAMES", "OTHERS", "Histogram", "Labels", "Names", "Sample", "Samples"]

MOST_NAMES = 1_000
OTHERS = "(others)"
"""The label of all names beyond the first thousand; no type or queue can be called so."""

Labels = tuple[str, ...]
Sample = tuple[str, Labels, float]
_BY_NAME = {metric.name: metric for metric in METRICS}


class Histogram:
    """Durations in buckets; the last has what is over every bound."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0

    def add(self, duration: int) -> None:
        self.buckets[bisect_left(self.bounds, duration)] += 1
        self.total += duration

    def merge(self, buckets: Sequence[int], total: int) -> None:
        self.buckets = [mine + more for mine, more in zip(self.buckets, buckets, strict=True)]
        self.total += total

    def cumulative(self) -> list[tuple[str, float]]:
        """Each bound in seconds with how many were not above it, as scrapers want it."""
        bounds = [*(repr(bound / SECOND) for bound in self.bounds), "+Inf"]
        return [(bound, float(sum(self.buckets[: index + 1]))) for index, bound in enumerate(bounds)]


class Names:
    """The first thousand names are themselves, all later ones `(others)`."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._known:
            if len(self._known) >= self._most:
                return OTHERS
            self._known.add(name)
        return name


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True):
    """Samples on their way to another process."""

    counters: list[tuple[str, Labels, int]] = []
    histograms: list[tuple[str, Labels, list[int], int]] = []
    gauges: list[tuple[str, Labels, float]] = []


class Samples:
    """Numbers by metric and labels."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[Labels, int]] = {metric.name: {} for metric in METRICS if metric.kind == "counter"}
        self.histograms: dict[str, dict[Labels, Histogram]] = {metric.name: {} for metric in METRICS if metric.kind == "histogram"}
        self.gauges: dict[str, dict[Labels, float]] = {metric.name: {} for metric in METRICS if metric.kind == "gauge"}

    def count(self, name: str, labels: Labels = (), times: int = 1) -> None:
        values = self.counters[name]
        values[labels] = values.get(labels, 0) + times

    def histogram(self, name: str, labels: Labels) -> Histogram:
        series = self.histograms[name]
        found = series.get(labels)
        if found is None:
            found = series[labels] = Histogram(_BY_NAME[name].bounds)
        return found

    def gauge(self, name: str, labels: Labels, value: float) -> None:
        values = self.gauges[name]
        before = values.get(labels, 0.0)
        values[labels] = before + value if name.startswith("taskqueue_worker_") else max(before, float(value))

    def encoded(self) -> bytes:
        """A snapshot; what is 0 is left out of it."""
        return msgspec.json.encode(
            Snapshot(
                counters=[(name, labels, value) for name, values in self.counters.items() for labels, value in list(values.items()) if value],
                histograms=[(name, labels, one.buckets, one.total) for name, series in self.histograms.items() for labels, one in list(series.items())],
                gauges=[(name, labels, value) for name, values in self.gauges.items() for labels, value in list(values.items())],
            )
        )

    def add(self, snapshot: bytes, bounded: Callable[[Metric, Labels], Labels]) -> None:
        """What another process counted. One of another version may know other metrics, or other buckets: those are left out."""
        other = msgspec.json.decode(snapshot, type=Snapshot)
        for name, labels, times in other.counters:
            if name in self.counters:
                self.count(name, bounded(_BY_NAME[name], labels), times)
        for name, labels, buckets, total in other.histograms:
            if name in self.histograms and len(buckets) == len(_BY_NAME[name].bounds) + 1:
                self.histogram(name, bounded(_BY_NAME[name], labels)).merge(buckets, total)
        for name, labels, value in other.gauges:
            if name in self.gauges:
                self.gauge(name, bounded(_BY_NAME[name], labels), value)

    def text(self) -> bytes:
        """As the text format of Prometheus has it."""
        from prometheus_client import generate_latest

        return generate_latest(cast("Any", self))

    def collect(self) -> Iterator[Family]:
        """For the writer of the text: the families of the table that have values."""
        for metric in METRICS:
            family = self._family(metric)
            if family.samples:
                yield family

    def _family(self, metric: Metric) -> Family:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        if metric.kind == "histogram":
            histogram = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, one in list(self.histograms[metric.name].items()):
                histogram.add_metric(labels, one.cumulative(), one.total / SECOND)
            return histogram
        counter = metric.kind == "counter"
        plain = (CounterMetricFamily if counter else GaugeMetricFamily)(metric.name, metric.meaning, labels=metric.labels)
        values = self.counters[metric.name] if counter else self.gauges[metric.name]
        if counter and not metric.labels:
            values = {(): 0} | values  # a counter that never counted is 0; without it a first increase would not be seen
        for labels, value in list(values.items()):
            plain.add_metric(labels, value)
        return plain
