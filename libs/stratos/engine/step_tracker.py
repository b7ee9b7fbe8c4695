"""Effects of a step on requests, jobs and memory: a plan is entered, and retires or is withdrawn.

Between ``enter`` and ``retire`` the tokens of a plan are in flight: they count as scheduled and not as computed.  A row
moves its sequence only if the sequence still has the blocks that the row wrote; a row of a sequence that ended or
was preempted since is dropped.  What goes wrong with one row ends that row's request alone.  Everything here
runs under the core's lock; the step loop calls the runner.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from stratos.common.errors import AdapterUnavailable, BadRequest, Internal, StratosError
from stratos.core.requests.records import FinishReason
from stratos.engine.contract.plan import (
    ADAPTER_GONE,
    ALL_BANNED,
    DAMAGED_PAGE,
    DAMAGES,
    NO_SUCH_ID,
    PlanRow,
    SampledToken,
    SampleSpec,
    StepPlan,
    StepTokens,
)
from stratos.engine.contract.results import DraftCount, StepResult, StepShares
from stratos.engine.grammar.masks import PendingMasks
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.kv_cache.host_tier import Swaps
from stratos.engine.requests.context import EngineContext
from stratos.engine.requests.embeddings import EmbeddingTable
from stratos.engine.requests.generations import BlockCopy, GenerationTable
from stratos.engine.requests.prefill_jobs import PrefillJobTable
from stratos.engine.requests.reservations import ReservationTable
from stratos.engine.scheduler.cost_model import StepLoad, load_of
from stratos.engine.scheduler.decision import StepDecision
from stratos.engine.sequence import Sequence

_log = logging.getLogger(__name__)
RAISED = "the engine failed on this request"
_CLASSES: dict[str, type[StratosError]] = {
    ALL_BANNED: BadRequest,
    NO_SUCH_ID: BadRequest,
    ADAPTER_GONE: AdapterUnavailable,
}
"""Errors of rows as clients see them; every other one is ours."""


class LaunchedRow:
    """A row of a plan, and what its sequence was when it was planned."""

    __slots__ = ("count", "epoch", "own_count", "row", "sequence")

    def __init__(self, row: PlanRow, sequence: Sequence) -> None:
        self.row, self.sequence, self.epoch = row, sequence, sequence.epoch
        self.count = len(row.token_ids)
        self.own_count = self.count - len(row.verify)
        """Tokens that are the sequence's already."""

    @property
    def is_current(self) -> bool:
        """The sequence still has the blocks that the row writes."""
        return self.sequence.is_open and self.sequence.epoch == self.epoch

    def count_in(self, plan: int) -> None:
        self.sequence.last_plan = plan
        self.sequence.num_in_flight += self.own_count
        self.sequence.num_unknown += self.row.sample is not None

    def count_out(self) -> None:
        """Take the row out of flight again; it is current."""
        self.sequence.num_in_flight -= self.own_count
        self.sequence.num_unknown -= self.row.sample is not None


@dataclass(slots=True)
class LaunchedStep:
    """A plan that was entered: its tokens are in flight until it retires."""

    number: int
    rows: list[LaunchedRow]
    copies: list[BlockCopy]
    copied_ids: tuple[tuple[int, int], ...] = ()
    """Their sources and destinations, as a runner knows them."""
    swaps: Swaps = field(default_factory=Swaps)
    ended: tuple[int, ...] = ()
    """Tables that the runner may forget."""
    num_drafted: int = 0
    """Drafted tokens of all rows."""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    """Tokens in rows of several, drafted ones left out."""
    handle: Any = None
    began_s: float = 0.0
    masks: PendingMasks | None = None
    """Grammar masks that were begun before the launch."""

    @property
    def load(self) -> StepLoad:
        return load_of((launched.count, launched.row.start) for launched in self.rows)

    @property
    def plan(self) -> StepPlan:
        return StepPlan(
            step=self.number,
            rows=tuple([launched.row for launched in self.rows]),
            copies=self.copied_ids,
            swap_outs=tuple([(copy.block, copy.slot) for copy in self.swaps.outs]),
            swap_ins=tuple([(copy.slot, copy.block) for copy in self.swaps.ins]),
            ended=self.ended,
            num_drafted=self.num_drafted,
            are_swaps_fenced=self.swaps.are_fenced,
        )

    def __bool__(self) -> bool:
        """There is something to launch."""
        return bool(self.rows or self.swaps)


@dataclass(frozen=True, slots=True)
class StepTracker:
    """Enters plans, retires them, withdraws them."""

    context: EngineContext
    requests: GenerationTable
    jobs: PrefillJobTable
    embeddings: EmbeddingTable
    reservations: ReservationTable

    @property
    def _kv(self) -> KvCache:
        return self.context.kv

    def apply(self, decision: StepDecision, result: StepResult) -> None:
        """Carry out what the scheduler decided besides rows."""
        for job in decision.ready_jobs:
            self.jobs.make_ready(job)
        for sequence, error in decision.failed:
            self.fail(sequence, error, result)
        for sequence in decision.exhausted:
            if not sequence.is_open:
                continue  # its request failed just now, or it was found twice
            assert sequence.embedding is None, "an input holds all its blocks from the start"
            self.requests.finish(sequence, FinishReason.EXHAUSTED, result)

    def enter(self, number: int, scheduled: list[tuple[Sequence, int]], result: StepResult) -> LaunchedStep:
        """Build the rows of a plan and count them as in flight."""
        rows = []
        for sequence, count in scheduled:
            if not sequence.is_open:
                continue
            try:
                rows.append(LaunchedRow(self.requests.row(sequence, count), sequence))
            except Exception:  # an error of this row must not end the others
                _log.exception("a row cannot be planned")
                self.fail(sequence, Internal(RAISED), result)
        rows = [launched for launched in rows if launched.is_current]
        num_tokens = num_prompt_tokens = num_drafted = 0
        for launched in rows:
            launched.count_in(number)
            num_tokens += launched.count
            num_drafted += launched.count - launched.own_count
            num_prompt_tokens += launched.count if launched.own_count > 1 else 0
        copies = self.requests.drain_copies(number, has_rows=bool(rows))
        copied_ids = self._kv.blocks.copied_ids((copy.source, copy.destination) for copy in copies)
        step = LaunchedStep(
            number,
            rows,
            copies,
            copied_ids,
            self._kv.tier.drain_swaps(),
            num_drafted=num_drafted,
            num_tokens=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
        )
        if step:  # else there is no plan that could say it
            step.ended = self._kv.tables.drain_ended()
        return step

    def withdraw(self, step: LaunchedStep) -> None:
        """Take a plan back that no runner works on: its rows are not in flight, its copies are still to be done."""
        self._kv.fences.retire(step.number)
        for launched in step.rows:
            if launched.is_current:
                launched.count_out()
                self._kv.tables.end_drafts(launched.sequence)
                self._kv.tables.plan_again(launched.sequence)
                if self._kv.states is not None:
                    self._kv.states.withdraw(launched.sequence)
        self._kv.tables.return_ended(step.ended)
        self.requests.return_copies(step.copies)
        self._kv.tier.withdraw(step.swaps)

    def late_specs(self, step: LaunchedStep) -> dict[int, SampleSpec]:
        """Specs of rows that were planned before the newest token of their sequence was known, and need it."""
        return {
            launched.row.seq_id: self.requests.with_history(launched.row.sample, launched.sequence)
            for launched in step.rows
            if launched.row.continues and launched.row.sample is not None and launched.row.sample.needs_history
        }

    def start_masks(self, launched_rows: list[LaunchedRow]) -> PendingMasks | None:
        """Begin to fill the grammar masks of rows; every token before the ones to be sampled must be known."""
        sampled = (row.sequence for row in launched_rows if row.row.sample is not None and row.is_current)
        return self.context.grammars.start_masks(sampled)

    def retire(self, step: LaunchedStep, tokens: StepTokens, result: StepResult) -> None:
        """The plan is collected: its KV is complete, its tokens are known."""
        result.num_rows += len(step.rows)
        runs = accepted_runs(step, tokens) if step.num_drafted else {}
        for launched in step.rows:
            _share(launched, result.shares, launched.own_count)
        self._kv.fences.retire(step.number)
        self.requests.end_copies(step.copies)
        self._refuse_damaged(step, tokens, result)
        sampled = {token.seq_id: token for token in tokens.tokens}
        for seq_id, run in runs.items():
            sampled[seq_id] = run[0]
        pooled = {part.seq_id: part for part in tokens.pooled}
        for launched in step.rows:
            sequence, begin = launched.sequence, launched.sequence.num_computed
            if not launched.is_current:
                continue  # it ended, or another choice failed in this step and took the request along
            launched.count_out()
            error = tokens.errors.get(sequence.seq_id) if tokens.errors else None
            if error is not None:
                self._fail_row(sequence, error, result)
                continue
            sequence.num_computed += launched.own_count
            if self._kv.states is not None:
                self._kv.states.advance(sequence)
            token = sampled.get(sequence.seq_id)
            if launched.row.sample is not None and token is None:
                _log.error("a row that was to be sampled came back without a token")
                self.fail(sequence, Internal(RAISED), result)
                continue
            try:
                if sequence.job is not None:
                    self.jobs.advance(sequence.job)
                elif sequence.embedding is not None:
                    self.embeddings.advance(sequence, begin, pooled.get(sequence.seq_id), result)
                else:
                    if launched.row.targets is not None:
                        place = launched.row.start + launched.row.targets.begin
                        found = tokens.prompt_logprobs[sequence.seq_id]
                        self.requests.add_prompt_logprobs(sequence, place, found)
                    self.requests.advance(sequence, begin, token, result)
                    if launched.row.verify:
                        self._advance_drafted(launched, runs[sequence.seq_id], result)
            except StratosError as refusal:
                self.fail(sequence, refusal, result)
            except Exception:  # an error of this row must not end the others
                _log.exception("a row cannot be retired")
                self.fail(sequence, Internal(RAISED), result)

    def _advance_drafted(self, launched: LaunchedRow, run: list[SampledToken], result: StepResult) -> None:
        """Take the rest of an accepted run one by one, so that what ends the choice ends it there."""
        sequence, num_taken = launched.sequence, 0
        for token in run[1:]:
            if not launched.is_current:
                break
            sequence.num_computed += 1
            self.requests.advance(sequence, sequence.num_computed - 1, token, result, follows=True)
            num_taken += 1
        _share(launched, result.shares, num_taken)
        assert sequence.request is not None
        assert sequence.drafting is not None
        count = DraftCount(
            key=sequence.request.key,
            method=sequence.drafting.method,
            num_drafted=len(launched.row.verify),
            num_accepted=num_taken,
        )
        result.drafts.append(count)
        if launched.is_current:
            self._kv.tables.end_drafts(sequence)

    def _refuse_damaged(self, step: LaunchedStep, tokens: StepTokens, result: StepResult) -> None:
        """Blocks came damaged from host memory: no row over them has a token, and all that holds them begins again."""
        bad = self._kv.tier.retire(step.swaps, tokens.swap_s, tokens.damaged_slots)
        if not bad:
            return
        _log.error("%d KV blocks in host memory were damaged; what they held is computed again", len(bad))
        self.reservations.note_damaged(bad)
        in_step = {launched.row.seq_id for launched in step.rows if launched.is_current}
        holders = dict.fromkeys([*self.context.scheduler.running, *self.jobs.sequences])
        for sequence in holders:
            if bad.isdisjoint(sequence.block_table):
                continue
            if sequence.seq_id in in_step:
                tokens.errors[sequence.seq_id] = DAMAGED_PAGE
            else:
                self._fail_row(sequence, DAMAGED_PAGE, result)

    def _fail_row(self, sequence: Sequence, error: str, result: StepResult) -> None:
        """End what a row belongs to; but for jobs, what may have read damaged KV computes all of it again, once."""
        if error in _CLASSES:
            self.fail(sequence, _CLASSES[error](error), result)
            return
        hashes = self._forget(sequence)
        owner = sequence.request or sequence.embedding
        may_retry = error in DAMAGES and not sequence.computes_all
        if owner is None or not may_retry or not self._kv.tables.could_come_back(sequence):
            self.fail(sequence, Internal(error), result)
            return
        key = owner.request.key
        _log.error("request %s: %s; its KV is computed again", key.request_id, error)
        result.damaged.setdefault(key, []).extend(hashes)
        sequence.computes_all = True
        self._kv.tables.end_drafts(sequence)
        self.context.scheduler.restart(sequence)

    def _forget(self, sequence: Sequence) -> list[bytes]:
        """A row that is not finite may have read damaged KV: no other sequence may find its blocks any more."""
        size = self._kv.blocks.block_size
        num_full = min(len(sequence.block_table), len(sequence.tokens) // size)
        hashes = sequence.hash_chain(num_full, size)
        self._kv.forget(hashes)
        return hashes

    def fail(self, sequence: Sequence, error: StratosError, result: StepResult) -> None:
        """End the whole request, or job, that ``sequence`` belongs to."""
        if sequence.job is not None:
            leg = sequence.job.job.leg
            result.prefill_errors[leg] = error
            self.jobs.release(leg)
            return
        owner = sequence.request or sequence.embedding
        assert owner is not None
        key = owner.request.key
        result.errors[key] = error
        self.requests.abort(key)
        self.embeddings.abort(key)


def accepted_runs(step: LaunchedStep, tokens: StepTokens) -> dict[int, list[SampledToken]]:
    """Tokens that count of each row with drafts: up to the first that is not the one drafted at its place."""
    drafts = {launched.row.seq_id: launched.row.drafts for launched in step.rows if launched.row.verify}
    runs: dict[int, list[SampledToken]] = {}
    for token in tokens.tokens:
        if token.seq_id in drafts:
            runs.setdefault(token.seq_id, []).append(token)
    for seq_id, run in runs.items():
        # drafted 5 6 7, drawn 5 6 9 4: 5 and 6 are accepted, 9 was drawn after them, 4 after a 7 that is not there
        num_equal = 0
        for token, draft in zip(run, drafts[seq_id], strict=False):
            if token.token_id != draft:
                break
            num_equal += 1
        del run[num_equal + 1 :]
    return runs


def _share(launched: LaunchedRow, shares: StepShares, count: int) -> None:
    sequence = launched.sequence
    shares.num_tokens += count
    tenant = sequence.terms.label
    shares.tenants[tenant] = shares.tenants.get(tenant, 0) + count
    if sequence.request is not None:
        key = sequence.request.request.key
        shares.requests[key] = shares.requests.get(key, 0) + count
    elif sequence.job is not None:
        leg = sequence.job.job.leg
        shares.legs[leg] = shares.legs.get(leg, 0) + count
