"""The latest decisions, for ``stratos autoscaler explain``: the same one again and again is one entry with a count."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from stratos.planning.observation import PoolObservation
from stratos.planning.planner import PlanningDecision
from stratos.planning.settings import PoolKey, ScalingMode

MAX_ENTRIES = 1000


@dataclass(slots=True, kw_only=True)
class HistoryEntry:
    """Decisions in a row that differ in nothing but their inputs."""

    key: PoolKey
    mode: ScalingMode
    decision: PlanningDecision
    """The last of them."""
    seen: PoolObservation | None
    first_s: float
    last_s: float
    """Monotonic."""
    num_times: int = 1


class History:
    """A ring, and the last entry of each pool; time is an argument."""

    def __init__(self) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=MAX_ENTRIES)
        self._open: dict[PoolKey, HistoryEntry] = {}

    def add_decision(
        self, key: PoolKey, mode: ScalingMode, decision: PlanningDecision, seen: PoolObservation | None, now: float
    ) -> None:
        """A decision was taken."""
        last = self._open.get(key)
        if last is not None and _is_same(last.decision, decision):
            last.decision, last.seen, last.last_s = decision, seen, now
            last.num_times += 1
            return
        entry = HistoryEntry(key=key, mode=mode, decision=decision, seen=seen, first_s=now, last_s=now)
        self._entries.append(entry)
        self._open[key] = entry

    def keep_open(self, keys: Collection[PoolKey]) -> None:
        """Forget what holds of other pools: they are gone."""
        self._open = {key: entry for key, entry in self._open.items() if key in keys}

    def entries(self, most: int = 0) -> list[HistoryEntry]:
        """The newest, at most so many; 0 means all. In the order in which they were taken last."""
        # A pool that is calm while another one changes its mind a thousand times has left the ring.
        found = {id(entry): entry for entry in (*self._open.values(), *self._entries)}
        return sorted(found.values(), key=lambda entry: (entry.last_s, entry.first_s))[-most:]


def _is_same(one: PlanningDecision, other: PlanningDecision) -> bool:
    facts = [(d.direction, d.reason, d.blocked, d.desired, d.victim) for d in (one, other)]
    return facts[0] == facts[1]
