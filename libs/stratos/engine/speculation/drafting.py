"""The drafts of a step's sequences: forced by a grammar, else a proposer's, and cut before what is never accepted.

Of each kind of draft it is learned how often it is right.  A sequence whose drafts do not run is looked at less and
less often, so that they cost nothing where they do not pay.  Where drafting itself takes time, how much is drafted is
chosen before; a look at a sequence whose drafts do not pay is then a probe of two tokens that do not run.  What has to
be done before it can be drafted for a sequence at all is done once drafts would have saved as much: an answer that ends
soon pays for none of it, and a long one no more than twice (the ski rental problem).  Drafts that lose all the same
rest (``draft_purse``); those that a grammar forces do not.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence as Series
from dataclasses import dataclass

from stratos.common.clock import Clock
from stratos.engine.contract.results import FAILED, DraftCount
from stratos.engine.scheduler.cost_model import StepLoad
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.draft_lengths import DraftLengths
from stratos.engine.speculation.proposer import DraftAsk, Proposer

_log = logging.getLogger(__name__)
GRAMMAR = "grammar"
"""Who drafted what a grammar forces."""
NUM_PROBED, PROBED_ROWS, PROBING_SHARE = 2, 1, 0.005
"""Tokens of a probe, probes of a step, and the share of the steps' time that they may take."""
MAX_BLIND_GAP = 4
"""Tokens between two looks where there was no guess: a copy may begin at any token, and pays from its first on."""
EARNING_GAP = 4
"""Tokens between two looks at what drafts would have saved: one takes a tenth of a millisecond."""
MAX_LOOK_S = 1.0
"""A proposer that takes longer is not asked for these sequences again."""
FIRST_REST_S, LONGEST_REST_S = 10.0, 600.0
"""Time without a look after one that failed, twice as long each time: else each new request pays for the next one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts of a sequence for the step that is planned."""

    sequence: Sequence
    state: DraftState
    drafts: tuple[int, ...]
    length: int | None = None
    """Drafted tokens that run, where that was chosen before they were drafted."""


class Drafting:
    """Asks for drafts, and keeps what becomes of them.

    Args:
        proposer: drafts where no grammar forces tokens.
        vocab_size: tokens that there are.
        end_token_ids: nothing follows them, so they are not drafted.
        lengths: learns how often drafts are right; ``None`` where all of them run.
        clock: notices a proposer that takes too long.
    """

    def __init__(
        self,
        proposer: Proposer,
        vocab_size: int,
        end_token_ids: tuple[int, ...],
        lengths: DraftLengths | None,
        clock: Clock,
    ) -> None:
        self._proposer, self._vocab_size, self._ends, self._lengths = proposer, vocab_size, end_token_ids, lengths
        self._clock = clock
        self._known: dict[int, Sequence] = {}
        self._counts: list[DraftCount] = []
        self._rest_s, self._rests_until_s = FIRST_REST_S, float("-inf")
        self._next_probe_s = float("-inf")

    def take_counts(self) -> list[DraftCount]:
        """Counts of what was cut, or failed, since they were taken last."""
        counts, self._counts = self._counts, []
        return counts

    def let_go(self) -> None:
        """Tell the proposer of sequences that have ended."""
        for sequence in [sequence for sequence in self._known.values() if not sequence.is_open]:
            del self._known[sequence.seq_id]
            try:
                self._proposer.forget(sequence)
            except Exception:
                _log.exception("the proposer of drafts cannot forget a sequence")

    def forget_tenant(self, tenant: str) -> None:
        """Let the proposer drop what a tenant has left; its open sequences go on without drafts and leave nothing."""
        self.let_go()
        for sequence in [sequence for sequence in self._known.values() if sequence.terms.tenant == tenant]:
            del self._known[sequence.seq_id]
            self._proposer.forget(sequence)
            if sequence.drafting is not None:
                sequence.drafting.is_off = True
        self._proposer.forget_tenant(tenant)

    def offers(self, wanted: Series[tuple[Sequence, int]], load: StepLoad) -> list[Offer]:
        """Drafts of sequences.

        Args:
            wanted: each with the longest draft that it may have.
            load: of the step without drafts.
        """
        offers, asks = list[Offer](), list[DraftAsk]()
        may_ask = self._lengths is None or self._lengths.purse.may_go_on
        for sequence, most in wanted:
            state = sequence.drafting = sequence.drafting or DraftState()
            if self._lengths is not None:
                self._lengths.learn(sequence, state)
            forced = tuple(sequence.grammar.forced()[:most]) if sequence.grammar is not None else ()
            if forced:
                offers.append(self._offer(DraftAsk(sequence, state, most), GRAMMAR, forced))
            elif may_ask and not state.is_off and len(sequence.tokens) >= state.next_look:
                self._known[sequence.seq_id] = sequence
                asks.append(DraftAsk(sequence, state, most))
        return offers + (self._asked(asks, load) if asks else [])

    def pause(self, sequence: Sequence, state: DraftState, *, has_guess: bool = True) -> None:
        """No draft of the sequence runs, or there is none: look at it again some tokens later."""
        if self._lengths is not None:
            most = self._proposer.max_gap if has_guess else min(MAX_BLIND_GAP, self._proposer.max_gap)
            state.gap = min(max(1, 2 * state.gap), most)
            state.next_look = len(sequence.tokens) + state.gap

    def resume(self, state: DraftState) -> None:
        """A draft of the sequence runs."""
        state.gap = state.next_look = 0

    def _offer(self, ask: DraftAsk, method: str, drafts: tuple[int, ...], length: int | None = None) -> Offer:
        state = ask.state
        state.method, state.proposed, state.num_known = method, drafts, len(ask.sequence.tokens)
        return Offer(ask.sequence, state, drafts, length)

    def _asked(self, asks: list[DraftAsk], load: StepLoad) -> list[Offer]:
        """Drafts of the proposer."""
        if self._clock.now() < self._rests_until_s:
            return []
        asks, lengths = self._affordable(asks, load)
        if not asks or not self._look_ahead(asks, lengths.count(0)):
            return []
        offers = []
        for ask, length in zip(asks, lengths, strict=True):
            drafts = self._cut(ask.sequence, self._proposed(ask))
            if drafts:
                offers.append(self._offer(ask, self._proposer.name, drafts, length))
            elif length is None:
                self.pause(ask.sequence, ask.state, has_guess=False)
        return offers

    def _affordable(self, asks: list[DraftAsk], load: StepLoad) -> tuple[list[DraftAsk], list[int | None]]:
        """Wishes cut to what pays, where drafting itself costs, and how much of each draft runs then."""
        name, lengths = self._proposer.name, self._lengths
        if lengths is None or not self._proposer.is_costly:
            return asks, [None] * len(asks)
        offered = [(lengths.chance(ask.state, name), ask.max_tokens) for ask in asks]
        kept, runs = list[DraftAsk](), list[int | None]()
        chosen = lengths.choose(load, offered, self._proposer.token_s)
        token_s = self._proposer.token_s(max(1, len(chosen) - chosen.count(0)))
        for ask, (chance, _), count in zip(asks, offered, chosen, strict=True):
            promised_s = lengths.promised_s(load, chance, count, token_s)
            if not count or not self._may_earn(ask, promised_s, lengths.purse.may_begin):
                count = 0
                self.pause(ask.sequence, ask.state)
            elif not self._has_earned(ask, promised_s):
                count, ask.state.next_look = 0, len(ask.sequence.tokens) + EARNING_GAP
            is_late = lengths.purse.busy_s >= self._next_probe_s
            if not count and not (is_late and runs.count(0) < PROBED_ROWS):
                continue
            kept.append(DraftAsk(ask.sequence, ask.state, count or min(NUM_PROBED, ask.max_tokens)))
            runs.append(count)
        return kept, runs

    def _may_earn(self, ask: DraftAsk, promised_s: float, may_begin: bool) -> bool:
        """Whether the proposer may do what it owes for the sequence, if it owes more than this draft promises."""
        return may_begin or self._proposer.owed_s(ask.sequence) <= promised_s

    def _has_earned(self, ask: DraftAsk, promised_s: float) -> bool:
        """Whether drafts, with what those up to the next look promise, would have saved what the proposer owes."""
        state, owed_s = ask.state, self._proposer.owed_s(ask.sequence)
        state.promised_s += promised_s if promised_s >= owed_s else EARNING_GAP * promised_s
        if state.promised_s < owed_s:
            return False
        state.promised_s = 0.0
        return True

    def _look_ahead(self, asks: list[DraftAsk], num_probes: int) -> bool:
        begin_s, took_s = self._clock.now(), math.inf
        try:
            self._proposer.look_ahead(asks)
            took_s = self._clock.now() - begin_s
        except Exception:
            _log.exception("the proposer of drafts failed; the requests go on without them")
        if took_s <= MAX_LOOK_S:
            self._rest_s = FIRST_REST_S
            if num_probes and self._lengths is not None:
                self._next_probe_s = self._lengths.purse.busy_s + took_s * num_probes / len(asks) / PROBING_SHARE
            return True
        for ask in asks:
            self._fail(ask)
        if self._lengths is not None:
            self._rests_until_s = self._clock.now() + self._rest_s
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        return False

    def _proposed(self, ask: DraftAsk) -> tuple[int, ...]:
        """Checked tokens of the proposer; one that fails is not asked for this sequence again."""
        try:
            drafts = tuple(self._proposer.propose(ask.sequence, ask.state, ask.max_tokens))[: ask.max_tokens]
            if any(not 0 <= token < self._vocab_size for token in drafts):
                raise ValueError("a drafted token is not in the vocabulary")
        except Exception:
            _log.exception("the proposer of drafts failed; the request goes on without them")
            self._fail(ask)
            return ()
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

    def _fail(self, ask: DraftAsk) -> None:
        ask.state.is_off = True
        self._count(ask.sequence, FAILED)

    def _count(self, sequence: Sequence, method: str, num_cut: int = 0) -> None:
        assert sequence.request is not None
        self._counts.append(DraftCount(key=sequence.request.key, method=method, num_cut=num_cut))
