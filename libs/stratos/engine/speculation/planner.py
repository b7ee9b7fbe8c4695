"""Choice of the rows of a step that get drafted tokens.

Drafts take what nothing else wants.  A step in which a prompt computes, or while a sequence waits, has none, so they
delay no prompt; they take the rest of the budgets of tokens and of time, and blocks only while one for each sequence of
the batch stays available, so they preempt none.  Blocks are taken for every drafted position and given back when the
step retires.
"""

from __future__ import annotations

from stratos.engine.contract.results import StepResult
from stratos.engine.contract.runner import Runner
from stratos.engine.requests.context import EngineContext
from stratos.engine.scheduler.budget import draft_room
from stratos.engine.scheduler.cost_model import StepLoad, load_of
from stratos.engine.sequence import Sequence
from stratos.engine.speculation.draft_lengths import DraftLengths
from stratos.engine.speculation.drafting import MAX_LOOK_S, Drafting, Offer
from stratos.engine.speculation.making import check_speculation
from stratos.engine.speculation.proposer import Proposer
from stratos.engine.step_tracker import LaunchedStep


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
        self._context, self._lengths = context, DraftLengths() if is_adaptive else None
        info = context.info
        self._drafting = Drafting(proposer, info.vocab_size, info.eos_token_ids, self._lengths, context.clock)

    def add(self, scheduled: list[tuple[Sequence, int]], result: StepResult) -> None:
        """Set the drafts of the sequences of a step, and take their blocks."""
        scheduler, clock = self._context.scheduler, self._context.clock
        self._drafting.let_go()
        if scheduler.waiting or any(count > 1 for _, count in scheduled):
            return
        wanted = [(sequence, most) for sequence, _ in scheduled if (most := self._most(sequence)) > 0]
        if not wanted:
            return
        begin_s = clock.now()
        load = load_of((count, sequence.num_scheduled) for sequence, count in scheduled)
        left = draft_room(scheduler.config, scheduler.cost, load)
        if not left:
            return
        offers = self._drafting.offers([(sequence, min(most, left)) for sequence, most in wanted], load)
        for offer, length in zip(offers, self._choose(load, offers), strict=True):
            if length:
                self._drafting.resume(offer.state)
                self._draft(offer.sequence, offer.drafts[: min(length, left)])
                left -= len(offer.sequence.drafts)
            elif offer.length is None:
                self._drafting.pause(offer.sequence, offer.state)
        result.drafts += self._drafting.take_counts()
        took_s = max(0.0, clock.now() - begin_s)
        result.draft_cost_s += took_s
        if self._lengths is not None and took_s <= MAX_LOOK_S:  # after a longer one the proposer rests anyhow
            self._lengths.purse.settle(took_s, 0.0)

    def observe(self, step: LaunchedStep, seconds: float, result: StepResult) -> None:
        """A step without prompts took so long, and has retired."""
        num_drafted = result.num_drafted
        if self._lengths is None:
            return
        self._lengths.purse.pass_step(seconds)
        if not self._lengths.wants(num_drafted):
            return
        load = step.load
        self._lengths.observe(load, seconds, num_drafted)
        if num_drafted:
            worth = self._lengths.worth(load, num_drafted, result.num_accepted)
            result.draft_cost_s += worth.cost_s
            result.draft_saved_s += worth.saved_s
            self._lengths.purse.settle(*worth)

    def forget_tenant(self, tenant: str) -> None:
        """Drop what the tenant's requests have left with the proposer."""
        self._drafting.forget_tenant(tenant)

    def _most(self, sequence: Sequence) -> int:
        """Longest draft that the sequence may have in this step; 0 while a pause of it lasts."""
        state = sequence.drafting
        may_pause = state is not None and sequence.grammar is None and not state.proposed
        if may_pause and state is not None and (state.is_off or len(sequence.tokens) < state.next_look):
            return 0
        if not sequence.is_open or sequence.request is None or sequence.remaining != 1 or not sequence.num_output:
            return 0
        if sequence.request.request.sampling.drafts_off:
            return 0
        if sequence.grammar is not None and sequence.grammar.is_slow:
            return 0
        config = self._context.config.speculation
        return min(config.num_speculative_tokens, sequence.max_len - len(sequence.tokens) - 1)

    def _choose(self, load: StepLoad, offers: list[Offer]) -> list[int]:
        """Tokens of each draft that run."""
        lengths, chosen = self._lengths, [offer.length for offer in offers]
        if lengths is None:
            return [len(offer.drafts) for offer in offers]
        open_offers = [offer for offer in offers if offer.length is None]
        if open_offers:
            found = iter(lengths.choose(load, [(lengths.chance(o.state), len(o.drafts)) for o in open_offers]))
            chosen = [next(found) if length is None else length for length in chosen]
        return [length or 0 for length in chosen]

    def _draft(self, sequence: Sequence, drafts: tuple[int, ...]) -> None:
        if not drafts:
            return
        end, num_kept = sequence.num_scheduled + 1, len(self._context.scheduler.running)
        covered = self._context.kv.tables.grow_for_drafts(sequence, end + len(drafts), num_kept)
        drafts = drafts[: max(0, covered - end)]
        if sequence.grammar is not None:
            sequence.draft_grammars = tuple(sequence.grammar.after(drafts))
            drafts = drafts[: len(sequence.draft_grammars)]
        sequence.drafts = drafts
