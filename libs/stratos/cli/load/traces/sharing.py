"""Hash ids of prompts that share their beginnings with earlier ones as often as a trace does."""

from __future__ import annotations

from collections import deque
from random import Random

from stratos.cli.load.traces.mooncake import BLOCK_TOKENS

SHARING_SHARE = 0.7
"""Requests that may share; the others begin a prompt of their own."""
NUM_REMEMBERED = 512
NUM_CANDIDATES = 4


class PrefixSharing:
    """Ids for one prompt after the other.

    Args:
        hit_ratio: share of all blocks that an earlier prompt had, which is steered to.
        rng: draws whose beginning a prompt has.
    """

    def __init__(self, hit_ratio: float, rng: Random) -> None:
        self._hit_ratio = hit_ratio
        self._rng = rng
        self._earlier: deque[tuple[int, ...]] = deque(maxlen=NUM_REMEMBERED)
        self._next_id = self._num_blocks = self._num_hits = 0

    def ids(self, num_prompt_tokens: int) -> tuple[int, ...]:
        """Ids of the next prompt."""
        num_blocks = -(-num_prompt_tokens // BLOCK_TOKENS)
        self._num_blocks += num_blocks
        shared: tuple[int, ...] = ()
        if self._earlier and self._rng.random() < SHARING_SHARE:
            wanted = round(self._hit_ratio * self._num_blocks) - self._num_hits
            # Of a few, the longest: most prompts are too short for what a long one shares.
            longest = max((self._rng.choice(self._earlier) for _ in range(NUM_CANDIDATES)), key=len)
            shared = longest[: max(0, min(wanted, num_blocks - 1))]
        self._num_hits += len(shared)
        own = range(self._next_id, self._next_id + num_blocks - len(shared))
        self._next_id = own.stop
        found = (*shared, *own)
        self._earlier.append(found)
        return found
