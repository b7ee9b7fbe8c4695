"""Choice of the rows of a step that get drafted tokens.

Drafts take what nothing else wants.  A step in which a prompt computes, or while a sequence waits, has none, so they
delay no prompt; they take the rest of the token budget, and blocks only while one for each sequence of the batch stays
available, so they preempt none.  Blocks are taken for every drafted position and given back when the step retires.
Rows with a grammar have no drafts, because a grammar knows one place at a time.
"""

from __future__ import annotations

import logging

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.contract.runner import Runner
from stratos.engine.requests.context import EngineContext
from stratos.engine.scheduler.cost_model import StepLoad
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.settings import SchedulerConfig, SpeculationConfig
from stratos.engine.speculation.draft_lengths import DraftLengths
from stratos.engine.speculation.ngram import NgramProposer
from stratos.engine.speculation.proposer import Proposer

_log = logging.getLogger(__name__)


def check_speculation(runner: Runner, config: SchedulerConfig) -> None:
    """Raise ``InvalidCheckpoint`` where drafts cannot be verified."""
    if not runner.can_verify:
        raise InvalidCheckpoint("speculation does not run on a GPU yet: its steps sample one token per row")
    if runner.info.is_streaming:
        raise InvalidCheckpoint("speculation cannot be combined with attention_window")
    if not config.baseline.kv_cache:
        raise InvalidCheckpoint("speculation needs the KV cache that this baseline is without")


class DraftPlanner:
    """Asks ``proposer`` for the streams of each step.

    Args:
        proposer: drafts.
        context: of the engine.
        runner: verifies.
        is_adaptive: run no more of a draft than pays; off runs all of it.
    """

    def __init__(self, proposer: Proposer, context: EngineContext, runner: Runner, *, is_adaptive: bool = True) -> None:
        check_speculation(runner, context.config)
        self._proposer, self._context = proposer, context
        self._lengths = DraftLengths() if is_adaptive else None

    def add(self, scheduled: list[tuple[Sequence, int]]) -> None:
        """Set the drafts of the sequences of a step, and take their blocks."""
        scheduler = self._context.scheduler
        if scheduler.waiting or any(count > 1 for _, count in scheduled):
            return
        left = scheduler.config.token_budget - len(scheduled)
        offered: list[tuple[Sequence, tuple[int, ...]]] = []
        for sequence, _ in scheduled:
            most = min(scheduler.config.speculation.num_speculative_tokens, sequence.max_len - len(sequence.tokens) - 1)
            if most > 0 and self._can_draft(sequence) and (drafts := self._propose(sequence, most)):
                offered.append((sequence, drafts))
        if not offered:
            return
        for (sequence, drafts), length in zip(offered, self._choose(scheduled, offered), strict=True):
            self._draft(sequence, drafts[: min(length, left)])
            left -= len(sequence.drafts)

    def observe(self, load: StepLoad, seconds: float, num_drafted: int) -> None:
        """A step without prompts took so long."""
        if self._lengths is not None:
            self._lengths.observe(load, seconds, num_drafted)

    def _can_draft(self, sequence: Sequence) -> bool:
        is_stream = sequence.is_open and sequence.request is not None and sequence.remaining == 1
        return is_stream and sequence.grammar is None and sequence.num_output > 0

    def _propose(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Checked tokens of the proposer; one that fails is not asked for this sequence again."""
        state = sequence.drafting = sequence.drafting or DraftState()
        if state.is_off:
            return ()
        if self._lengths is not None:
            self._lengths.learn(sequence, state)
        vocab_size, drafts = self._context.info.vocab_size, tuple[int, ...]()
        try:
            drafts = tuple(self._proposer.propose(sequence, state, count))[:count]
            if any(not 0 <= token < vocab_size for token in drafts):
                raise ValueError("a drafted token is not in the vocabulary")
        except Exception:
            _log.exception("the proposer of drafts failed; the request goes on without them")
            state.is_off, drafts = True, ()
        state.proposed, state.num_known = drafts, len(sequence.tokens)
        return drafts

    def _choose(
        self, scheduled: list[tuple[Sequence, int]], offered: list[tuple[Sequence, tuple[int, ...]]]
    ) -> list[int]:
        if self._lengths is None:
            return [len(drafts) for _, drafts in offered]
        load = StepLoad()
        for sequence, count in scheduled:
            load = load.plus(count, sequence.num_scheduled)
        chances = [(s.drafting.chance or 0.0, len(drafts)) for s, drafts in offered if s.drafting is not None]
        return self._lengths.choose(load, chances)

    def _draft(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        if drafts:
            end, num_kept = sequence.num_scheduled + 1, len(self._context.scheduler.running)
            covered = self._context.kv.tables.grow_for_drafts(sequence, end + len(drafts), num_kept)
            sequence.drafts = drafts[: max(0, covered - end)]


def make_proposer(config: SpeculationConfig) -> Proposer | None:
    """The proposer that the settings ask for; ``None``: no speculation."""
    return NgramProposer() if config.method == "ngram" else None
