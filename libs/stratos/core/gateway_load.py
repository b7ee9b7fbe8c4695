"""Load of a gateway: requests open now, and how the answers of the last minute were.

First tokens are counted by bounds that grow by a quarter of a power of two and hit 0.5 s and 1 s exactly, so counts of
several gateways can be added and a percentile of the sum is known within a fifth.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TTFT_BOUNDS_S: tuple[float, ...] = tuple(2.0 ** (step / 4) for step in range(-26, 25))
"""Upper bounds of the counts; one more count holds what took longer: 11 ms to 64 s."""
NUM_TTFT_COUNTS = len(TTFT_BOUNDS_S) + 1
WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLoad:
    """One gateway process at one moment."""

    gateway: str
    """Incarnation of its process."""
    model_digest: str
    num_open: int = 0
    """Requests for tokens or vectors that are open."""
    num_judged: int = 0
    """Answers of the last minute whose tenant's plan promises a time."""
    num_violations: int = 0
    """Answers among them that broke one."""
    first_tokens: tuple[int, ...] = ()
    """First tokens of the last minute, by ``TTFT_BOUNDS_S``; empty means none."""
    num_batch_lines: int | None = None
    """Lines of open batches that are not answered, of all gateways: each of them tells the same; ``None`` where it does
    not know."""
    num_batch_lines_due: int | None = None
    """Lines of them to be answered within an hour, so that each batch keeps its window by going on evenly."""
    client_age_ms: int | None = None
    """Since a request above the batch class was open, when the gateway said so; 0 while one is, ``None`` where the last
    minute had none."""
    age_s: float = 0.0
    """Since the gateway said so."""

    @property
    def client_age_s(self) -> float:
        """Since a request above the batch class was open; infinity where there was none."""
        return float("inf") if self.client_age_ms is None else self.client_age_ms / 1000 + self.age_s


def num_batch_lines(loads: Iterable[GatewayLoad]) -> int | None:
    """Lines of open batches, as the gateways tell that know; ``None`` where none does."""
    return max((load.num_batch_lines for load in loads if load.num_batch_lines is not None), default=None)


def num_batch_lines_due(loads: Iterable[GatewayLoad]) -> int | None:
    """Lines of them that are due within an hour; ``None`` where no gateway knows."""
    return max((load.num_batch_lines_due for load in loads if load.num_batch_lines_due is not None), default=None)


def ttft_place(ttft_s: float) -> int:
    """Which count a first token belongs to."""
    return bisect_left(TTFT_BOUNDS_S, ttft_s)


def ttft_percentile(loads: Iterable[GatewayLoad], share: float) -> float | None:
    """Seconds within which this share of the last minute's first tokens came, rounded up to a bound.

    Returns:
        ``None`` where no first token came; infinity where it is above the last bound.
    """
    counts = _sum([load.first_tokens for load in loads if load.first_tokens])
    wanted = share * sum(counts)
    if not wanted:
        return None
    so_far = 0
    for count, bound in zip(counts, TTFT_BOUNDS_S, strict=False):
        so_far += count
        if so_far >= wanted:
            return bound
    return float("inf")


def _sum(counts: Sequence[Sequence[int]]) -> list[int]:
    return [sum(same) for same in zip(*counts, strict=True)]
