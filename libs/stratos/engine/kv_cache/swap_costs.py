"""Whether moving KV between device and host is cheaper than computing it again, from what was measured.

Owns two rates, updated while the engine runs: bytes/s of copies between the tiers, and tokens/s of prefill.  Until
both are known the answer is to move: the first copies measure the one, the first prompts the other.

A rate that was not measured for ``FORGET_S`` is unknown again.  Else one slow measurement, as the first copies into
fresh memory or one beside a busy device, would end all copies, and with them all measurements, for good.
Knows no blocks and no torch.
"""

from __future__ import annotations

from stratos.common.clock import Clock

SMOOTHING = 0.2
"""Weight of the newest measurement in a rate."""
FORGET_S = 30.0
"""Where copies do not pay, some are made all the same once in so many seconds, to measure them."""
UNKNOWN_RATIO = 0.25
"""Loading is taken for so much of computing before both were measured: it is tried then."""
MIN_PREFILL_TOKENS = 16
"""Steps with fewer prompt tokens measure the fixed cost of a step rather than prefill."""


def is_move_cheaper(
    num_bytes: int, num_tokens: int, bytes_per_s: float | None, tokens_per_s: float | None, num_moves: int
) -> bool:
    """Whether ``num_moves`` copies of ``num_bytes`` take less time than computing ``num_tokens`` again.

    A rate that is ``None`` is unknown; then the copy is tried.
    """
    if bytes_per_s is None or tokens_per_s is None:
        return True
    return num_moves * num_bytes / bytes_per_s < num_tokens / tokens_per_s


def load_ratio(num_bytes: int, num_tokens: int, bytes_per_s: float | None, tokens_per_s: float | None) -> float:
    """Time to copy ``num_bytes`` over the time to compute ``num_tokens``, 1 at most.

    ``UNKNOWN_RATIO`` where a rate is ``None``.
    """
    if bytes_per_s is None or tokens_per_s is None:
        return UNKNOWN_RATIO
    return min(1.0, num_bytes * tokens_per_s / (bytes_per_s * num_tokens))


class MeasuredRate:
    """Units per second, as far as it was measured lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._value, self._measured_s = clock, 0.0, float("-inf")

    @property
    def value(self) -> float | None:
        return self._value if self._clock.now() - self._measured_s < FORGET_S else None

    def observe(self, measured: float) -> None:
        known = self.value
        self._value = measured if known is None else (1 - SMOOTHING) * known + SMOOTHING * measured
        self._measured_s = self._clock.now()


class SwapCosts:
    """Rates of one engine.

    Args:
        block_bytes: of KV in a block.
        block_size: tokens of a block.
        clock: of the engine.
    """

    def __init__(self, block_bytes: int, block_size: int, clock: Clock) -> None:
        self.block_bytes, self.block_size = block_bytes, block_size
        self._copies, self._prefill = MeasuredRate(clock), MeasuredRate(clock)

    @property
    def bytes_per_s(self) -> float | None:
        """Rate of copies between the tiers; ``None`` is unknown."""
        return self._copies.value

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of prefill; ``None`` is unknown."""
        return self._prefill.value

    def load_ratio(self) -> float:
        """Time to load a block over the time to compute it."""
        return load_ratio(self.block_bytes, self.block_size, self.bytes_per_s, self.tokens_per_s)

    def observe_copies(self, num_blocks: int, seconds: float) -> None:
        if num_blocks and seconds > 0:
            self._copies.observe(num_blocks * self.block_bytes / seconds)

    def observe_prefill(self, num_prompt_tokens: int, num_tokens: int, seconds: float) -> None:
        """A step ran ``num_tokens``, of them ``num_prompt_tokens`` in rows of several; mostly decodes say nothing."""
        if num_prompt_tokens >= max(MIN_PREFILL_TOKENS, num_tokens / 2) and seconds > 0:
            self._prefill.observe(num_tokens / seconds)

    def is_swap_worth(self, num_tokens: int, num_blocks: int | None = None) -> bool:
        """Swap a sequence's blocks, by default all, out and in again, rather than compute its tokens again."""
        return self._is_worth(num_tokens, num_moves=2, num_blocks=num_blocks)

    def is_load_worth(self, num_blocks: int) -> bool:
        """Load blocks that are in host memory, rather than compute them again."""
        return self._is_worth(num_blocks * self.block_size, num_moves=1)

    def is_keep_worth(self) -> bool:
        """Copy a block that the device pool gives up, on the chance that a later request needs it."""
        return self._is_worth(self.block_size, num_moves=2)

    def _is_worth(self, num_tokens: int, num_moves: int, num_blocks: int | None = None) -> bool:
        num_bytes = (num_blocks or -(-num_tokens // self.block_size)) * self.block_bytes
        return is_move_cheaper(num_bytes, num_tokens, self.bytes_per_s, self.tokens_per_s, num_moves)
