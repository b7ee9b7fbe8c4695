"""Tables of metrics: a row says an instrument's name, help, labels and buckets, and one function makes it.

A class of metrics is its table::

    class AutoscalerMetrics(Instruments):
        is_active = gauge("stratos_autoscaler_active", "1 while this autoscaler holds the lease and acts")

``AutoscalerMetrics.is_active`` is the row, ``AutoscalerMetrics(registry).is_active`` the instrument.  A row
outside such a class is opened where it is shown.  The tests of docs/metrics.md, dashboards and alerts read the same
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, overload

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from stratos.rpc.loop_instruments import LoopCounter, LoopHistogram

InstrumentT = TypeVar("InstrumentT", Counter, Gauge, Histogram, LoopHistogram)
NO_VALUES: Mapping[tuple[str, ...], float] = {}


@dataclass(frozen=True, slots=True)
class MetricRow(Generic[InstrumentT]):
    """Declaration of one metric."""

    kind: type[InstrumentT]
    name: str
    """Without ``_total``, which the client library adds to a counter."""
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram."""
    zeros: tuple[tuple[str, ...], ...] = ()
    """Series shown from the start: a rate needs the zero before the first event."""

    @property
    def type_name(self) -> str:
        """Name of its kind to Prometheus."""
        return next(kind.__name__.lower() for kind in (Counter, Gauge, Histogram) if issubclass(self.kind, kind))

    def open(self, registry: CollectorRegistry) -> InstrumentT:
        """Make the instrument."""
        bounds: dict[str, Any] = {"buckets": self.buckets} if self.buckets else {}
        made = self.kind(self.name, self.text, self.labels, registry=registry, **bounds)
        for values in self.zeros:
            made.labels(*values)
        return made

    def family(self, values: Mapping[tuple[str, ...], float] = NO_VALUES) -> CounterMetricFamily | GaugeMetricFamily:
        """Values by their labels, for a collector that reads them at each scrape."""
        kind = CounterMetricFamily if issubclass(self.kind, Counter) else GaugeMetricFamily
        family: CounterMetricFamily | GaugeMetricFamily = kind(self.name, self.text, labels=self.labels)
        for labels, value in values.items():
            family.add_metric(labels, value)
        return family

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...

    @overload
    def __get__(self, owner: object, kind: type) -> InstrumentT: ...

    def __get__(self, owner: object | None, kind: type) -> Self | InstrumentT:
        """Return the row; an instance of ``Instruments`` holds the instrument itself under the row's name."""
        if owner is None:
            return self
        raise AttributeError(f"{self.name} is not open: {kind.__name__} did not call Instruments.__init__")


class Instruments:
    """A class of metrics, with a row for each.

    Args:
        registry: the instruments register there.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        for name, row in vars(type(self)).items():
            if isinstance(row, MetricRow):
                vars(self)[name] = row.open(registry)

    def end_series(self, label: str, value: str) -> None:
        """Show no series any more whose label has this value."""
        for name, row in vars(type(self)).items():
            if isinstance(row, MetricRow) and label in row.labels:
                vars(self)[name].remove_by_labels({label: value})


def gauge(name: str, text: str, *labels: str) -> MetricRow[Gauge]:
    """Declare a value that goes up and down."""
    return MetricRow(Gauge, name, text, labels)


def counter(name: str, text: str, *labels: str, zeros: Iterable[str | tuple[str, ...]] = ()) -> MetricRow[Counter]:
    """Declare a count of events; ``zeros`` are the label values that are shown before the first of them."""
    return MetricRow(Counter, name, text, labels, zeros=tuple((v,) if isinstance(v, str) else v for v in zeros))


def histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> MetricRow[Histogram]:
    """Declare a distribution over buckets with these upper bounds."""
    return MetricRow(Histogram, name, text, labels, buckets)


def loop_counter(name: str, text: str, *labels: str) -> MetricRow[Counter]:
    """Declare a count that the event loop alone raises, with every token."""
    return MetricRow(LoopCounter, name, text, labels)


def loop_histogram(name: str, text: str, *labels: str, buckets: tuple[float, ...]) -> MetricRow[LoopHistogram]:
    """Declare a distribution that the event loop alone observes, with every token."""
    return MetricRow(LoopHistogram, name, text, labels, buckets)


def rows_of(namespace: Mapping[str, Any]) -> Iterator[MetricRow[Any]]:
    """Rows that a module declares, by itself and in its classes."""
    for found in namespace.values():
        if isinstance(found, MetricRow):
            yield found
        elif isinstance(found, type) and issubclass(found, Instruments) and found.__module__ == namespace["__name__"]:
            yield from (row for row in vars(found).values() if isinstance(row, MetricRow))
