"""Room of the fleet for KV blocks: requests that no worker has blocks for are refused in one step.

Of requests that differ in the length of their prompts alone, the longest prompt that fits is worked out once for each
version of the fleet.  The rule is the one of ``stratos.routing.admission``; a filter may still refuse what fits here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from stratos.core.rules.admission import KvNeed, output_blocks
from stratos.routing.admission import Ask, kv_capacity
from stratos.routing.dispatch.pool_room import PoolRoom, Room
from stratos.routing.filters import Rejection, has_adapter_slot, is_open
from stratos.routing.fleet_views import FleetViews
from stratos.routing.worker_view import WorkerView

NOTHING_BLOCKED = math.inf, math.inf
MAX_POOLS = 256
"""Models come from requests, so their number is bounded."""
_PoolKey = tuple[str, frozenset[str], int, bool, bool]
"""The first fields of a ``NeedKind``."""


class NeedKind(NamedTuple):
    """Needs of a request beside room for its prompt."""

    model_digest: str
    features: frozenset[str]
    max_waiting: int
    is_resumed: bool
    takes_spot: bool
    num_choices: int
    max_output_tokens: int
    """Output of each choice; rounded down and bounded, so that there are few kinds."""


class RoomTable:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._views = FleetViews()
        self._version: float = math.nan
        self._pools: dict[_PoolKey, PoolRoom] = {}
        self._updated: set[_PoolKey] = set()
        self.rejections: Counter[Rejection] = Counter()
        """Workers that refused a request, or once for all of a kind, by reason; who reads it clears it."""

    def look(self, views: FleetViews, version: int) -> None:
        """The fleet as it is now."""
        if version != self._version:
            self._views, self._version = views, version
            self._updated.clear()

    def candidates(self, ask: Ask) -> list[WorkerView] | None:
        """The workers with blocks and an adapter slot for a request; ``None`` where all have to be looked at."""
        request, closed, need = ask.request, ask.closed, ask.need
        kind = kind_of(ask, 0)
        pool = self._pool(kind)
        if _is_moot(pool, closed) or (largest := pool.largest) is None or ask.never_fits(largest):
            return None
        found, least = [], -request.num_prompt_tokens
        if pool.rooms and _fits(pool.rooms[-1], need):
            return None  # the fullest worker has room, and so have the others
        for room in pool.rooms:
            view = room[2]
            if room[0] >= least:
                break
            if _fits(room, need) and view.ref.incarnation not in closed and has_adapter_slot(view, ask) is None:
                found.append(view)
        if not found:
            self._count(pool, ask)
        return found

    def left_out(self, ask: Ask, candidates: Sequence[WorkerView], count: int) -> list[tuple[WorkerView, Rejection]]:
        """Some workers that are not among a request's candidates, each with what it lacked; those of the last look."""
        named = {view.ref.incarnation for view in candidates}
        others = (found for found in self._pool(kind_of(ask, 0)).rejected() if found[0].ref.incarnation not in named)
        return [(view, is_open(view, ask) or reason) for view, reason in islice(others, count)]

    def kind_of(self, ask: Ask) -> NeedKind:
        """The kind of a request's needs; outputs longer than any worker expects are one."""
        longest_p90 = self._pool(kind_of(ask, 0)).longest_p90
        return kind_of(ask, 1 << max(0, longest_p90 - 1).bit_length())

    def roomiest(self, ask: Ask, count: int) -> list[WorkerView]:
        """Workers with a batch slot and the most blocks for a request, which are too few; those of the last look."""
        return [view for _, _, view in self._pool(kind_of(ask, 0)).rooms[:count]]

    def blocked(self, kind: NeedKind, closed: frozenset[str]) -> tuple[float, float]:
        """Prompts longer than the first number and no longer than the second find no room at workers that are open."""
        pool = self._pool(kind)
        if _is_moot(pool, closed) or (largest := pool.largest) is None:
            return NOTHING_BLOCKED
        longest = 0.0
        for tokens, _, view in pool.frontier(closed):
            if -tokens <= longest or longest == math.inf:
                break
            longest = max(longest, -tokens - _output_tokens(kind, view, kind.max_output_tokens))
        size, p90 = largest.status.block_size, largest.status.engine.p90_output_tokens
        most = kv_capacity(largest, is_resumed=kind.is_resumed) * size
        return longest, most - (kind.num_choices - 1) * size - _output_tokens(kind, largest, p90)

    def _pool(self, kind: NeedKind) -> PoolRoom:
        key = kind[:5]
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                self._pools.clear()
                self._updated.clear()
            pool = self._pools[key] = PoolRoom(
                kind.features, kind.max_waiting, is_resumed=kind.is_resumed, takes_spot=kind.takes_spot
            )
        if key not in self._updated:
            self._updated.add(key)
            pool.update(self._views, kind.model_digest)
        return pool

    def _count(self, pool: PoolRoom, ask: Ask) -> None:
        self.rejections.update(pool.rejections)
        for *_, view in pool.rooms if ask.closed else ():
            if (reason := is_open(view, ask)) is not None:
                self.rejections[reason] += 1
                self.rejections[Rejection.KV_ROOM] -= 1


def kind_of(ask: Ask, most_output_tokens: int) -> NeedKind:
    """The kind of a request's needs, with an output of no more than it has, and no more than is worth telling apart."""
    request = ask.request
    num_choices = max(1, request.num_choices)
    return NeedKind(
        request.model_digest,
        request.required_features,
        ask.max_waiting_per_worker,
        request.is_resumed,
        request.takes_spot,
        num_choices,
        _rounded_down(min(most_output_tokens, -(-request.max_output_tokens_total // num_choices))),
    )


def _fits(room: Room, need: Callable[[WorkerView], KvNeed]) -> bool:
    tokens, _, view = room
    return tokens == -math.inf or need(view).num_blocks <= -tokens / view.status.block_size


def _is_moot(pool: PoolRoom, closed: frozenset[str]) -> bool:
    """It is batch slots that are short: ``FullModels`` knows of those."""
    return not pool.rooms and not closed


def _rounded_down(num_tokens: int) -> int:
    """To one of four numbers between two powers of two: each is at most a quarter off."""
    step = 1 << max(0, num_tokens.bit_length() - 3)
    return num_tokens // step * step


def _output_tokens(kind: NeedKind, view: WorkerView, most: int) -> int:
    """Tokens of the blocks that outputs of at most so many tokens are expected to need there."""
    size, p90 = view.status.block_size, view.status.engine.p90_output_tokens
    return size * output_blocks(most, p90, kind.num_choices, size, is_resumed=kind.is_resumed)
