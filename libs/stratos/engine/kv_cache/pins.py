"""Pins of one tier: blocks that requests asked to keep, for whom and until when, and the order of eviction under them.

A pin changes only the order of eviction: a pinned block that nothing references goes after all others, and then with
its pin.  So pins take no room from live sequences, and no admission is refused for them.  A block keeps the place of
its last use in that order, so one whose pin ends is no worse off than one that had none.

Blocks that one request pins until one time are a *run*, which a later use of the same blocks moves as a whole.  Each
tenant has a quota of blocks, and all of them together a share of the tier.  Within a full quota the run that ends
first makes room, deeper blocks of a prompt first, as a prefix is of use without its end and not the other way round.
Where the share of all is full, tenants whose last pin was of a lower class make room first, and then of those of its
class the one whose quota is used most, for one that uses less of its own.  Time is the worker's monotonic clock, and
nothing survives its process.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from stratos.core.requests.limits import DEFAULT_PRIORITY_CLASS
from stratos.engine.contract.results import TierPinStatus

DropReason = Literal["expired", "quota", "pool", "pressure", "forgotten"]
"""Its time is over; the tenant's quota or the share of all tenants is full; a live sequence needed the block; the
block itself was dropped, with its tenant or for damage."""
REASONS: tuple[DropReason, ...] = ("expired", "quota", "pool", "pressure", "forgotten")
MAX_EXPIRED = 1024
"""Pins that end at once: more would hold a step up. The others end with the next step."""
SHARED_AT_ONCE = 64
"""Pins that one tenant gives up before it is looked which one uses most of its quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Wish to keep blocks of a prompt."""

    tenant: str
    ttl_s: int
    """Seconds after each use that were asked for."""
    expires_s: float
    """Monotonic seconds."""
    device_ratio: float
    host_ratio: float
    """Parts of each tier that pins of the tenant may take."""
    priority_class: int = DEFAULT_PRIORITY_CLASS
    """Class of the request; 0 is the most urgent."""


@dataclass(slots=True, eq=False)
class _Run:
    """Blocks that a wish keeps."""

    pin: Pin
    hashes: list[bytes]
    """In the order of the prompt; others that were lost since, or are another run's, may be among them."""
    num_live: int
    """Hashes that are its own."""


class TierPins:
    """Pins by block hash; guarded by the core's lock.

    Args:
        num_blocks: size of the tier.
        max_ratio: part of it that pins of all tenants may take.
        ratio_of: part of it that pins of a pin's tenant may take.
    """

    def __init__(self, num_blocks: int, max_ratio: float, ratio_of: Callable[[Pin], float]) -> None:
        self._num_blocks, self._ratio_of = num_blocks, ratio_of
        self.max_pins = int(num_blocks * max_ratio)
        self.on_change: Callable[[bytes, bool], None] | None = None
        """Told the hash that has a pin now, or has none any more."""
        self.dropped: Counter[DropReason] = Counter()
        """Pins that ended, or were not made, since the start."""
        self._runs: dict[bytes, _Run] = {}
        self._heaps: dict[str, list[tuple[float, int, _Run]]] = {}
        """By tenant; a run may end later than its entry says, and one without blocks is skipped."""
        self._counts: Counter[str] = Counter()
        self._quotas: dict[str, int] = {}
        self._classes: dict[str, int] = {}
        self._numbers = itertools.count()
        self._next_s = float("inf")
        """No pin ends earlier."""

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._runs

    def find(self, block_hash: bytes) -> Pin | None:
        run = self._runs.get(block_hash)
        return None if run is None else run.pin

    def count(self, tenant: str) -> int:
        """Pins of one tenant."""
        return self._counts[tenant]

    def quota(self, pin: Pin) -> int:
        """Most blocks that the pin's tenant may keep in this tier."""
        return min(int(self._num_blocks * self._ratio_of(pin)), self.max_pins)

    def num_kept(self, hashes: Sequence[bytes], ttl_s: int) -> int:
        """How many of the first blocks are pinned for so long, or for longer, after each use."""
        run = self._exact_run(hashes)
        if run is not None:
            return len(hashes) if run.pin.ttl_s >= ttl_s else 0
        held = map(self._runs.get, hashes)
        return sum(1 for _ in itertools.takewhile(lambda run: run is not None and run.pin.ttl_s >= ttl_s, held))

    def renew(self, hashes: Sequence[bytes], pin: Pin) -> bool:
        """Let a run of exactly these blocks of a chain end later, if there is one, in no time."""
        run = self._exact_run(hashes)
        if run is None or run.pin.tenant != pin.tenant:
            return False
        if run.pin.expires_s < pin.expires_s:
            run.pin = pin
        return True

    def _exact_run(self, hashes: Sequence[bytes]) -> _Run | None:
        """The run of exactly these blocks of a chain."""
        run = self._runs.get(hashes[-1]) if hashes else None
        if run is None or not len(run.hashes) == run.num_live == len(hashes):
            return None
        return run if (run.hashes[0], run.hashes[-1]) == (hashes[0], hashes[-1]) else None

    def add(self, hashes: Sequence[bytes], pin: Pin) -> int:
        """Pin blocks that the tier holds, or let their pins end later; returns how many of the first ones are pinned.

        Args:
            hashes: in the order of the prompt.
            pin: of a tenant; what another one has pinned already stays as it is.
        """
        run, new = _Run(pin, [], 0), []
        for place, block_hash in enumerate(hashes):
            held = self._runs.get(block_hash)
            if held is None:
                new.append(place)
            elif held.pin.tenant == pin.tenant and held.pin.expires_s < pin.expires_s:
                self._leave(held)
                self._enter(run, block_hash)
        num_made = self._make_room(pin, len(new)) if new else 0
        for place in new[:num_made]:
            self._enter(run, hashes[place])
            if self.on_change is not None:
                self.on_change(hashes[place], True)
        if run.num_live:
            self._push(run)
        return new[num_made] if num_made < len(new) else len(hashes)

    def drop(self, block_hash: bytes, reason: DropReason) -> None:
        """End a pin, if there is one."""
        run = self._runs.pop(block_hash, None)
        if run is None:
            return
        self.dropped[reason] += 1
        self._leave(run)
        if not self._counts[run.pin.tenant]:
            for facts in (self._counts, self._heaps, self._quotas, self._classes):
                del facts[run.pin.tenant]
        if self.on_change is not None:
            self.on_change(block_hash, False)

    def is_due(self, now_s: float) -> bool:
        """Some pin may have ended."""
        return self._next_s <= now_s

    def expire(self, now_s: float) -> None:
        """End pins whose time is over, up to a bound."""
        if not self.is_due(now_s):
            return
        left = MAX_EXPIRED
        for tenant in tuple(self._heaps):
            left -= self._drop_first(tenant, left, lambda expires_s: expires_s <= now_s, "expired")
        firsts = [run.pin.expires_s for tenant in self._heaps if (run := self._first(tenant)) is not None]
        self._next_s = min(firsts, default=float("inf"))

    def status(self) -> TierPinStatus:
        return TierPinStatus(
            num_blocks=len(self._runs), dropped={str(reason): count for reason, count in self.dropped.items()}
        )

    def verify(self, is_held: Callable[[bytes], bool]) -> None:
        """Recount, and raise ``AssertionError`` where a count is off or a pin is of a block that is not there."""
        assert len(self._runs) <= self.max_pins
        assert Counter(run.pin.tenant for run in self._runs.values()) == self._counts
        assert all(is_held(block_hash) for block_hash in self._runs), "a pin without its block"
        assert self._heaps.keys() == self._counts.keys() == self._quotas.keys() == self._classes.keys()
        runs = {id(run): run for heap in self._heaps.values() for _, _, run in heap}
        assert all(id(run) in runs and h in run.hashes for h, run in self._runs.items()), "a pin that never ends"
        assert all(run.num_live == sum(r is run for r in self._runs.values()) for run in runs.values())
        assert all(entry[0] <= entry[2].pin.expires_s for heap in self._heaps.values() for entry in heap)

    # -- room --------------------------------------------------------------------------------------

    def _make_room(self, pin: Pin, num_wanted: int) -> int:
        """End other pins for new ones; returns how many may be made."""
        tenant, room = pin.tenant, self.quota(pin) - self._counts[pin.tenant]
        room += self._drop_first(tenant, num_wanted - room, lambda expires_s: expires_s < pin.expires_s, "quota")
        num_made = max(0, min(num_wanted, room))
        if num_made < num_wanted:
            self.dropped["quota"] += num_wanted - num_made
        missing = num_made - (self.max_pins - len(self._runs))
        if missing > 0:
            missing -= self._share(pin, num_made, missing)
            missing -= self._drop_first(tenant, missing, lambda expires_s: expires_s < pin.expires_s, "pool")
        if missing > 0:
            self.dropped["pool"] += missing
            num_made -= missing
        return num_made

    def _share(self, pin: Pin, num_new: int, num_wanted: int) -> int:
        """Take pins of other tenants, those of lower classes first; returns how many.

        Of tenants of its own class it takes from those that use more of their quotas than its tenant would.
        """
        tenant, quota, num_taken = pin.tenant, self.quota(pin), 0
        num_own = self._counts[tenant] + num_new - num_wanted
        while num_taken < num_wanted and (others := self._counts.keys() - {tenant}):
            other = max(others, key=lambda name: (self._classes[name], self._counts[name] / max(1, self._quotas[name])))
            count, its_quota = self._counts[other], max(1, self._quotas[other])
            # as many as leave it with no smaller part of its quota than the tenant has of its own then
            surplus = (count * quota - (num_own + num_taken) * its_quota) // (quota + its_quota)
            surplus = count if self._classes[other] > pin.priority_class else surplus
            if surplus <= 0 or self._classes[other] < pin.priority_class:
                break
            num_taken += self._drop_first(
                other, min(surplus, num_wanted - num_taken, SHARED_AT_ONCE), lambda _: True, "pool"
            )
        return num_taken

    def _drop_first(self, tenant: str, num_wanted: int, may_end: Callable[[float], bool], reason: DropReason) -> int:
        """End pins of a tenant: the run that ends first is the first, its deepest block before others."""
        num_dropped = 0
        while num_dropped < num_wanted and (run := self._first(tenant)) is not None and may_end(run.pin.expires_s):
            self.drop(run.hashes[-1], reason)
            num_dropped += 1
        return num_dropped

    def _first(self, tenant: str) -> _Run | None:
        """The tenant's run that ends first; the last of its hashes is its own."""
        heap = self._heaps.get(tenant, [])
        while heap:
            expires_s, number, run = heap[0]
            while run.hashes and self._runs.get(run.hashes[-1]) is not run:
                run.hashes.pop()
            if not run.hashes:
                heapq.heappop(heap)
            elif expires_s != run.pin.expires_s:
                heapq.heapreplace(heap, (run.pin.expires_s, number, run))
            else:
                return run
        return None

    # -- runs --------------------------------------------------------------------------------------

    def _enter(self, run: _Run, block_hash: bytes) -> None:
        self._runs[block_hash] = run
        run.hashes.append(block_hash)
        run.num_live += 1
        self._counts[run.pin.tenant] += 1

    def _leave(self, run: _Run) -> None:
        self._counts[run.pin.tenant] -= 1
        run.num_live -= 1
        if not run.num_live:
            run.hashes.clear()

    def _push(self, run: _Run) -> None:
        self._quotas[run.pin.tenant], self._classes[run.pin.tenant] = self.quota(run.pin), run.pin.priority_class
        heap = self._heaps.setdefault(run.pin.tenant, [])
        if len(heap) > 2 * self._counts[run.pin.tenant] + 64:  # runs without blocks are left
            heap[:] = [entry for entry in heap if entry[2].num_live]
            heapq.heapify(heap)
        heapq.heappush(heap, (run.pin.expires_s, next(self._numbers), run))
        self._next_s = min(self._next_s, run.pin.expires_s)


class EvictionOrder:
    """Blocks of a tier that nothing references, in the order in which they are given up.

    Those whose pins ended after their turn had come go first, then those that were put back, then all others by last
    use; a pinned one is set aside when its turn comes, and goes after them.
    """

    def __init__(self) -> None:
        self._due: OrderedDict[int, None] = OrderedDict()
        self._back: OrderedDict[int, None] = OrderedDict()
        self._by_use: OrderedDict[int, None] = OrderedDict()
        self._aside: OrderedDict[int, None] = OrderedDict()
        self._orders = self._due, self._back, self._by_use, self._aside
        self._pinned: set[int] = set()
        self._put_back: set[int] = set()
        """Blocks that were put back, those set aside included."""

    def __len__(self) -> int:
        return sum(map(len, self._orders))

    def __contains__(self, block: int) -> bool:
        return any(block in order for order in self._orders)

    @property
    def pinned(self) -> frozenset[int]:
        return frozenset(self._pinned)

    @property
    def num_unpinned(self) -> int:
        return len(self) - len(self._pinned)

    def blocks(self) -> set[int]:
        return set().union(*self._orders)

    def add(self, block: int, *, is_pinned: bool, is_oldest: bool = False) -> None:
        """Enter a block as the last one by use; or put one back that was among the first, after others put back."""
        if is_oldest:
            self._back[block] = None
            self._put_back.add(block)
        else:
            self._by_use[block] = None
        if is_pinned:
            self._pinned.add(block)

    def was_put_back(self, block: int) -> bool:
        """The block was put back, and nothing has used it since."""
        return block in self._put_back

    def remove(self, block: int) -> None:
        """Take a block out, if it is there."""
        for order in self._orders:
            order.pop(block, None)
        self._pinned.discard(block)
        self._put_back.discard(block)

    def note_pin(self, block: int, is_pinned: bool) -> None:
        """A block has a pin now, or has none any more; nothing for one that is not here."""
        if block not in self:
            return
        if is_pinned:
            self._pinned.add(block)
            return
        self._pinned.discard(block)
        if block in self._aside:
            del self._aside[block]
            self._due[block] = None

    def pop(self) -> int:
        """Take the first one out; there must be one."""
        self._set_aside()
        block, _ = (self._due or self._back or self._by_use or self._aside).popitem(last=False)
        self._pinned.discard(block)
        self._put_back.discard(block)
        return block

    def first(self, count: int) -> list[int]:
        """The first ones; pinned ones may come a little early, as it looks at a bounded number."""
        self._set_aside()
        near = [*itertools.islice(itertools.chain(self._due, self._back), count)]
        near += itertools.islice(self._by_use, 2 * count)
        plain = (block for block in near if block not in self._pinned)
        pinned = (block for block in near if block in self._pinned)
        return list(itertools.islice(itertools.chain(plain, self._aside, pinned), count))

    def _set_aside(self) -> None:
        """Let no pinned block be the first."""
        for order in (self._due, self._back, self._by_use):
            while order and (block := next(iter(order))) in self._pinned:
                del order[block]
                self._aside[block] = None
