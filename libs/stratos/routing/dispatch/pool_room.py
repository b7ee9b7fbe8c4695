"""Room of one pool, most first, for one sort of requests: kept from one version of the fleet to the next.

A version mostly differs from the last one in a worker or two, so the others keep their places.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Iterator

from stratos.core.features import can_speak_with
from stratos.core.placement import WorkerRole
from stratos.routing.admission import has_free_slot, kv_capacity, kv_room
from stratos.routing.filters import Rejection
from stratos.routing.fleet_views import FleetViews
from stratos.routing.worker_view import WorkerView

Room = tuple[float, int, WorkerView]
"""Tokens that a worker's free blocks have room for, negative so that the most comes first; its number; the worker."""


NO_CAPACITY = (-1.0, 0)


class PoolRoom:
    """Workers with a batch slot, by room for KV blocks.

    Args:
        features: that requests need.
        max_waiting: sequences that a full batch may be given in addition.
        is_resumed: requests have emitted tokens before.
        takes_spot: they may run at workers that may vanish.
    """

    def __init__(self, features: frozenset[str], max_waiting: int, *, is_resumed: bool, takes_spot: bool) -> None:
        self._features = features
        self._max_waiting = max_waiting
        self._is_resumed = is_resumed
        self._takes_spot = takes_spot
        self._views = FleetViews()
        self._num_changes = 0
        """Of ``views``, when it was looked at."""
        self._known: dict[str, WorkerView] = {}
        self._number = 0
        self._rooms: dict[str, Room] = {}
        self._reasons: dict[str, Rejection] = {}
        self._capacities: dict[str, tuple[float, int]] = {}
        self._largest = ""
        self._largest_others: dict[frozenset[str], str] = {}
        self._outputs: Counter[tuple[int, int]] = Counter()
        """Block size and expected output of the workers in ``rooms``."""
        self.longest_p90 = 0
        """Longest output that a worker has ever expected."""
        self._frontiers: dict[frozenset[str], list[Room]] = {}
        self.rooms: list[Room] = []
        """Of workers that live, have the features and a batch slot."""
        self.rejections: Counter[Rejection] = Counter()
        """Why each worker refuses a request that its room is too small for."""

    @property
    def largest(self) -> WorkerView | None:
        """The worker with the largest pool of those that live and have the features."""
        return self._known.get(self._largest)

    def largest_of(self, left_out: frozenset[str]) -> WorkerView | None:
        """The same, without some workers."""
        if self._largest not in left_out:
            return self.largest
        name = self._largest_others.get(left_out)
        if name is None:
            others = self._capacities.keys() - left_out
            name = self._largest_others[left_out] = max(sorted(others), key=self._capacities.__getitem__, default="")
        return self._known.get(name)

    def update(self, views: FleetViews, model_digest: str) -> None:
        """The pool as it is now."""
        changed = views.changed(WorkerRole.DECODE, model_digest, self._num_changes) if views is self._views else None
        self._views, self._num_changes = views, views.num_changes
        gone: list[str] = []
        if changed is None:
            pool = views.by_incarnation(WorkerRole.DECODE, model_digest)
            changed = [view for name, view in pool.items() if self._known.get(name) is not view]
            gone = [name for name in self._known if name not in pool]
        if not changed and not gone:
            return
        self._frontiers.clear()
        self._largest_others.clear()
        largest = self._capacities.get(self._largest)
        for view in changed:
            self._take_out(view.ref.incarnation)
            self._put(view.ref.incarnation, view)
        for name in gone:
            self._take_out(name)
            del self._known[name]
        if largest is None or self._capacities.get(self._largest, NO_CAPACITY) < largest:
            self._largest = max(self._capacities, key=self._capacities.__getitem__, default="")

    def with_slots(self) -> list[WorkerView]:
        """The workers of ``rooms``, in the order in which they became known."""
        if len(self._rooms) == len(self._known):
            return list(self._known.values())
        return [view for name, view in self._known.items() if name in self._rooms]

    def rejected(self) -> Iterator[tuple[WorkerView, Rejection]]:
        """Each worker, and why it refuses a request that its room is too small for."""
        return ((self._known[name], reason) for name, reason in self._reasons.items())

    def frontier(self, closed: frozenset[str]) -> list[Room]:
        """Open workers that no other one beats in both: room, and the output to be expected there.

        What fits any of the open workers fits one of these.
        """
        found = self._frontiers.get(closed)
        if found is None:
            found = self._frontiers[closed] = self._find_frontier(closed)
        return found

    def _find_frontier(self, closed: frozenset[str]) -> list[Room]:
        frontier, shortest, left = [], dict[int, float](), len({size for size, _ in self._outputs})
        for room in self.rooms:
            size, p90 = output_of(room[2])
            if p90 < shortest.get(size, math.inf) and room[2].ref.incarnation not in closed:
                shortest[size] = p90
                frontier.append(room)
                left -= p90 == min(one for of_size, one in self._outputs if of_size == size)
                if not left:
                    break
        return frontier

    def _put(self, name: str, view: WorkerView) -> None:
        self._known[name] = view
        status = view.status
        is_able = self._features <= status.features and (self._takes_spot or not status.is_spot)
        if not (view.is_in and is_able):
            self._reject(name, self._ineligible(view))
            return
        size, is_resumed = status.block_size, self._is_resumed
        p90 = status.engine.p90_output_tokens
        self._capacities[name] = capacity = kv_capacity(view, is_resumed=is_resumed) * size, -p90
        if capacity > self._capacities.get(self._largest, NO_CAPACITY):
            self._largest = name
        if not has_free_slot(view, self._max_waiting):
            self._reject(name, Rejection.BATCH_SLOTS)
            return
        self._reject(name, Rejection.KV_ROOM)
        self._number += 1
        room = self._rooms[name] = -kv_room(view, is_resumed=is_resumed) * size, self._number, view
        bisect.insort(self.rooms, room)
        self._outputs[size, p90] += 1
        self.longest_p90 = max(self.longest_p90, p90)

    def _take_out(self, name: str) -> None:
        self._capacities.pop(name, None)
        if (reason := self._reasons.pop(name, None)) is not None:
            self.rejections[reason] -= 1
        if (room := self._rooms.pop(name, None)) is not None:
            del self.rooms[bisect.bisect_left(self.rooms, room)]
            output = output_of(room[2])
            self._outputs[output] -= 1
            if not self._outputs[output]:
                del self._outputs[output]

    def _reject(self, name: str, reason: Rejection) -> None:
        self._reasons[name] = reason
        self.rejections[reason] += 1

    def _ineligible(self, view: WorkerView) -> Rejection:
        if not can_speak_with(view.status.protocol_version):
            return Rejection.PROTOCOL
        if not self._features <= view.status.features:
            return Rejection.FEATURES
        return Rejection.SPOT if view.status.is_spot and not self._takes_spot else Rejection.OUT


def output_of(view: WorkerView) -> tuple[int, int]:
    """Block size and expected output of a worker."""
    return view.status.block_size, view.status.engine.p90_output_tokens
