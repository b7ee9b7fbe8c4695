"""The KV admission rule over one pool (``stratos.core.rules.admission``), with what only the engine knows.

The expected output of a choice is fixed when the request arrives, so that a request accepted then is never too large
later.  Promised is the part of admitted budgets that is not held yet (a switch leaves that part out: more is admitted,
preemption corrects it).  Blocks of the prefix cache that no sequence uses are not taken, and a cached prefix that
others use costs nothing again.

A resumed sequence, whose request emitted tokens already (preempted here, or resumed from elsewhere), must get back in:
the whole pool, budgets of others do not count, and of output only what keeps it from being preempted again before
its next token: a block, or what the batch grows by until then.  Into an empty pool everything goes that fits.  The
rule bounds how often preemption is needed; it does not replace it, because running sequences may grow beyond what was
expected of them.  The router applies the same function to what the worker reports (``stratos.routing.admission``).
"""

from __future__ import annotations

from stratos.common.errors import ContextLengthExceeded
from stratos.core.requests.records import EngineRequest, FinishReason
from stratos.core.rules.admission import (
    KvNeed,
    KvRoom,
    copied_blocks,
    max_output_tokens,
    num_blocks_short,
    output_blocks,
)
from stratos.core.rules.quantile import RecentQuantile
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.window import KvWindow
from stratos.engine.sequence import Sequence

OUTPUT_QUANTILE = 0.9


class KvAdmission:
    """The rule over one pool, and the output lengths that its budgets come from."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        watermark: float,
        default_output_tokens: int,
        slot_tokens: int = 0,
        window: KvWindow | None = None,
    ) -> None:
        self._blocks, self._window = blocks, window
        self._watermark = watermark
        self._slot_blocks = blocks.blocks_for(slot_tokens)
        self.output_lengths = RecentQuantile(OUTPUT_QUANTILE, default=default_output_tokens)
        """Output tokens of choices that ended by themselves or at their limit."""
        self.num_refusals = 0
        """Waits that met a full pool at the head of the queue, each counted once, and hand-offs that found no room."""

    @property
    def has_slots(self) -> bool:
        """Contiguous baseline: each sequence takes the blocks of a whole context and needs no more."""
        return self._slot_blocks > 0

    def table_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes at admission."""
        return self._slot_blocks or self._blocks.blocks_for(num_tokens)

    def output_blocks(self, request: EngineRequest, num_choices: int) -> int:
        """Blocks of output that ``num_choices`` choices of a request are expected to need from now on."""
        if self.has_slots:
            return 0
        size = self._blocks.block_size
        copied = 0 if request.num_emitted_tokens else copied_blocks(len(request.prompt_ids), num_choices, size)
        most = max_output_tokens(request)
        return copied + output_blocks(most, self.output_lengths.value, num_choices, size, is_resumed=request.is_resumed)

    def tail_blocks(self, request: EngineRequest, num_handed: int) -> int:
        """Blocks of what the open choices emitted elsewhere, beside the table of a hand-off of ``num_handed`` tokens.

        It is of the prompt without its last token; or, of a single choice, of all but its last token, and then there
        are none.
        """
        if self.has_slots or not request.num_emitted_tokens:
            return 0
        blocks_for, num_tokens = self._blocks.blocks_for, len(request.prompt_ids) - 1
        if num_handed > num_tokens:
            return 0
        ends = [blocks_for(num_tokens + len(c.emitted_ids)) for c in request.choices if not c.finished]
        # 9 tokens in blocks of 4, and two choices that emitted 5: both end in block 4. The first has the table of 3 and
        # takes 1; the second shares the 2 full ones and takes 2.
        num_shared = num_tokens // self._blocks.block_size
        return self._bounded(sum(ends) - blocks_for(num_tokens) - num_shared * (len(ends) - 1), len(ends))

    def own_tail_blocks(self, sequence: Sequence) -> int:
        """Blocks of the tokens that one choice has beyond its table, which is that of its prompt."""
        tail = self._blocks.blocks_for(len(sequence.tokens) - 1) - len(sequence.block_table)
        return max(0, min(tail, self._bounded(sequence.num_held + tail, 1) - sequence.num_held))

    def check_request(self, request: EngineRequest) -> None:
        """Raise ``ContextLengthExceeded`` for a new request that is above the watermark even in an empty pool."""
        if not request.is_resumed:
            num_choices = sum(not choice.finished for choice in request.choices)
            num_prompt = len(request.prompt_ids) - (request.num_prior_tokens > 0)
            held = self.table_blocks(num_prompt) + self.tail_blocks(request, num_prompt)
            self._check_alone(self._bounded(held + self.output_blocks(request, num_choices), num_choices))

    def check_input(self, num_tokens: int) -> None:
        """The same for a prefill job or an input to embed, of ``num_tokens`` tokens: neither has output."""
        self._check_alone(self.table_blocks(num_tokens))

    def _bounded(self, num_blocks: int, num_choices: int) -> int:
        """``num_blocks``, or what so many choices hold at most where their window is bounded."""
        return num_blocks if self._window is None else self._window.bounded(num_blocks, num_choices)

    def _check_alone(self, num_blocks: int) -> None:
        size, total = self._blocks.block_size, self._blocks.num_blocks
        if num_blocks > self._watermark * total:
            raise ContextLengthExceeded(
                f"{num_blocks * size} tokens of KV, expected output included, are more than {self._watermark:.0%} of a "
                f"pool of {total * size}"
            )

    def note_end(self, num_output_tokens: int, reason: FinishReason, max_tokens: int) -> None:
        """A choice ended; one that was cut within its first block (a probe) says nothing about lengths."""
        if reason is not FinishReason.LENGTH or max_tokens >= self._blocks.block_size:
            self.output_lengths.add(num_output_tokens)

    def admits_sequence(
        self,
        sequence: Sequence,
        prefix: list[int],
        num_blocks: int,
        num_budgeted: int,
        growth: int,
        num_table: int | None = None,
    ) -> bool:
        """A waiting sequence may take a table of ``num_blocks``, the cached ``prefix`` included.

        ``num_budgeted`` blocks are in the budgets of others and not held yet; the batch grows by ``growth`` until the
        sequence has its next token.  The sequence's own budget is noted on it.  ``num_table``: blocks of its table,
        where it holds fewer whole ones.
        """
        state = sequence.request
        resumed = state is not None and (state.has_started or state.request.is_resumed)
        expected = min(1, sequence.output_blocks) if resumed else sequence.output_blocks
        if state is not None:
            table, held = (num_blocks, num_blocks) if num_table is None else (num_table, self._bounded(num_table, 1))
            bound = self._bounded(table + expected, 1 + len(state.pending_forks))
            expected = max(min(1, expected), bound - held)
        sequence.budget_blocks = num_blocks + expected
        needed = max(expected, growth) if resumed else expected
        has_room = self._has_room(prefix, num_blocks, needed, num_budgeted, is_resumed=resumed)
        self.num_refusals += not (has_room or sequence.wait.is_refused)
        sequence.wait.is_refused = not has_room
        return has_room

    def refuse(self, sequence: Sequence) -> None:
        """Count a wait for something else than blocks."""
        self.num_refusals += not sequence.wait.is_refused
        sequence.wait.is_refused = True

    def admits_request(self, request: EngineRequest, prefix: list[int], num_handed: int, num_budgeted: int) -> bool:
        """A hand-off of ``num_handed`` tokens for all open choices may take its table, the cached prefix included."""
        num_choices, num_blocks = sum(not choice.finished for choice in request.choices), self.table_blocks(num_handed)
        expected = self.output_blocks(request, num_choices) + self.tail_blocks(request, num_handed)
        has_room = self._has_room(prefix, num_blocks, expected, num_budgeted, is_resumed=request.is_resumed)
        self.num_refusals += not has_room
        return has_room

    def _has_room(
        self, prefix: list[int], num_blocks: int, expected: int, num_budgeted: int, *, is_resumed: bool
    ) -> bool:
        total = self._blocks.num_blocks
        taken = total - self._blocks.num_available
        new = num_blocks - sum(self._blocks.is_in_use(block) for block in prefix)
        need = KvNeed(table_blocks=new, output_blocks=expected, is_resumed=is_resumed)
        room = KvRoom(total=total, taken=taken, promised=num_budgeted, watermark=self._watermark)
        return num_blocks_short(need, room) <= 0
