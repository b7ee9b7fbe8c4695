"""Blocks that are given back while a launched step still touches them.

A step that is launched and not collected reads and writes the blocks of its plan at an unknown time.  Writers outside
of its order (a scatter, a copy to host memory) must not get such a block, so it is fenced until the step retires:

    plan 7 is launched with sequence A in blocks 3 and 4; plan 6 has retired
    A is aborted       release([3, 4], 7): 7 > 6, so both are fenced, then released: FENCED, no allocation gets them
    plan 8 is launched, plan 7 is collected
                       retire(7): both are unfenced: CACHED where they have a hash, else FREE

The tokens that plan 7 sampled for A are dropped by A's epoch (``Sequence.epoch``), not by the fence.
Owns nothing but the list of what it fenced; the block manager owns states and counts.
"""

from __future__ import annotations

from stratos.engine.kv_cache.block_manager import BlockManager


class StepFences:
    """Fences by the plan they wait for."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._waiting: dict[int, list[list[int]]] = {}
        self._retired = -1

    @property
    def is_pending(self) -> bool:
        """Blocks come back when the launched step retires."""
        return bool(self._waiting)

    def is_launched(self, plan: int) -> bool:
        return plan > self._retired

    def release(self, blocks: list[int], plan: int) -> None:
        """Take one reference from each block; what no sequence references then is fenced until ``plan`` has retired."""
        if blocks and self.is_launched(plan):
            self._blocks.fence(blocks)  # before the release: a block must not be free in between
            self._waiting.setdefault(plan, []).append(blocks)
        self._blocks.release(blocks)

    def retire(self, plan: int) -> None:
        """``plan`` and all before it are collected, or will never touch a block again."""
        self._retired = max(self._retired, plan)
        for number in [number for number in self._waiting if number <= plan]:
            for blocks in self._waiting.pop(number):
                self._blocks.unfence(blocks)
