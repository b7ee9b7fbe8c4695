"""The drafts of one sequence: forced by its grammar, else a proposer's, and cut before what can never be accepted.

Of each kind of draft it is learned how often it is right.  A sequence whose drafts do not run is looked at less and
less often, so that they cost nothing where they do not pay.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from stratos.engine.contract.results import FAILED, DraftCount
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.draft_lengths import DraftLengths
from stratos.engine.speculation.proposer import Proposer

_log = logging.getLogger(__name__)
GRAMMAR = "grammar"
"""Who drafted what a grammar forces."""
MAX_GAP = 8
"""Tokens between two looks at a sequence whose drafts do not run."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts of a sequence for the step that is planned."""

    sequence: Sequence
    state: DraftState
    drafts: tuple[int, ...]


class Drafting:
    """Asks for drafts, and keeps what becomes of them.

    Args:
        proposer: drafts where no grammar forces tokens.
        vocab_size: tokens that there are.
        end_token_ids: nothing follows them, so they are not drafted.
        lengths: learns how often drafts are right; ``None`` where all of them run.
    """

    def __init__(
        self, proposer: Proposer, vocab_size: int, end_token_ids: tuple[int, ...], lengths: DraftLengths | None
    ) -> None:
        self._proposer, self._vocab_size, self._ends, self._lengths = proposer, vocab_size, end_token_ids, lengths
        self.counts: list[DraftCount] = []
        """What was cut, or failed, since they were taken last."""

    def offer(self, sequence: Sequence, most: int) -> Offer | None:
        """Drafts of the sequence, at most so many."""
        state = sequence.drafting = sequence.drafting or DraftState()
        if self._lengths is not None:
            self._lengths.learn(sequence, state)
        drafts = self._forced(sequence, most)
        if drafts:
            state.method = GRAMMAR
        elif len(sequence.tokens) >= state.next_look:
            state.method = self._proposer.name
            drafts = self._cut(sequence, self._proposed(sequence, state, most))
            if not drafts:
                self.pause(sequence, state)
        state.proposed, state.num_known = drafts, len(sequence.tokens)
        return Offer(sequence, state, drafts) if drafts else None

    def pause(self, sequence: Sequence, state: DraftState) -> None:
        """No draft of the sequence runs: look at it again some tokens later."""
        if self._lengths is not None:
            state.gap = min(max(1, 2 * state.gap), MAX_GAP)
            state.next_look = len(sequence.tokens) + state.gap

    def resume(self, state: DraftState) -> None:
        """A draft of the sequence runs."""
        state.gap = state.next_look = 0

    def _forced(self, sequence: Sequence, most: int) -> tuple[int, ...]:
        if sequence.grammar is None:
            return ()
        return tuple(sequence.grammar.forced()[:most])

    def _proposed(self, sequence: Sequence, state: DraftState, most: int) -> tuple[int, ...]:
        """Checked tokens of the proposer; one that fails is not asked for this sequence again."""
        if state.is_off:
            return ()
        try:
            drafts = tuple(self._proposer.propose(sequence, state, most))[:most]
            if any(not 0 <= token < self._vocab_size for token in drafts):
                raise ValueError("a drafted token is not in the vocabulary")
        except Exception:
            _log.exception("the proposer of drafts failed; the request goes on without them")
            state.is_off, drafts = True, ()
            self._count(sequence, FAILED)
        return drafts

    def _cut(self, sequence: Sequence, drafts: tuple[int, ...]) -> tuple[int, ...]:
        """The drafts before an end, which the target draws itself, and before what the grammar forbids."""
        for place, token in enumerate(drafts):
            if token in self._ends:
                drafts = drafts[:place]
                break
        if sequence.grammar is None or not drafts:
            return drafts
        num_allowed = sequence.grammar.num_allowed(drafts)
        if num_allowed < len(drafts):
            self._count(sequence, self._proposer.name, num_cut=len(drafts) - num_allowed)
        return drafts[:num_allowed]

    def _count(self, sequence: Sequence, method: str, num_cut: int = 0) -> None:
        assert sequence.request is not None
        self.counts.append(DraftCount(key=sequence.request.key, method=method, num_cut=num_cut))
