"""Whether reading blocks from disk beats computing them, by the measured speed of both."""

from __future__ import annotations

from stratos.common.clock import Clock
from stratos.engine.kv_cache.swap_costs import MeasuredRate, SwapCosts, is_move_cheaper, load_ratio

UNKNOWN_S = 1.0
"""Longest load while it is not known how fast computing is; a block that is being read ends later."""


class DiskCosts:
    """Guarded by the core's lock.

    Args:
        block_bytes: size of a file.
        above: costs of host memory, which know how fast computing is.
        always: blocks are read wherever there are some.
    """

    def __init__(self, block_bytes: int, above: SwapCosts, clock: Clock, *, always: bool) -> None:
        self._block_bytes, self._above, self._always, self._rate = block_bytes, above, always, MeasuredRate(clock)

    @property
    def load_ratio(self) -> float:
        """Time to load a block over the time to compute it, 1 at most."""
        return load_ratio(self._block_bytes, self._above.block_size, self._rate.value, self._above.tokens_per_s)

    def is_worth(self, num_blocks: int) -> bool:
        """Reading blocks takes less time than computing them, as far as both were measured."""
        num_bytes, num_tokens = num_blocks * self._block_bytes, num_blocks * self._above.block_size
        return self._always or is_move_cheaper(num_bytes, num_tokens, self._rate.value, self._above.tokens_per_s, 1)

    def compute_s(self, num_blocks: int) -> float:
        """Seconds that computing the blocks takes; ``UNKNOWN_S`` before any were measured."""
        tokens_per_s = self._above.tokens_per_s
        if self._always or tokens_per_s is None:
            return UNKNOWN_S
        return num_blocks * self._above.block_size / tokens_per_s

    def observe(self, num_blocks: int, seconds: float) -> None:
        """So many were read in so long."""
        if num_blocks and seconds > 0:
            self._rate.observe(num_blocks * self._block_bytes / seconds)
