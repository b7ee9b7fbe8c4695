"""How many threads one operation takes: measured at start under the present load, and again when steps become slow.

As many threads as cores are the fastest on an idle machine.  On a busy one a thread that waits for a core holds up all
others at the end of every operation, for milliseconds, and one thread is many times as fast.  So small matrix products
are timed with several numbers of threads, in turns, and the lowest mean wins: the slow ones are what matters.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from stratos.common.clock import Clock

ROUNDS, CALLS = 6, 8
MIN_GAIN = 0.95
"""More threads must be this much faster than fewer."""
SLOW_RATIO, WINDOW, SLOW_STEPS = 3.0, 16, 12
"""Probe again when ``SLOW_STEPS`` of the last ``WINDOW`` steps took this many times the best step of their size."""
MIN_PROBE_INTERVAL_S, MAX_PROBE_INTERVAL_S = 5.0, 300.0
PROBE_SIZE = 1024

_log = logging.getLogger(__name__)


def thread_candidates(available: int) -> tuple[int, ...]:
    """Numbers worth trying when torch would take ``available`` threads."""
    return tuple(sorted({1, max(1, available // 2), available}))


def measure(candidates: Sequence[int], operation: Callable[[], object], clock: Clock) -> dict[int, float]:
    """Mean seconds of ``operation`` with each number of threads. Leaves the calling thread with the last one."""
    seconds = dict.fromkeys(candidates, 0.0)
    for _ in range(ROUNDS):
        for count in candidates:
            torch.set_num_threads(count)
            operation()
            begin = clock.now()
            for _ in range(CALLS):
                operation()
            seconds[count] += (clock.now() - begin) / (ROUNDS * CALLS)
    return seconds


def best(seconds: dict[int, float]) -> int:
    """The fastest number of threads; fewer where the gain is small."""
    chosen = min(seconds)
    for count in sorted(seconds):
        if seconds[count] < MIN_GAIN * seconds[chosen]:
            chosen = count
    return chosen


class ThreadChoice:
    """Chooses for the thread that calls it, and chooses again when it has reason to.

    Args:
        available: maximum number of threads, usually what torch takes by itself.
        operation: a small parallel operation of the kind that steps are made of.
        clock: time.
    """

    def __init__(self, available: int, operation: Callable[[], object], clock: Clock) -> None:
        self._candidates = thread_candidates(available)
        self._operation, self._clock = operation, clock
        self._best_s: dict[int, float] = {}
        self._is_slow: deque[bool] = deque(maxlen=WINDOW)
        self._interval_s = MIN_PROBE_INTERVAL_S
        self._next_probe_s = 0.0
        self.num_threads = available
        self.is_fixed = len(self._candidates) == 1
        """Never choose again."""
        if not self.is_fixed:
            self._probe(is_first=True)

    def _probe(self, is_first: bool = False) -> None:
        seconds = measure(self._candidates, self._operation, self._clock)
        chosen = best(seconds)
        torch.set_num_threads(chosen)
        if is_first or chosen != self.num_threads:
            times = ", ".join(f"{count}: {value * 1e6:.0f} us" for count, value in seconds.items())
            _log.info("computing with %d thread(s); a small product takes, by threads: %s", chosen, times)
            self._best_s.clear()
            self._interval_s = MIN_PROBE_INTERVAL_S
        else:
            self._interval_s = min(2 * self._interval_s, MAX_PROBE_INTERVAL_S)
        self.num_threads = chosen
        self._is_slow.clear()
        self._next_probe_s = self._clock.now() + self._interval_s

    @contextmanager
    def watching(self, num_tokens: int) -> Iterator[None]:
        """Around a step of the calling thread; may probe afterwards, which takes some milliseconds."""
        if self.is_fixed:
            yield
            return
        begin = self._clock.now()
        yield
        seconds, size = self._clock.now() - begin, num_tokens.bit_length()
        fastest = self._best_s[size] = min(seconds, self._best_s.get(size, seconds))
        self._is_slow.append(seconds > SLOW_RATIO * fastest)
        is_doubtful = self.num_threads < self._candidates[-1] or sum(self._is_slow) >= SLOW_STEPS
        if is_doubtful and self._clock.now() >= self._next_probe_s:
            self._probe()


def small_product(
    make_linear: Callable[[Tensor], Callable[[Tensor], Tensor]], dtype: torch.dtype
) -> Callable[[], Tensor]:
    """Two rows times a matrix that fits into a core's cache: the kind of product that decode is made of."""
    linear, rows = make_linear(torch.ones(PROBE_SIZE, PROBE_SIZE, dtype=dtype)), torch.ones(2, PROBE_SIZE, dtype=dtype)
    return lambda: linear(rows)
