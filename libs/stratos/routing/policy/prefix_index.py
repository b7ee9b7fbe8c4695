"""Which workers hold which blocks: the routers' copy of the prefix caches of all workers that they follow.

    block hash -> workers, as bits of an integer          so a prompt is matched against all workers in one walk
               -> of them, those that have it in host memory or on disk alone
    worker     -> number of its last change, its blocks   so a lost change is noticed, and a dead worker leaves nothing

A worker is a process (an incarnation).  Its changes are numbered; changes that do not follow on the ones before are not
applied, and the caller asks for those in between, or for a dump.

A worker that is dropped is out at once: its bit counts no more.  Its blocks are taken away by ``sweep``, a part at a
time, since all of them at once would hold up a router for a tenth of a second; its bit is free for another after that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from stratos.core.cache_changes import CacheChanges


@dataclass(slots=True)
class _Copy:
    """Copy of one worker's cache."""

    bit: int
    last: int = 0
    blocks: set[int] = field(default_factory=set)
    on_disk: dict[int, None] = field(default_factory=dict)
    """Blocks that disk alone has, in the order in which they came."""


@dataclass(frozen=True, slots=True)
class PrefixMatches:
    """Blocks of a prompt that workers have, by incarnation."""

    depths: dict[str, int]
    """Blocks, from the first on; workers without the first are left out."""
    below: dict[str, tuple[int, int]]
    """Among them those in host memory alone, and those on disk alone; workers without any are left out."""


class PrefixIndex:
    """Belongs to one thread.

    Args:
        max_blocks: of a worker; more are left out, so its prompts match less than there is.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._workers_of: dict[int, int] = {}
        self._below: tuple[dict[int, int], dict[int, int]] = ({}, {})
        """Host memory, disk."""
        self._copies: dict[str, _Copy] = {}
        self._incarnation_of: dict[int, str] = {}
        self._live = 0
        """Bits of all workers that have a copy."""
        self._dropped: deque[_Copy] = deque()
        """Copies whose blocks are still to be taken away."""
        self._free_bits: list[int] = []
        self.num_left_out = 0
        """Blocks that were not taken in because of the bound."""

    def __len__(self) -> int:
        """Blocks, counted once for each worker that has them."""
        return sum(len(copy.blocks) for copy in self._copies.values())

    def last_of(self, incarnation: str) -> int | None:
        """Number of the last change that was applied; ``None`` for a worker without a copy."""
        copy = self._copies.get(incarnation)
        return None if copy is None else copy.last

    def blocks_of(self, incarnation: str) -> frozenset[int]:
        """Names of the blocks that the worker is known to have."""
        copy = self._copies.get(incarnation)
        return frozenset() if copy is None else frozenset(copy.blocks)

    def apply(self, incarnation: str, changes: CacheChanges) -> bool:
        """Take changes in; ``False``, and nothing is changed, when some before them are missing.

        Changes that are known already do no harm: what overlaps ends in the state of the newest.
        """
        copy = self._copies.get(incarnation)
        if changes.is_dump:
            self.drop(incarnation)
            copy = self._add_worker(incarnation)
        elif copy is None or changes.after > copy.last:
            return False
        elif changes.last < copy.last:
            return True  # all of it is older than what is known
        self._remove(copy, changes.removed)
        self._store(copy, changes.stored)
        for tier, names in zip(self._below, (changes.on_host, changes.on_disk), strict=True):
            self._store(copy, names, is_disk=tier is self._below[1])
            for name in names:
                if name in copy.blocks:
                    tier[name] = tier.get(name, 0) | copy.bit
        copy.last = changes.last
        return True

    def drop(self, incarnation: str) -> None:
        """The process is gone, or its cache is not followed any more."""
        copy = self._copies.pop(incarnation, None)
        if copy is not None:
            del self._incarnation_of[copy.bit]
            self._live ^= copy.bit
            self._dropped.append(copy)

    def sweep(self, max_blocks: int) -> bool:
        """Take away so many blocks of workers that were dropped, at most; ``False`` once none are left."""
        if self._dropped:
            copy = self._dropped[0]
            self._remove(copy, tuple(islice(copy.blocks, max_blocks)))
            if not copy.blocks:
                self._dropped.popleft()
                self._free_bits.append(copy.bit)
        return bool(self._dropped)

    def match(self, names: Sequence[int]) -> PrefixMatches:
        """How many blocks of a chain each worker has, from the first on, and in which tier."""
        depths: dict[str, int] = {}
        below: dict[str, tuple[int, int]] = {}
        left, depth = self._live, 0
        on_host, on_disk = self._below
        run, length = (0, 0), 0  # neighbours mostly are in the same tiers of the same workers: these are walked once
        for name in names:
            have = left & self._workers_of.get(name, 0)
            if depth and have != left:
                self._note(depths, left & ~have, depth)
            left = have
            if not left:
                break
            depth += 1
            if on_host or on_disk:
                tiers = left & on_host.get(name, 0), left & on_disk.get(name, 0)
                if tiers != run:
                    self._count_run(below, run, length)
                    run, length = tiers, 0
                length += 1
        self._count_run(below, run, length)
        if depth and left:
            self._note(depths, left, depth)
        return PrefixMatches(depths, below)

    def _count_run(self, below: dict[str, tuple[int, int]], tiers: tuple[int, int], length: int) -> None:
        """Blocks that follow on each other, in host memory of some workers and on disk of others."""
        for workers, num_host, num_disk in ((tiers[0], length, 0), (tiers[1], 0, length)):
            self._count(below, workers, num_host, num_disk)

    def _count(self, below: dict[str, tuple[int, int]], workers: int, num_host: int, num_disk: int) -> None:
        while workers:
            bit = workers & -workers
            incarnation = self._incarnation_of[bit]
            host, disk = below.get(incarnation, (0, 0))
            below[incarnation] = host + num_host, disk + num_disk
            workers ^= bit

    def _note(self, matched: dict[str, int], workers: int, depth: int) -> None:
        while workers:
            bit = workers & -workers
            matched[self._incarnation_of[bit]] = depth
            workers ^= bit

    def _add_worker(self, incarnation: str) -> _Copy:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._copies) + len(self._dropped)
        self._live |= bit
        self._incarnation_of[bit] = incarnation
        copy = self._copies[incarnation] = _Copy(bit)
        return copy

    def _store(self, copy: _Copy, names: Iterable[int], *, is_disk: bool = False) -> None:
        """Take blocks in; above the bound those of memory push out what disk alone has."""
        workers_of, blocks, bit = self._workers_of, copy.blocks, copy.bit
        for name in names:
            if name not in blocks and len(blocks) >= self._max_blocks:
                self.num_left_out += 1
                if is_disk or not copy.on_disk:
                    continue
                self._remove(copy, (next(iter(copy.on_disk)),))
            blocks.add(name)
            workers_of[name] = workers_of.get(name, 0) | bit
            self._lift(copy, name)
            if is_disk:
                copy.on_disk[name] = None

    def _remove(self, copy: _Copy, names: Iterable[int]) -> None:
        workers_of, blocks, bit = self._workers_of, copy.blocks, copy.bit
        for name in names:
            if name not in blocks:
                continue
            blocks.discard(name)
            self._lift(copy, name)
            left = workers_of[name] & ~bit
            if left:
                workers_of[name] = left
            else:
                del workers_of[name]

    def _lift(self, copy: _Copy, name: int) -> None:
        """No lower tier of the worker is the highest that has the block."""
        bit = copy.bit
        copy.on_disk.pop(name, None)
        for tier in self._below:
            if (workers := tier.get(name, 0)) & bit:
                if workers == bit:
                    del tier[name]
                else:
                    tier[name] = workers & ~bit
