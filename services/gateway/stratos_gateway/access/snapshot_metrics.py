"""Metrics of the followed snapshot, read when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.registry import Collector

from stratos.rpc.instruments import counter, gauge
from stratos.store.records.followed_snapshot import SnapshotState
from stratos.store.records.follower import SnapshotFollower
from stratos.store.records.record import Kind

AGE = gauge("stratos_snapshot_age_seconds", "Time since the store confirmed all that is known.")
PAST_BOUND = gauge("stratos_snapshot_past_bound", "Whether that is more than the bound.")
STATE = gauge("stratos_snapshot_state", "1 for the state that holds.", "state")
RECORDS = gauge("stratos_snapshot_records", "Known records.")
MALFORMED = gauge("stratos_snapshot_malformed_records", "Skipped records.", "kind")
MISSING = gauge("stratos_snapshot_missing_records", "Known records that Redis lacks, or has in an older version.")
FULL_READS = counter("stratos_snapshot_full_reads", "Reads of everything.")


class SnapshotMetrics(Collector):
    """Distance of a gateway's snapshot from its store.

    Args:
        follower: keeps the snapshot.
    """

    def __init__(self, follower: SnapshotFollower) -> None:
        self._follower = follower

    def collect(self) -> Iterator[Metric]:
        """The families, as ``prometheus_client`` wants them; may run in another thread."""
        follower, snapshot = self._follower, self._follower.snapshot
        malformed = Counter(kind for kind, _ in list(snapshot.malformed))
        yield AGE.family({(): follower.age_s})
        yield PAST_BOUND.family({(): float(follower.is_past_bound)})
        yield STATE.family({(state.value,): float(state is snapshot.state) for state in SnapshotState})
        yield RECORDS.family({(): snapshot.num_records()})
        yield MALFORMED.family({(kind.value,): malformed[kind] for kind in Kind})
        yield MISSING.family({(): snapshot.num_missing})
        yield FULL_READS.family({(): follower.num_full_reads})
