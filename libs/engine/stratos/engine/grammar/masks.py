"""Bit masks of the tokens that grammars allow next, filled in parallel beside the forward pass.

One mask is int32 words [ceil(vocab / 32)]: bit ``t % 32`` of word ``t // 32`` is token ``t``.  llguidance's own
threads fill a batch without the GIL; a single thread of ours starts them, so that the step loop can go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher

from stratos.engine.grammar.matcher import GrammarMatcher

Masks = Mapping[int, npt.NDArray[np.int32]]
"""By seq_id; sequences without a grammar have none."""
NO_MASKS: Masks = {}


class PendingMasks:
    """Masks that are being filled."""

    def __init__(self, seq_ids: list[int], rows: npt.NDArray[np.int32], filled: Future[None] | None) -> None:
        self._seq_ids, self._rows, self._filled = seq_ids, rows, filled

    def wait(self) -> Masks:
        """The masks; they stay valid."""
        if self._filled is not None:
            self._filled.result()
        return {seq_id: self._rows[place] for place, seq_id in enumerate(self._seq_ids)}


class MaskFiller:
    """Fills masks for a step.

    Args:
        vocab_size: of the model's output.
        is_parallel: fill in threads, beside whoever asked; off fills before ``start`` returns.
    """

    def __init__(self, vocab_size: int, *, is_parallel: bool) -> None:
        self._num_words = (vocab_size + 31) // 32
        self._executor: LLExecutor | None = None
        self._pool = ThreadPoolExecutor(1, "grammar-masks") if is_parallel else None

    def start(self, matchers: Mapping[int, GrammarMatcher]) -> PendingMasks:
        """Begin to fill the masks of sequences by seq_id; their matchers must not advance before ``wait``."""
        rows = np.zeros((len(matchers), self._num_words), dtype=np.int32)
        places = [(matcher.compiled, place) for place, matcher in enumerate(matchers.values())]
        if self._pool is not None and len(places) > 0:
            return PendingMasks(list(matchers), rows, self._pool.submit(self._fill_batch, places, rows))
        for compiled, place in places:
            compiled.unsafe_compute_mask_ptr(rows[place].ctypes.data, rows.shape[1] * rows.itemsize)
        return PendingMasks(list(matchers), rows, None)

    def _fill_batch(self, places: list[tuple[LLMatcher, int]], rows: npt.NDArray[np.int32]) -> None:
        if self._executor is None:
            self._executor = LLExecutor()
        self._executor.unsafe_compute_mask_ptr(places, rows.ctypes.data, rows.shape[1] * rows.itemsize, len(rows))
