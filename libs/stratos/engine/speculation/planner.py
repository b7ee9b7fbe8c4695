"""Choice of the rows of a step that get drafted tokens.

Drafts take what nothing else wants.  A step in which a prompt computes, or while a sequence waits, has none, so they
delay no prompt; they take the rest of the token budget, and blocks only while one for each sequence of the batch stays
available, so they preempt none.  Blocks are taken for every drafted position and given back when the step retires.
"""

from __future__ import annotations

from stratos.common.errors import InvalidCheckpoint
from stratos.engine.contract.results import StepResult
from stratos.engine.contract.runner import Runner
from stratos.engine.requests.context import EngineContext
from stratos.engine.scheduler.cost_model import StepLoad
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig
from stratos.engine.speculation.draft_lengths import DraftLengths
from stratos.engine.speculation.drafting import Drafting, Offer
from stratos.engine.speculation.ngram import NgramProposer
from stratos.engine.speculation.proposer import Proposer


def check_speculation(runner: Runner, config: SchedulerConfig) -> None:
    """Raise ``InvalidCheckpoint`` where drafts cannot be verified."""
    if obstacle := _obstacle(runner, config):
        raise InvalidCheckpoint(f"speculation {obstacle}")


def _obstacle(runner: Runner, config: SchedulerConfig) -> str:
    """Why drafts cannot be verified; empty where they can."""
    if not runner.can_verify:
        return "does not run on a GPU yet: its steps sample one token per row"
    if runner.info.is_streaming:
        return "cannot be combined with attention_window"
    return "" if config.baseline.kv_cache else "needs the KV cache that this baseline is without"


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
        self._drafting = Drafting(proposer, info.vocab_size, info.eos_token_ids, self._lengths)

    def add(self, scheduled: list[tuple[Sequence, int]], result: StepResult) -> None:
        """Set the drafts of the sequences of a step, and take their blocks."""
        scheduler, clock = self._context.scheduler, self._context.clock
        begin_s = clock.now()
        if scheduler.waiting or any(count > 1 for _, count in scheduled):
            return
        offers = [offer for sequence, _ in scheduled if (offer := self._offer(sequence)) is not None]
        left = scheduler.config.token_budget - len(scheduled)
        for offer, length in zip(offers, self._choose(scheduled, offers), strict=True):
            if length:
                self._drafting.resume(offer.state)
                self._draft(offer.sequence, offer.drafts[: min(length, left)])
                left -= len(offer.sequence.drafts)
            else:
                self._drafting.pause(offer.sequence, offer.state)
        result.drafts += self._drafting.counts
        self._drafting.counts = []
        result.draft_cost_s += max(0.0, clock.now() - begin_s)

    def observe(self, load: StepLoad, seconds: float, result: StepResult) -> None:
        """A step without prompts took so long, and has retired."""
        if self._lengths is None:
            return
        num_drafted = result.num_drafted
        self._lengths.observe(load, seconds, num_drafted)
        if num_drafted:
            worth = self._lengths.worth(load, num_drafted, result.num_accepted)
            result.draft_cost_s += worth.cost_s
            result.draft_saved_s += worth.saved_s

    def _offer(self, sequence: Sequence) -> Offer | None:
        if not sequence.is_open or sequence.request is None or sequence.remaining != 1 or not sequence.num_output:
            return None
        if sequence.request.request.sampling.drafts_off:
            return None
        if sequence.grammar is not None and sequence.grammar.is_slow:
            return None
        config = self._context.config.speculation
        most = min(config.num_speculative_tokens, sequence.max_len - len(sequence.tokens) - 1)
        return self._drafting.offer(sequence, most) if most > 0 else None

    def _choose(self, scheduled: list[tuple[Sequence, int]], offers: list[Offer]) -> list[int]:
        lengths = self._lengths
        if lengths is None or not offers:
            return [len(offer.drafts) for offer in offers]
        load = StepLoad()
        for sequence, count in scheduled:
            load = load.plus(count, sequence.num_scheduled)
        return lengths.choose(load, [(lengths.chance(offer.state), len(offer.drafts)) for offer in offers])

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


def make_proposer(config: SchedulerConfig, runner: Runner) -> Proposer | None:
    """The proposer that the settings ask for; ``None``: no speculation.

    Raises:
        InvalidCheckpoint: they ask for one by name, and drafts cannot be verified.
    """
    method = config.speculation.method
    if method == "off" or (method == "auto" and _obstacle(runner, config)):
        return None
    check_speculation(runner, config)
    return NgramProposer()
