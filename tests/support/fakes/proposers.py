"""Proposers of drafts that are always right, always wrong, or guess."""

from __future__ import annotations

import random
from collections.abc import Mapping
from collections.abc import Sequence as Series

from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.proposer import Proposer


class KnowingProposer(Proposer):
    """Drafts what a run without drafts gave: always right.

    Args:
        streams: output tokens by (request id, choice).
        error: added to every token, modulo ``vocab_size``: 0 is right, everything else always wrong.
        num_right: tokens of each draft before the error begins.
    """

    def __init__(
        self,
        streams: Mapping[tuple[str, int], Series[int]],
        vocab_size: int,
        *,
        error: int = 0,
        num_right: int = 0,
    ) -> None:
        self._streams, self._vocab_size, self._error, self._num_right = streams, vocab_size, error, num_right
        self.num_asked = 0

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        assert sequence.request is not None
        self.num_asked += 1
        stream = self._streams[sequence.request.key.request_id, sequence.choice]
        tokens = stream[sequence.num_output : sequence.num_output + max_tokens]
        wrong = [(token + self._error) % self._vocab_size for token in tokens[self._num_right :]]
        return [*tokens[: self._num_right], *wrong]


class GuessingProposer(KnowingProposer):
    """Drafts tokens of which each is right with a chance of ``share``; drafts of any length, none included."""

    def __init__(
        self, streams: Mapping[tuple[str, int], Series[int]], vocab_size: int, share: float = 0.6, seed: int = 3
    ) -> None:
        super().__init__(streams, vocab_size)
        self._random, self._share = random.Random(seed), share

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        tokens = super().propose(sequence, state, self._random.randint(0, max_tokens))
        return [
            token if self._random.random() < self._share else self._random.randrange(self._vocab_size)
            for token in tokens
        ]


class BrokenProposer(Proposer):
    """Raises, or drafts what is no token."""

    def __init__(self, drafts: Series[int] | None = None) -> None:
        self._drafts, self.num_asked = drafts, 0

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        self.num_asked += 1
        if self._drafts is None:
            raise RuntimeError("the test makes the proposer fail")
        return self._drafts


def proposers(streams: Mapping[tuple[str, int], Series[int]], vocab_size: int) -> dict[str, KnowingProposer]:
    """One of each kind that answers."""
    return {
        "right": KnowingProposer(streams, vocab_size),
        "wrong": KnowingProposer(streams, vocab_size, error=1),
        "wrong after two": KnowingProposer(streams, vocab_size, error=1, num_right=2),
        "random": GuessingProposer(streams, vocab_size),
    }
