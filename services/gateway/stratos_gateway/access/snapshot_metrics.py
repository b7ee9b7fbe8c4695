"""Metrics of the followed snapshot, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind


class SnapshotMetrics(Collector):
    """How a gateway's snapshot stands to its store.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        """The families, as ``prometheus_client`` wants them; may run in another thread."""
        follower, snapshot = self._follower, self._follower.snapshot
        yield GaugeMetricFamily(
            "stratos_snapshot_age_seconds", "Time since the store confirmed all that is known.", value=follower.age_s
        )
        yield GaugeMetricFamily(
            "stratos_snapshot_past_bound", "Whether that is more than the bound.", value=float(follower.is_past_bound)
        )
        states = GaugeMetricFamily("stratos_snapshot_state", "1 for the state that holds.", labels=["state"])
        for state in SnapshotState:
            states.add_metric([state.value], float(state is snapshot.state))
        yield states
        yield GaugeMetricFamily("stratos_snapshot_records", "Known records.", value=snapshot.num_records())
        malformed = GaugeMetricFamily("stratos_snapshot_malformed_records", "Skipped records.", labels=["kind"])
        counts = Counter(kind for kind, _ in list(snapshot.malformed))
        for kind in Kind:
            malformed.add_metric([kind.value], counts[kind])
        yield malformed
        yield GaugeMetricFamily(
            "stratos_snapshot_missing_records", "Known records that Redis lacks.", value=snapshot.num_missing
        )
        yield CounterMetricFamily("stratos_snapshot_full_reads", "Reads of everything.", value=follower.num_full_reads)
