"""Choice of the next step's rows: one token budget, decodes first, then prompts, which share the rest.

There is no prefill or decode phase: each step ``num_computed`` of a sequence catches up with its tokens,
by one for a decoding sequence, by a chunk for a prompt.  A sequence whose last token runs in the step is
sampled.  When blocks run out the sequence that is served last gives its blocks back and waits again
(preemption): it computes its tokens again, or finds its KV in host memory where ``HostTier`` says that this is
cheaper.  Prefill jobs are never preempted, because a transfer reads their blocks.
The order of service is decided by ``ServiceOrder``, the tokens of each prompt by ``PromptShares``: a waiting
sequence is admitted when it would get some of the step, whatever computes already.

No request starves.  In the queue ageing sees to that.  In the batch every decode gets its token, since there are never
more sequences than a step has tokens, and a prompt is passed for a bounded number of steps.  A hand-off takes no room
or batch slot that a sequence before it waits for.  A preempted sequence is let in again only if the batch can grow
until it has its next token, so that it is not preempted again for nothing.

With overlap the step before this one may be launched and not collected.  A sequence in flight gives no memory when it
is preempted, since its blocks are fenced: the victim is held back from this step instead, and preempted in the next.

The scheduler owns the queues and asks the block manager for memory; it knows no model and no torch.
``EngineCore`` turns its decisions into a plan, runs it and feeds the tokens back.
"""

from __future__ import annotations

import heapq
import logging
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from stratos.common.clock import Clock
from stratos.common.errors import Internal
from stratos.core.requests.records import EngineRequest
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.scheduler.batch_needs import BatchNeeds
from stratos.engine.scheduler.budget import StepBudget
from stratos.engine.scheduler.cost_model import StepCostModel
from stratos.engine.scheduler.decision import StepDecision
from stratos.engine.scheduler.order import OrderKey, ServiceOrder
from stratos.engine.scheduler.pauses import BatchPauses
from stratos.engine.scheduler.shares import PromptClaim, PromptShares
from stratos.engine.scheduler.steady import SteadyBatch
from stratos.engine.sequence import JobState, Queue, Sequence
from stratos.engine.settings import SchedulerConfig

_log = logging.getLogger(__name__)
LEAST_LOOKAHEAD = 8
"""Waiting sequences of one class and tenant that are considered for a step: at least these, and as many as the step has
blocks."""


class Scheduler:
    """Queues of sequences over one KV cache."""

    def __init__(self, config: SchedulerConfig, kv: KvCache, clock: Clock) -> None:
        self.config, self.clock = config, clock
        self._kv, self._blocks, self._tables = kv, kv.blocks, kv.tables
        self.order = ServiceOrder(ageing_step_s=config.ageing_step_s, admissions_per_aged=config.admissions_per_aged)
        self.cost = StepCostModel()
        self._shares = PromptShares(config, kv.blocks.block_size)
        self._lookahead = max(LEAST_LOOKAHEAD, config.token_budget // kv.blocks.block_size)
        self._pauses = BatchPauses(config, kv.blocks.block_size)
        self._steady = SteadyBatch(kv, is_on=config.switches.steady_steps)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.ready: list[Sequence] = []
        self.parked: list[Sequence] = []
        """Jobs whose receivers did not grant in time: they hold nothing, and are queued again with the grant."""
        self.num_reserved_seqs = 0
        """Places in the batch that uncommitted hand-offs will need."""
        self.num_reserved_output_blocks = 0
        """Blocks of output that uncommitted hand-offs are expected to need."""
        self.num_preemptions = 0
        self._is_short = False
        """A sequence waits because there was no room or no batch slot, rather than no time in the step."""

    # -- queues ------------------------------------------------------------------------------------

    @property
    def queues(self) -> dict[Queue, list[Sequence]]:
        """All queues; a sequence is in one of them."""
        return {"waiting": self.waiting, "ready": self.ready, "running": self.running, "parked": self.parked}

    def enqueue(self, sequence: Sequence) -> None:
        sequence.wait.begin(self.clock.now())
        self.waiting.append(sequence)

    def run_now(self, sequence: Sequence) -> None:
        """Put a sequence that holds its blocks already into the batch."""
        self.running.append(sequence)

    def grant(self, sequence: Sequence) -> None:
        self.ready.remove(sequence)
        self.running.append(sequence)

    def park(self, sequence: Sequence) -> None:
        """Take the blocks of a ready job back until its grant comes."""
        self.ready.remove(sequence)
        self.free_blocks(sequence)
        self.parked.append(sequence)

    def unpark(self, sequence: Sequence) -> None:
        self.parked.remove(sequence)
        self.enqueue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take a sequence out of every queue and release its blocks."""
        for queue in self.queues.values():
            if sequence in queue:
                queue.remove(sequence)
        sequence.is_open = False
        self._kv.tier.drop(sequence)
        self.free_blocks(sequence)

    def restart(self, sequence: Sequence) -> None:
        """Take the blocks of a running sequence, which begins again from its first token."""
        self.running.remove(sequence)
        self.free_blocks(sequence)
        self.enqueue(sequence)

    def free_blocks(self, sequence: Sequence) -> None:
        """Release the blocks of a sequence; it would start from its first token again."""
        self._tables.release(sequence)
        sequence.epoch += 1
        sequence.num_computed = sequence.num_in_flight = sequence.num_unknown = 0
        sequence.num_hashed = sequence.num_draft_blocks = 0

    @property
    def num_free_seqs(self) -> int:
        return self.config.max_batch_slots - len(self.running) - len(self.ready) - self.num_reserved_seqs

    @property
    def num_unused_budget_blocks(self) -> int:
        """Blocks that admitted sequences and hand-offs are expected to take yet."""
        if not self.config.admission_counts_budgets:
            return 0
        return self.num_reserved_output_blocks + sum(s.num_unused_budget_blocks for s in self.running)

    @property
    def num_promised_blocks(self) -> int:
        """Blocks that are spoken for and not held: budgets of what was admitted, all that waiting sequences want."""
        return self.num_unused_budget_blocks + sum(self._num_wished_blocks(s) for s in self.waiting)

    def _num_wished_blocks(self, sequence: Sequence) -> int:
        return self._tables.admission.table_blocks(len(sequence.tokens)) + sequence.output_blocks

    @property
    def is_admitting(self) -> bool:
        """New sequences may join; a static batch takes none before it has ended."""
        return self.config.baseline.batching != "static" or not self.running

    @property
    def has_work(self) -> bool:
        """Something could run, or be admitted."""
        return bool(self.running or self.waiting)

    def must_yield(self, request: EngineRequest) -> bool:
        """A hand-off would take what a waiting sequence before it did not find; resumed ones take what there is."""
        if not self._is_short or request.is_resumed:
            return False
        now = self.clock.now()
        key = OrderKey.unaged(request.terms, sys.maxsize)  # it has not waited, and goes after equals
        return any(self.order.key(s, now) < key for s in self.waiting)

    # -- one step ----------------------------------------------------------------------------------

    def schedule(self) -> StepDecision:
        """Decide the next step and take the blocks it needs."""
        now = self.clock.now()
        if not self.waiting and (rows := self._steady.follow(self.running, now)) is not None:
            self._is_short = self.num_free_seqs <= 0
            if self._steady.has_above:
                self._pauses.see_above(now)
            return StepDecision(scheduled=rows)
        decision = self._decide(now)
        self._steady.note(self.running, self.waiting, decision)
        return decision

    def _decide(self, now: float) -> StepDecision:
        """Look at everything."""
        decision = StepDecision()
        budget = StepBudget(self.config, self.cost, self._blocks.block_size)
        is_admitting = self.is_admitting
        served = sorted(self.running, key=lambda s: (s.remaining != 1, self.order.key(s, now)))
        decision.expire(self.running, self.waiting, now)
        if self.config.baseline.scheduling == "prefill-first":
            self._serve([s for s in served if s.remaining > 1], decision, budget, now)
            if is_admitting:
                self._admit(decision, budget, now)
            if not decision.scheduled:
                self._serve([s for s in served if s.remaining == 1], decision, budget, now)
            return decision
        if self.config.shares_steps:
            self._share(served, decision, budget, now)
            return decision
        has_preempted = self._serve(served, decision, budget, now)
        if is_admitting and not has_preempted:
            self._admit(decision, budget, now)
        return decision

    def _share(self, served: list[Sequence], decision: StepDecision, budget: StepBudget, now: float) -> None:
        """Streams first; then admit what would get a part of the rest, and divide the rest."""
        num_streams = bisect_left(served, True, key=lambda s: s.remaining != 1)
        self._pauses.look(self.running, self.waiting if self.num_free_seqs > 0 else (), now)
        streams, paused = self._pauses.split(served[:num_streams])
        has_preempted = self._serve(streams, decision, budget, now)
        if not has_preempted:
            self._is_short = self.num_free_seqs <= 0
            if self.waiting and not self._is_short:
                self._admit(decision, budget, now, *self._find_next(decision, budget, now))
        if len(self.running) > num_streams:  # there are prompts, as in few steps
            waits = {*paused, *decision.held}
            self._divide([s for s in self.running if s not in waits], decision, budget, now)
        if paused and not self._pauses.has_won(decision.scheduled):
            self._serve(paused, decision, budget, now)
        self._pauses.note(paused, decision.scheduled)

    def _divide(self, prompts: list[Sequence], decision: StepDecision, budget: StepBudget, now: float) -> None:
        """Divide the rest of the step among prompts."""
        claims = self._claims(prompts, decision, now)
        if not claims or not (room := budget.room_for(claims[0].sequence)):
            return
        counts = self._pauses.cut(self._shares.divide(claims, room), claims[0].sequence, budget)
        self._serve([claim.sequence for claim in claims], decision, budget, now, counts)
        given = {sequence: count for sequence, count in decision.scheduled if sequence in counts}
        self._shares.note(claims, given)

    def _claims(self, sequences: Iterable[Sequence], decision: StepDecision, now: float) -> list[PromptClaim]:
        """Prompts among ``sequences`` that the step could compute, in the order of service."""
        taken = {s for s, _ in decision.scheduled}
        must_wait = self._kv.tier.must_wait
        return sorted(
            PromptClaim(self.order.key(s, now), s, s.remaining)
            for s in sequences
            if s.remaining and s not in taken and not must_wait(s.block_table)
        )

    def _find_next(
        self, decision: StepDecision, budget: StepBudget, now: float
    ) -> tuple[list[Sequence], set[Sequence]]:
        """The first waiting sequences, and those of them that would get a part beside what computes already."""
        failed, may_age = {s for s, _ in decision.failed}, self.order.may_age
        groups: dict[tuple[int, str], list[tuple[OrderKey, Sequence]]] = {}
        for sequence in self.waiting:
            if sequence not in failed and (sequence.job is None or self._may_be_ready(sequence.job)):
                key = self.order.key(sequence, now, may_age=may_age)
                groups.setdefault((key.service_class, sequence.terms.tenant), []).append((key, sequence))
        firsts = (first for group in groups.values() for first in heapq.nsmallest(self._lookahead, group))
        waiting = [PromptClaim(key, sequence, max(1, sequence.remaining)) for key, sequence in firsts]
        running = self._claims((s for s in self.running if s.remaining > 1), decision, now)
        if not waiting:
            return [], set()
        room = budget.room_for(min(running + waiting).sequence)
        growth = sum(self._tables.num_missing(c.sequence, c.sequence.num_scheduled + room) for c in running)
        if growth > self._blocks.num_available:
            return [], set()  # prompts of a bounded window take blocks while they compute
        if any(claim.sequence.job is not None for claim in waiting):
            room *= 2  # a job computes a round trip after it took its blocks, and the steps between must not run dry
        counts = self._shares.divide(running + waiting, room)
        found = [claim.sequence for claim in waiting]
        wanted = {sequence for sequence in found if sequence in counts}
        if not running:
            wanted.add(next(self.order.admissions(found, now)))  # whose turn it is, or the step might have no prompt
        return found, wanted

    def _may_be_ready(self, state: JobState) -> bool:
        """A seat is free in which the job may hold blocks while it waits for its grant."""
        if state.is_granted:
            return True  # it was parked, and runs as soon as it has its blocks
        job, ahead = state.job, 0
        rivals = [s for s in self.ready if s.job is not None and s.job.job.receiver == job.receiver]
        if any(s.job is not None and s.job.job.receiver == job.receiver for s in self.parked):
            return not rivals  # it missed a grant: one seat, until it grants again
        for sequence in rivals:
            other = sequence.terms
            ahead += other.tenant == job.terms.tenant and other.priority_class <= job.terms.priority_class
        return ahead < self.config.max_ready_jobs

    def _serve(
        self,
        sequences: list[Sequence],
        decision: StepDecision,
        budget: StepBudget,
        now: float,
        counts: dict[Sequence, int] | None = None,
    ) -> bool:
        """Let running sequences run, in this order, at most so many tokens of each; ``True``: blocks were short."""
        has_preempted = False
        for sequence in sequences:
            is_waiting = sequence.wait.since_s is not None  # preempted just now
            if is_waiting or sequence in decision.held or not sequence.remaining:
                continue  # gives way to one before it, or waits for its step or its transfer to end
            if self._kv.tier.must_wait(sequence.block_table):
                continue
            count = (
                budget.count_for(sequence) if counts is None else budget.count_for(sequence, counts.get(sequence, 0))
            )
            if count == 0:
                continue
            while not self._tables.grow(sequence, sequence.num_scheduled + count):
                has_preempted = True
                if not self._preempt_for(sequence, decision, now):
                    break
            else:
                decision.scheduled.append((sequence, count))
                budget.charge(sequence, count)
        return has_preempted

    def _preempt_for(self, sequence: Sequence, decision: StepDecision, now: float) -> bool:
        """Free the blocks of the sequence served last. ``False``: ``sequence`` does not run in this step."""
        if self._kv.fences.is_pending or self._kv.tier.is_busy:
            return False  # blocks come back when the launched step, or the next one, retires
        scheduled = {id(s) for s, _ in decision.scheduled}
        candidates = [s for s in self.running if s.job is None and id(s) not in scheduled]
        victim = max(candidates, key=lambda s: self.order.key(s, now), default=None)
        if victim is not None and victim.num_in_flight:
            decision.held.add(victim)
            return False
        others_hold_blocks = sequence.num_held < self._blocks.num_blocks - self._blocks.num_available
        if victim is sequence and not others_hold_blocks:
            decision.exhausted.append(sequence)
            return False
        victim = victim or sequence
        if victim.job is not None:
            return False  # a job holds all its blocks from the start: nothing to grow
        if not self._tables.could_come_back(victim):
            decision.exhausted.append(victim)  # shared blocks took it this far; alone it could not come back
            return False
        self.running.remove(victim)
        self._kv.tier.swap_out(victim)
        self.free_blocks(victim)
        self.enqueue(victim)
        self._is_short = True
        self.num_preemptions += 1
        return victim is not sequence

    def _admit(
        self,
        decision: StepDecision,
        budget: StepBudget,
        now: float,
        found: list[Sequence] | None = None,
        wanted: set[Sequence] | None = None,
    ) -> None:
        """Take waiting sequences into the batch, in their order, while the step has room; or those ``wanted``.

        Who is passed, because the step has no tokens for it, loses neither the batch slot nor the blocks it will need.
        """
        self._is_short = self.num_free_seqs <= 0
        if self._is_short or (wanted is None and budget.is_spent):
            return
        failed = {s for s, _ in decision.failed}
        passed_seqs = passed_blocks = 0
        needs = BatchNeeds(self._tables, self.running, self.config, self.num_unused_budget_blocks)
        left = Counter(s.terms.priority_class for s in self.waiting)
        candidates = [s for s in self.waiting if s not in failed] if found is None else found
        for sequence in self.order.admissions(candidates, now):
            if wanted is not None and sequence not in wanted:
                passed_seqs += 1
                passed_blocks += self._num_wished_blocks(sequence)
                continue
            if self.num_free_seqs <= passed_seqs:
                self._is_short = True
                break
            if wanted is None and budget.is_spent and self.config.baseline.batching != "static":
                break
            if sequence.job is not None and not self._may_be_ready(sequence.job):
                continue
            try:
                growth = needs.growth_until_token(sequence) if sequence.has_run else 0
                has_room = self._tables.build(sequence, needs.num_budgeted_blocks + passed_blocks, growth)
            except Exception:  # an error of this sequence must not end the others
                _log.exception("a sequence cannot be admitted")
                decision.failed.append((sequence, Internal("the request could not be scheduled")))
                continue
            if not has_room:
                self._is_short = True
                break
            self.waiting.remove(sequence)
            sequence.wait.end(now)
            left[sequence.terms.priority_class] -= 1
            self.order.count(sequence, +left)
            if sequence.job is not None:
                self.ready.append(sequence)
                decision.ready_jobs.append(sequence.job)
                continue
            self.running.append(sequence)
            needs.add(sequence)
            if wanted is not None:
                continue  # its tokens are those that the division gives it
            count = 0 if self._kv.tier.must_wait(sequence.block_table) else budget.count_for(sequence)
            if count:
                decision.scheduled.append((sequence, count))
                budget.charge(sequence, count)
