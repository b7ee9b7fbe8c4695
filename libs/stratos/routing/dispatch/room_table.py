"""Room of the fleet for KV blocks: requests that no worker has blocks for are refused in one step.

Of requests that differ in the length of their prompts alone, the longest prompt that fits is worked out once for each
version of the fleet.  The rule is the one of ``stratos.routing.admission``; a filter may still refuse what fits here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from stratos.core.rules.admission import KvNeed, output_blocks
from stratos.routing.admission import Ask, kv_capacity
from stratos.routing.dispatch.pool_room import PoolRoom, Room, output_of
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
        pool = self._pool(_pool_key(ask))
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

    def able(self, ask: Ask) -> list[WorkerView] | None:
        """Workers that pass every filter, where that takes no look at each; ``None`` where it does.

        Those with a batch slot, for a plain request of one sequence that the fullest of them has room for.
        """
        request = ask.request
        if ask.num_slots != 1 or ask.barred or ask.is_share_bound or request.terms.adapter.digest:
            return None
        pool = self._pool(_pool_key(ask))
        if not pool.rooms or pool.rooms[0][0] == -math.inf or not _fits(pool.rooms[-1], ask.need):
            return None  # an empty worker takes what fits, however small it is
        return pool.with_slots()

    def left_out(self, ask: Ask, candidates: Sequence[WorkerView], count: int) -> list[tuple[WorkerView, Rejection]]:
        """Some workers that are not among a request's candidates, each with what it lacked; those of the last look."""
        named = {view.ref.incarnation for view in candidates}
        others = (found for found in self._pool(_pool_key(ask)).rejected() if found[0].ref.incarnation not in named)
        return [(view, is_open(view, ask) or reason) for view, reason in islice(others, count)]

    def kind_of(self, ask: Ask) -> NeedKind:
        """The kind of a request's needs; outputs longer than any worker expects are one."""
        longest_p90 = self._pool(_pool_key(ask)).longest_p90
        return kind_of(ask, 1 << max(0, longest_p90 - 1).bit_length())

    def roomiest(self, ask: Ask, count: int) -> list[WorkerView]:
        """Workers with a batch slot and the most blocks for a request, which are too few; those of the last look."""
        return [view for _, _, view in self._pool(_pool_key(ask)).rooms[:count]]

    def blocked(
        self, kind: NeedKind, closed: frozenset[str], clear: frozenset[str] = frozenset()
    ) -> tuple[float, float]:
        """Prompts longer than the first number and no longer than the second find no room at workers that are open.

        Args:
            kind: needs of the requests.
            closed: workers that are kept for others.
            clear: workers that are closed, too, to requests that another one is large enough for.
        """
        pool = self._pool(kind[:5])
        largest = pool.largest_of(clear) or pool.largest
        if largest is not None and clear and largest.ref.incarnation not in clear:
            closed = closed | clear if closed else clear
        if largest is None or _is_moot(pool, closed):
            return NOTHING_BLOCKED
        longest, num_choices, is_resumed = 0.0, kind.num_choices, kind.is_resumed
        for tokens, _, view in pool.frontier(closed):
            if -tokens <= longest or longest == math.inf:
                break
            size, p90 = output_of(view)
            longest = max(longest, -tokens - _output_tokens(kind.max_output_tokens, p90, num_choices, size, is_resumed))
        size, p90 = output_of(largest)
        most = kv_capacity(largest, is_resumed=is_resumed) * size
        return longest, most - (num_choices - 1) * size - _output_tokens(p90, p90, num_choices, size, is_resumed)

    def _pool(self, key: _PoolKey) -> PoolRoom:
        pool = self._pools.get(key)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                self._pools.clear()
                self._updated.clear()
            _, features, max_waiting, is_resumed, takes_spot = key
            pool = self._pools[key] = PoolRoom(features, max_waiting, is_resumed=is_resumed, takes_spot=takes_spot)
        if key not in self._updated:
            self._updated.add(key)
            pool.update(self._views, key[0])
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
    most = min(most_output_tokens, -(-request.max_output_tokens_total // num_choices))
    return NeedKind(*_pool_key(ask), num_choices, _rounded_down(most))


def _pool_key(ask: Ask) -> _PoolKey:
    request = ask.request
    return (
        request.model_digest,
        request.required_features,
        ask.max_waiting_per_worker,
        request.is_resumed,
        request.takes_spot,
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


@lru_cache(maxsize=4096)
def _output_tokens(most: int, p90: int, num_choices: int, size: int, is_resumed: bool) -> int:
    """Tokens of the blocks that outputs of at most so many tokens are expected to need at a worker."""
    return size * output_blocks(most, p90, num_choices, size, is_resumed=is_resumed)
