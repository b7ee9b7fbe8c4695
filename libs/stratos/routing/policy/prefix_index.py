"""Which workers hold which blocks: the routers' copy of the prefix caches of all workers that they follow.

    block hash -> workers, as bits of an integer          so a prompt is matched against all workers in one walk
    worker     -> number of its last change, its blocks   so a lost change is noticed, and a dead worker leaves nothing

A worker is a process (an incarnation).  Its changes are numbered; changes that do not follow on the ones before are not
applied, and the caller asks for those in between, or for a dump.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stratos.core.cache_changes import CacheChanges


@dataclass(slots=True)
class _Copy:
    """Copy of one worker's cache."""

    bit: int
    last: int = 0
    blocks: set[int] = field(default_factory=set)


class PrefixIndex:
    """Belongs to one thread.

    Args:
        max_blocks: of a worker; more are left out, so its prompts match less than there is.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._workers_of: dict[int, int] = {}
        self._copies: dict[str, _Copy] = {}
        self._incarnation_of: dict[int, str] = {}
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
        copy.last = changes.last
        return True

    def drop(self, incarnation: str) -> None:
        """The process is gone, or its cache is not followed any more."""
        copy = self._copies.pop(incarnation, None)
        if copy is not None:
            self._remove(copy, tuple(copy.blocks))
            del self._incarnation_of[copy.bit]
            self._free_bits.append(copy.bit)

    def match(self, names: Sequence[int]) -> dict[str, int]:
        """How many blocks of a chain each worker has, from the first on; workers without the first are left out."""
        matched: dict[str, int] = {}
        left, depth = -1, 0
        for name in names:
            have = left & self._workers_of.get(name, 0)
            if depth and have != left:
                self._note(matched, left & ~have, depth)
            left = have
            if not left:
                return matched
            depth += 1
        if depth:
            self._note(matched, left, depth)
        return matched

    def _note(self, matched: dict[str, int], workers: int, depth: int) -> None:
        while workers:
            bit = workers & -workers
            matched[self._incarnation_of[bit]] = depth
            workers ^= bit

    def _add_worker(self, incarnation: str) -> _Copy:
        bit = self._free_bits.pop() if self._free_bits else 1 << len(self._copies)
        self._incarnation_of[bit] = incarnation
        copy = self._copies[incarnation] = _Copy(bit)
        return copy

    def _store(self, copy: _Copy, names: Iterable[int]) -> None:
        workers_of, blocks, bit = self._workers_of, copy.blocks, copy.bit
        for name in names:
            if len(blocks) >= self._max_blocks:
                self.num_left_out += name not in blocks
                continue
            blocks.add(name)
            workers_of[name] = workers_of.get(name, 0) | bit

    def _remove(self, copy: _Copy, names: Iterable[int]) -> None:
        workers_of, blocks, bit = self._workers_of, copy.blocks, copy.bit
        for name in names:
            if name not in blocks:
                continue
            blocks.discard(name)
            left = workers_of[name] & ~bit
            if left:
                workers_of[name] = left
            else:
                del workers_of[name]
