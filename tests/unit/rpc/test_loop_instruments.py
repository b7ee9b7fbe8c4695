"""Instruments of the event loop show what the client library's own ones show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from stratos.rpc.instruments import MetricRow, counter, histogram, loop_counter, loop_histogram
from tests.support.observed.metric_declarations import declared_metrics

BOUNDS = (0.01, 0.1, 1.0)
Amounts = list[tuple[str, float]]
LIBRARY = counter("tokens", "text", "tenant"), histogram("gaps", "text", "tenant", buckets=BOUNDS)
LOOP = loop_counter("tokens", "text", "tenant"), loop_histogram("gaps", "text", "tenant", buckets=BOUNDS)
amounts = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 0.01, 0.0625, 0.1, 1.0, 2.0, 500.0])))


def shown(rows: tuple[MetricRow[Any], MetricRow[Any]], noted: Amounts) -> Iterator[bytes]:
    registry = CollectorRegistry()
    tokens, gaps = (row.open(registry) for row in rows)
    gaps.labels("never")
    for tenant, amount in noted:
        tokens.labels(tenant).inc(amount)
        gaps.labels(tenant).observe(amount)
    return (line for line in generate_latest(registry).splitlines() if b"_created" not in line)


@given(amounts)
def test_series_are_those_of_the_library(noted: Amounts) -> None:
    assert list(shown(LOOP, noted)) == list(shown(LIBRARY, noted))


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 3))))
def test_many_amounts_are_counted_as_one_by_one(noted: list[float]) -> None:
    found = []
    for is_together in (False, True):
        registry = CollectorRegistry()
        gaps = LOOP[1].open(registry).labels("a")
        for amounts in [sorted(noted)] if is_together else [[amount] for amount in sorted(noted)]:
            gaps.observe_sorted(amounts) if is_together else gaps.observe(amounts[0])
        found.append(
            [line for line in generate_latest(registry).splitlines() if b"_bucket" in line or b"_count" in line]
        )
    assert found[0] == found[1]


def test_they_are_counters_and_histograms_to_whoever_reads_the_table() -> None:
    assert [row.type_name for row in LOOP] == ["counter", "histogram"]
    types = {declared.name: declared.type for declared in declared_metrics()}
    assert types["stratos_output_tokens_total"] == "counter"
    assert types["stratos_request_itl_seconds"] == "histogram"
