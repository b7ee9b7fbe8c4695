"""Drafts by a cheaper model, which draws with the request's own noise: so it often draws what the target will.

It has a runner and a KV pool of its own, a group apart from the target's blocks: nothing of it is handed off, cached
or preempted.  A sequence without room there has no drafts.  A draft's KV is kept as far as its tokens were accepted;
after a hand-off, a prefix hit or a recovery the prompt is computed here, a part in each step.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.core.requests.sampling_params import SamplingParams
from stratos.core.rules.quantile import RecentQuantile
from stratos.engine.contract.plan import PlanRow, SampleSpec, StepPlan
from stratos.engine.contract.runner import Runner
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.sequence import DraftState, Sequence
from stratos.engine.speculation.proposer import DraftAsk, Proposer

CATCH_UP = 256
"""Tokens of prompts that one step computes: a stream waits for it."""
TIMED_PASSES = 32
"""Passes whose median is what a drafted token takes: on a shared machine some take many times as long."""


@dataclass(slots=True)
class _Table:
    """State of a sequence at the draft model."""

    params: SamplingParams
    tokens: list[int] = field(default_factory=list)
    """Tokens whose KV is there."""
    blocks: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    """Tokens drafted in this step."""

    def keep_common(self, tokens: Series[int]) -> None:
        """Let go of KV of drafts that were not accepted; the last token always runs again."""
        own, end = self.tokens, min(len(self.tokens), len(tokens) - 1)
        while end and own[end - 1] != tokens[end - 1]:
            end -= 1
        del own[end:]


class ModelProposer(Proposer):
    """Drafts with ``runner``, all sequences of a step together.

    Args:
        runner: of the draft model, whose vocabulary is the target's.
        clock: times its passes.
        name: of the method in metrics: "draft", or "self" where the model is the target with fewer bits.
    """

    max_gap = 128
    is_costly = True

    def __init__(self, runner: Runner, clock: Clock, name: str = "draft") -> None:
        self._runner, self._clock, self.name = runner, clock, name
        info = runner.info
        self._blocks = BlockManager(info.num_blocks, info.geometry.block_size, enable_prefix_cache=False)
        self._max_len = info.max_model_len
        self._tables: dict[int, _Table] = {}
        self._ended: list[int] = []
        self._num_plans = 0
        self._pass_ns = defaultdict[int, RecentQuantile](
            lambda: RecentQuantile(0.5, default=0, window=TIMED_PASSES, min_samples=4)
        )
        """Of passes of one token each, by the bits of their number of rows."""
        self._prompt_token_ns = RecentQuantile(0.5, default=0, window=TIMED_PASSES, min_samples=1)

    def token_s(self, num_rows: int) -> float:
        wanted = num_rows.bit_length()
        known = [bits for bits, passes in self._pass_ns.items() if passes.value]
        if not known:
            return 0.0
        return self._pass_ns[min(known, key=lambda bits: abs(bits - wanted))].value / num_rows / 1e9

    def owed_s(self, sequence: Sequence) -> float:
        table = self._tables.get(sequence.seq_id)
        missing = len(sequence.tokens) - (len(table.tokens) if table is not None else 0)
        return max(0, missing) * self._prompt_token_ns.value / 1e9

    @property
    def blocks(self) -> BlockManager:
        """Ledger of its KV."""
        return self._blocks

    def look_ahead(self, asks: Series[DraftAsk]) -> None:
        try:
            self._draft(asks)
        except Exception:
            self._runner.abandon()
            for seq_id in list(self._tables):
                self._drop(seq_id)
            raise

    def propose(self, sequence: Sequence, state: DraftState, max_tokens: int) -> Series[int]:
        table = self._tables.get(sequence.seq_id)
        return table.drafts[:max_tokens] if table is not None else ()

    def forget(self, sequence: Sequence) -> None:
        self._drop(sequence.seq_id)

    def sleep(self) -> int:
        for seq_id in list(self._tables):  # of sequences that have ended
            self._drop(seq_id)
        return self._runner.sleep()

    def wake(self) -> None:
        self._runner.wake()

    def _draft(self, asks: Series[DraftAsk]) -> None:
        left, ready = CATCH_UP, list[DraftAsk]()
        rows: list[PlanRow] = []
        for ask in asks:
            table = self._table(ask.sequence)
            missing = len(ask.sequence.tokens) - len(table.tokens)
            count = min(missing, left)
            if not count or not self._grow(table, len(table.tokens) + count + ask.max_tokens):
                continue
            left -= count
            is_ready = count == missing
            rows.append(self._row(ask.sequence, table, ask.sequence.tokens[len(table.tokens) :][:count], is_ready))
            if is_ready:
                ready.append(ask)
        self._run(rows, ready)
        for number in range(1, max((ask.max_tokens for ask in ready), default=0)):
            again = [
                ask
                for ask in ready
                if ask.max_tokens > number and len(self._tables[ask.sequence.seq_id].drafts) == number
            ]
            if not again:
                break
            tables = [self._tables[ask.sequence.seq_id] for ask in again]
            rows = [self._row(a.sequence, t, t.drafts[-1:], True) for a, t in zip(again, tables, strict=True)]
            self._run(rows, again)

    def _run(self, rows: list[PlanRow], asks: Series[DraftAsk]) -> None:
        """One pass; the token that each row samples is drafted."""
        if not rows:
            return
        begin_s = self._clock.now()
        plan = StepPlan(step=self._num_plans, rows=tuple(rows), ended=tuple(self._ended))
        self._num_plans, self._ended = self._num_plans + 1, []
        handle = self._runner.launch(plan)
        self._runner.sample(handle)
        sampled = {token.seq_id: token.token_id for token in self._runner.collect(handle).tokens}
        took_ns = (self._clock.now() - begin_s) * 1e9
        if plan.num_tokens <= 2 * len(rows):
            self._pass_ns[len(rows).bit_length()].add(round(took_ns))
        else:  # it computes a prompt
            self._prompt_token_ns.add(round(took_ns / plan.num_tokens))
        for row in rows:
            self._tables[row.seq_id].tokens += row.token_ids
        for ask in asks:
            if (token := sampled.get(ask.sequence.seq_id)) is not None:
                self._tables[ask.sequence.seq_id].drafts.append(token)

    def _table(self, sequence: Sequence) -> _Table:
        table = self._tables.get(sequence.seq_id)
        if table is None:
            assert sequence.request is not None
            params = dataclasses.replace(
                sequence.request.request.sampling, num_logprobs=None, num_prompt_logprobs=None, grammar=None
            )
            table = self._tables[sequence.seq_id] = _Table(params)
        table.drafts = []
        table.keep_common(sequence.tokens)
        return table

    def _grow(self, table: _Table, num_tokens: int) -> bool:
        missing = self._blocks.blocks_for(num_tokens) - len(table.blocks)
        if num_tokens > self._max_len:
            return False
        taken = self._blocks.allocate(missing) if missing > 0 else []
        table.blocks += taken or []
        return taken is not None

    def _row(self, sequence: Sequence, table: _Table, tokens: list[int], is_sampled: bool) -> PlanRow:
        start = len(table.tokens)
        end = self._blocks.blocks_for(start + len(tokens))
        return PlanRow(
            seq_id=sequence.seq_id,
            token_ids=tuple(tokens),
            start=start,
            block_table=tuple(table.blocks[:end]),
            sample=_spec(sequence, table) if is_sampled else None,
        )

    def _drop(self, seq_id: int) -> None:
        table = self._tables.pop(seq_id, None)
        if table is not None:
            self._blocks.release(table.blocks)
            self._ended.append(seq_id)


def _spec(sequence: Sequence, table: _Table) -> SampleSpec:
    """How the target samples the place after the newest draft."""
    assert sequence.request is not None
    request, drafts = sequence.request.request, table.drafts
    num_prompt = len(request.prompt_ids)
    emitted = (*sequence.tokens[num_prompt:], *drafts) if table.params.needs_output_ids else ()
    return SampleSpec(
        key=request.key,
        choice=sequence.choice,
        seed=request.seed,
        position=len(sequence.tokens) + len(drafts),
        params=table.params,
        prompt_ids=request.prompt_ids,
        output_ids=emitted,
        num_output_tokens=sequence.num_output + len(drafts),
    )
