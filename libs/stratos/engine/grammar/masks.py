"""Bit masks of the tokens that grammars allow next, filled in parallel beside the forward pass.

One mask is int32 words [ceil(vocab / 32)]: bit ``t % 32`` of word ``t // 32`` is token ``t``.  llguidance's own
threads fill a batch without the GIL; a single thread of ours starts them, so that the step loop can go on.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from stratos.common.clock import Clock
from stratos.engine.grammar.forced_tokens import SEVERAL
from stratos.engine.grammar.matcher import GrammarMatcher

Place = tuple[int, int]
"""A seq_id, and how many drafted tokens come before: 0 is the place after the sequence's own tokens."""
Masks = Mapping[Place, npt.NDArray[np.int32]]
"""By place; sequences without a grammar have none."""
WATCH_S = 0.02
"""After a batch that took longer, masks are filled one by one, so that each matcher learns its own part of it."""


class PendingMasks:
    """Masks that are being filled.

    Args:
        places: of the rows.
        rows: int32 [places, words].
        learning: matchers to be told which token their row allows alone, by row.
        filled: when all rows are.
    """

    def __init__(
        self,
        places: list[Place],
        rows: npt.NDArray[np.int32],
        learning: dict[int, GrammarMatcher],
        filled: Future[None] | None,
    ) -> None:
        self._places, self._rows, self._learning, self._filled = places, rows, learning, filled

    def wait(self) -> Masks:
        """The masks; they stay valid."""
        if self._filled is not None:
            self._filled.result()
        if self._learning:
            indexes = list(self._learning)
            for matcher, token_id in zip(self._learning.values(), only_tokens(self._rows[indexes]), strict=True):
                matcher.learn(token_id)
            self._learning = {}
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
        bits, batch = rows.view(np.uint32), dict[int, GrammarMatcher]()
        for index, matcher in enumerate(matchers.values()):
            token_id = matcher.known_token
            if token_id >= 0:
                bits[index, token_id // 32] = 1 << token_id % 32
            else:
                batch[index] = matcher
        filled = None
        if self._pool is not None and batch:
            filled = self._pool.submit(self.fill_batch, batch, rows)
        else:
            fill_each(batch, rows)
        learning = {index: matcher for index, matcher in batch.items() if matcher.can_learn}
        return PendingMasks(list(matchers), rows, learning, filled)

    def fill_batch(self, batch: Mapping[int, GrammarMatcher], rows: npt.NDArray[np.int32]) -> None:
        """Runs in the thread of ``_pool``."""
        if len(batch) == 1 or self._is_watching:
            begin = time.thread_time()
            fill_each(batch, rows)
            self._is_watching = time.thread_time() - begin > WATCH_S
            return
        if self._executor is None:
            self._executor = LLExecutor()
        begin = self._clock.now()
        places = [(matcher.compiled, index) for index, matcher in batch.items()]
        self._executor.unsafe_compute_mask_ptr(places, rows.ctypes.data, rows.shape[1] * rows.itemsize, len(rows))
        self._is_watching = self._clock.now() - begin > WATCH_S


def fill_each(batch: Mapping[int, GrammarMatcher], rows: npt.NDArray[np.int32]) -> None:
    """Row by row, in the calling thread; matchers by their rows."""
    address, size = rows.ctypes.data, rows.shape[1] * rows.itemsize
    for index, matcher in batch.items():
        matcher.fill_mask(address + index * size, size)


def only_tokens(rows: npt.NDArray[np.int32]) -> Iterable[int]:
    """The one token that each row allows, or ``SEVERAL``."""
    bits = rows.view(np.uint32)
    words = (bits != 0).argmax(axis=1)
    for row, word, num_words in zip(bits, words.tolist(), np.count_nonzero(bits, axis=1).tolist(), strict=True):
        value = int(row[word])
        is_one = num_words == 1 and value & (value - 1) == 0
        yield word * 32 + value.bit_length() - 1 if is_one else SEVERAL
