"""Pins of one tier: blocks that requests asked to keep, for whom and until when.

A pin changes only the order of eviction: a pinned block that nothing references goes after all others, and then with
its pin.  So pins take no room from live sequences, and no admission is refused for them.

Each tenant has a quota of blocks, and all of them together a share of the tier.  Within a full quota the pin that
ends first makes room, deeper blocks of a prompt first, as a prefix is of use without its end and not the other way
round; where the share of all is full, the new pin is not made.  Time is the worker's monotonic clock, and nothing
survives its process.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stratos.engine.contract.results import TierPinStatus

DropReason = Literal["expired", "quota", "pool", "pressure", "forgotten"]
"""Its time is over; the tenant's quota or the share of all tenants is full; a live sequence needed the block; the
block itself was dropped, with its tenant or for damage."""
REASONS: tuple[DropReason, ...] = ("expired", "quota", "pool", "pressure", "forgotten")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Wish to keep one block."""

    tenant: str
    expires_s: float
    """Monotonic seconds."""
    depth: int
    """Place of the block in its prompt."""
    device_ratio: float
    host_ratio: float
    """Parts of each tier that pins of the tenant may take."""

    @property
    def order(self) -> tuple[float, int]:
        """Lower ones make room for higher ones."""
        return self.expires_s, -self.depth


_Entry = tuple[float, int, bytes]


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
        self.on_drop: Callable[[bytes], None] | None = None
        """Told the hash that has no pin any more."""
        self.dropped: Counter[DropReason] = Counter()
        """Pins that ended, or were not made, since the start."""
        self._pins: dict[bytes, Pin] = {}
        self._orders: dict[str, list[_Entry]] = {}
        """By tenant, a heap; entries that no longer agree with ``_pins`` are skipped."""
        self._counts: Counter[str] = Counter()
        self._next_s = float("inf")
        """No pin ends earlier."""

    def __len__(self) -> int:
        return len(self._pins)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._pins

    def find(self, block_hash: bytes) -> Pin | None:
        return self._pins.get(block_hash)

    def count(self, tenant: str) -> int:
        """Pins of one tenant."""
        return self._counts[tenant]

    def quota(self, pin: Pin) -> int:
        """Most blocks that the pin's tenant may keep in this tier."""
        return min(int(self._num_blocks * self._ratio_of(pin)), self.max_pins)

    def add(self, block_hash: bytes, pin: Pin) -> bool:
        """Pin a block that the tier holds, or let its pin end later; ``False`` where there is no room for it."""
        held = self._pins.get(block_hash)
        if held is None:
            if not self._make_room(pin):
                return False
            self._counts[pin.tenant] += 1
        elif held.expires_s >= pin.expires_s or held.tenant != pin.tenant:
            return True  # tenants without a salt share blocks: the first one has the pin
        self._pins[block_hash] = pin
        self._next_s = min(self._next_s, pin.expires_s)
        order = self._orders.setdefault(pin.tenant, [])
        if len(order) > 2 * self._counts[pin.tenant] + 64:  # uses that only moved a pin's end left their entries
            order[:] = [entry for entry in order if self._is_current(entry)]
            heapq.heapify(order)
        heapq.heappush(order, (*pin.order, block_hash))
        return True

    def drop(self, block_hash: bytes, reason: DropReason) -> None:
        """End a pin, if there is one."""
        pin = self._pins.pop(block_hash, None)
        if pin is None:
            return
        self.dropped[reason] += 1
        self._counts[pin.tenant] -= 1
        if not self._counts[pin.tenant]:
            del self._counts[pin.tenant], self._orders[pin.tenant]
        if self.on_drop is not None:
            self.on_drop(block_hash)

    def is_due(self, now_s: float) -> bool:
        """Some pin may have ended."""
        return self._next_s <= now_s

    def expire(self, now_s: float) -> None:
        """End the pins whose time is over."""
        if not self.is_due(now_s):
            return
        for tenant in tuple(self._orders):
            while (first := self._first(tenant)) is not None and first[0] <= now_s:
                self.drop(first[2], "expired")
        self._next_s = min((order[0][0] for order in self._orders.values()), default=float("inf"))

    def status(self) -> TierPinStatus:
        return TierPinStatus(
            num_blocks=len(self._pins), dropped={str(reason): count for reason, count in self.dropped.items()}
        )

    def verify(self, is_held: Callable[[bytes], bool]) -> None:
        """Recount, and raise ``AssertionError`` where a count is off or a pin is of a block that is not there."""
        assert len(self._pins) <= self.max_pins
        assert Counter(pin.tenant for pin in self._pins.values()) == self._counts
        assert all(is_held(block_hash) for block_hash in self._pins), "a pin without its block"
        assert self._orders.keys() == self._counts.keys()
        current = {entry[2] for order in self._orders.values() for entry in order if self._is_current(entry)}
        assert current == self._pins.keys(), "a pin that never ends"

    def _make_room(self, pin: Pin) -> bool:
        quota = self.quota(pin)
        while self._counts[pin.tenant] >= quota:
            first = self._first(pin.tenant)
            if first is None or first[:2] >= pin.order:
                self.dropped["quota"] += 1
                return False
            self.drop(first[2], "quota")
        if len(self._pins) >= self.max_pins:
            self.dropped["pool"] += 1
            return False
        return True

    def _first(self, tenant: str) -> _Entry | None:
        """The tenant's pin that makes room first."""
        order = self._orders.get(tenant, [])
        while order and not self._is_current(order[0]):
            heapq.heappop(order)
        return order[0] if order else None

    def _is_current(self, entry: _Entry) -> bool:
        pin = self._pins.get(entry[2])
        return pin is not None and pin.order == entry[:2]
