"""Bit masks of the tokens that grammars allow next, filled in parallel beside the forward pass.

One mask is int32 words [ceil(vocab / 32)]: bit ``t % 32`` of word ``t // 32`` is token ``t``.  llguidance's own
threads fill a batch without the GIL; a single thread of ours starts them, so that the step loop can go on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from stratos.common.clock import Clock
from stratos.engine.grammar.matcher import GrammarMatcher

Place = tuple[int, int]
"""A seq_id, and how many drafted tokens come before: 0 is the place after the sequence's own tokens."""
Masks = Mapping[Place, npt.NDArray[np.int32]]
"""By place; sequences without a grammar have none."""
WATCH_S = 0.02
"""After a batch that took longer, masks are filled one by one, so that each matcher learns its own part of it."""


class PendingMasks:
    """Masks that are being filled."""

    def __init__(self, places: list[Place], rows: npt.NDArray[np.int32], filled: Future[None] | None) -> None:
        self._places, self._rows, self._filled = places, rows, filled

    def wait(self) -> Masks:
        """The masks; they stay valid."""
        if self._filled is not None:
            self._filled.result()
        return dict(zip(self._places, self._rows, strict=True))


class MaskFiller:
    """Fills masks for a step.

    Args:
        vocab_size: of the model's output.
        is_parallel: fill in threads, during the caller's work; off fills before ``start`` returns.
        clock: times batches.
    """

    def __init__(self, vocab_size: int, *, is_parallel: bool, clock: Clock) -> None:
        self._num_words = (vocab_size + 31) // 32
        self._executor: LLExecutor | None = None
        self._clock = clock
        self._is_watching = False
        self._pool = ThreadPoolExecutor(1, "grammar-masks") if is_parallel else None

    def start(self, matchers: Mapping[Place, GrammarMatcher]) -> PendingMasks:
        """Begin to fill masks; their matchers must not advance before ``wait``."""
        rows = np.zeros((len(matchers), self._num_words), dtype=np.int32)
        batch = list(matchers.values())
        if self._pool is not None and batch:
            return PendingMasks(list(matchers), rows, self._pool.submit(self.fill_batch, batch, rows))
        fill_each(batch, rows)
        return PendingMasks(list(matchers), rows, None)

    def fill_batch(self, batch: list[GrammarMatcher], rows: npt.NDArray[np.int32]) -> None:
        """Runs in the thread of ``_pool``."""
        if len(batch) == 1 or self._is_watching:
            begin = time.thread_time()
            fill_each(batch, rows)
            self._is_watching = time.thread_time() - begin > WATCH_S
            return
        if self._executor is None:
            self._executor = LLExecutor()
        begin = self._clock.now()
        places = [(matcher.compiled, place) for place, matcher in enumerate(batch)]
        self._executor.unsafe_compute_mask_ptr(places, rows.ctypes.data, rows.shape[1] * rows.itemsize, len(rows))
        self._is_watching = self._clock.now() - begin > WATCH_S


def fill_each(batch: list[GrammarMatcher], rows: npt.NDArray[np.int32]) -> None:
    """Row by row, in the calling thread."""
    address, size = rows.ctypes.data, rows.shape[1] * rows.itemsize
    for place, matcher in enumerate(batch):
        matcher.fill_mask(address + place * size, size)
