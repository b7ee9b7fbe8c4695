"""How a sequence gets its block table and loses it: cached prefix, loaded blocks, fresh ones, released ones.

A table covers the sequence's tokens from position 0.  At admission a sequence references what the prefix cache holds,
loads what host memory holds, and takes blocks for all other tokens; it grows step by step.  Where the model's window
is bounded (``window``) a generating sequence takes no more blocks ahead than a window and a step need, starts without
the part of a cached prefix that no token sees any more, and releases blocks as its window passes them.

All examples below have blocks of 4 tokens and a window of 10: the token at position 40 sees positions 31 to 40, which
are in blocks 7 to 10, so blocks 0 to 6 are not needed any more.

Of the tables it owns what a runner knows of them: plans carry the entries that are new, and which tables ended.  The
block manager owns blocks, ``KvAdmission`` decides on admission.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stratos.engine.kv_cache.admission import KvAdmission
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.fences import StepFences
from stratos.engine.kv_cache.host_tier import HostTier
from stratos.engine.kv_cache.window import KvWindow, PartWindow
from stratos.engine.kv_states.sequence_states import SequenceStates
from stratos.engine.sequence import RELEASED, Sequence


@dataclass(slots=True)
class _Prefix:
    """Blocks known for a sequence's first tokens."""

    num_blocks: int
    """Full blocks, those that no token sees included."""
    gap: range
    """Indexes of these."""
    cached: list[int]
    """Device blocks of the others, in order."""
    hosted: list[int]
    """Host slots of the blocks after them, held."""
    hosted_hashes: list[bytes]

    def table(self, taken: list[int]) -> list[int]:
        """The sequence's first table; ``taken`` follow on what is cached."""
        held = self.cached + taken
        return held[: self.gap.start] + [RELEASED] * len(self.gap) + held[self.gap.start :]


@dataclass(frozen=True, slots=True)
class BlockTables:
    """The tables of one engine's sequences."""

    blocks: BlockManager
    tier: HostTier
    admission: KvAdmission
    fences: StepFences
    window: KvWindow | None = None
    states: SequenceStates | None = None
    """Recurrent states, where the model has some."""
    _planned: set[int] = field(default_factory=set)
    """seq_ids of which a runner may keep a table, also where the plan that carried it was taken back."""
    _ended: list[int] = field(default_factory=list)
    """seq_ids among them that no plan builds on any more."""

    def window_of(self, sequence: Sequence) -> KvWindow | None:
        """The window, where the sequence may give up what it has passed."""
        return self.window if sequence.request is not None else None

    def build(self, sequence: Sequence, num_budgeted: int, growth: int) -> bool:
        """Reference the known prefix and take blocks for the tokens after it, or take nothing.

        ``num_budgeted`` and ``growth`` are those of ``KvAdmission.admits_sequence``.
        """
        if sequence.swapped is not None:
            return self._restore(sequence, num_budgeted, growth)
        size, window = self.blocks.block_size, self.window_of(sequence)
        usable = len(sequence.tokens) - (1 if sequence.job is None else 0)  # the last token of a prompt is sampled
        hashes = [] if sequence.bypasses_prefix_cache else sequence.hash_chain(usable // size, size)
        prefix = self._prefix(sequence, hashes, window)
        if isinstance(window, PartWindow):
            return self._build_parts(sequence, prefix.cached, window, num_budgeted, growth)
        num_blocks = self.admission.table_blocks(len(sequence.tokens)) - len(prefix.gap)
        num_blocks = num_blocks if window is None else min(num_blocks, window.max_blocks)
        if not self.admission.admits_sequence(sequence, prefix.cached, num_blocks, num_budgeted, growth):
            self.tier.unmatch(prefix.hosted)
            return False
        if self.states is not None and not self.states.begin(sequence, hashes[: prefix.num_blocks], usable):
            self.admission.refuse(sequence)
            return False
        self.blocks.reference(prefix.cached)
        taken = self.blocks.allocate(num_blocks - len(prefix.cached))
        if taken is None:
            self.blocks.release(prefix.cached)
            self.tier.unmatch(prefix.hosted)
            self._release_states(sequence)
            return False
        # 41 tokens are 11 blocks; 10 are known, of them block 7 on the device and 8 and 9 on the host:
        #   entries [0, 7)    RELEASED   no token sees them; with a sink in block 0 they are [1, 7)
        #           [7, 8)    cached     shared, one reference more
        #           [8, 10)   taken      filled from the host by the next plan
        #           [10, 11)  taken      computed here: num_computed is 40
        self.tier.load(prefix.hosted, taken, prefix.hosted_hashes)
        sequence.block_table = prefix.table(taken)
        sequence.num_released, sequence.num_hashed = len(prefix.gap), prefix.num_blocks
        sequence.num_computed = prefix.num_blocks * size
        return True

    def _build_parts(
        self, sequence: Sequence, cached: list[int], window: PartWindow, num_budgeted: int, growth: int
    ) -> bool:
        """``build`` where only window parts are given up: what follows ``cached`` is taken step by step."""
        num_table, num_passed = self.blocks.blocks_for(len(sequence.tokens)), window.gap(len(cached)).stop
        seen = cached[num_passed:]
        # what is passed costs its full pages alone, and nothing where others hold it
        num_shared = sum(self.blocks.is_in_use(block) for block in cached[:num_passed])
        num_known = num_shared - window.spared(num_shared)
        num_blocks = window.bounded(num_table) - num_known
        if not self.admission.admits_sequence(sequence, seen, num_blocks, num_budgeted, growth, num_table):
            return False
        sequence.budget_blocks += num_known
        self.blocks.reference(cached)
        taken = self.blocks.allocate(min(num_table - len(cached), window.max_blocks))
        if taken is None:
            self.blocks.release(cached)
            return False
        self.blocks.pass_parts(cached[:num_passed])
        sequence.block_table, sequence.num_hashed = cached + taken, len(cached)
        sequence.num_passed, sequence.num_spared = num_passed, window.spared(num_passed)
        sequence.num_computed = len(cached) * self.blocks.block_size
        return True

    def _prefix(self, sequence: Sequence, hashes: list[bytes], window: KvWindow | None) -> _Prefix:
        cache, may_wait, begin = self.blocks.cache, sequence.job is None, 0
        if isinstance(window, PartWindow):
            return _Prefix(0, range(0), self.blocks.match(hashes, window.needed), [], [])
        if window is None:
            cached = self.blocks.match(hashes)
        else:
            end, cached = cache.match_end(hashes, window.needed)
            begin = end - len(cached)
        end = begin + len(cached)  # cached[i] is block begin + i, hosted[i] is block end + i
        hosted = self.tier.match(hashes[end:], may_wait=may_wait)
        num_blocks = end + len(hosted)
        # Blocks from the host move the window on, so what was needed up to ``end`` may not be needed any more.
        #   device [5, 8), host [8, 10): the gap ends at 7; cached[2:] is block 7, both hosted blocks stay
        #   device [3, 6), host [6, 10): the gap ends at 7; nothing cached stays, the slot of block 6 is given back
        #   sink in block 0, device [0, 6), host [6, 10): the gap is [1, 7); block 0 stays, too
        gap = range(0) if window is None else window.gap(num_blocks)
        self.tier.unmatch([slot for block, slot in enumerate(hosted, end) if block in gap])
        return _Prefix(
            num_blocks,
            gap,
            [cached_block for block, cached_block in enumerate(cached, begin) if block not in gap],
            [slot for block, slot in enumerate(hosted, end) if block not in gap],
            [hashes[block] for block in range(end, num_blocks) if block not in gap],
        )

    def _restore(self, sequence: Sequence, num_budgeted: int, growth: int) -> bool:
        swapped, window = sequence.swapped, self.window_of(sequence)
        assert swapped is not None
        # Held were blocks 7, 8 and 9, so the table had 10 entries, 7 of them released. 45 tokens are 12 blocks:
        # it needs 12 - 7 = 5, the 3 that were swapped out and 2 for the tokens after them.
        num_swapped = len(swapped.places)
        num_blocks = self.blocks.blocks_for(len(sequence.tokens)) - (swapped.places[-1] + 1 - num_swapped)
        if window is not None:
            num_blocks = max(num_swapped, min(num_blocks, window.max_blocks))
        found = self.tier.resident(sequence)
        admits = self.admission.admits_sequence(sequence, found, num_blocks, num_budgeted, growth)
        return admits and self.tier.restore(sequence, num_blocks)

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take blocks until the table covers ``num_tokens``; or change nothing."""
        missing = self.blocks.blocks_for(num_tokens) - len(sequence.block_table)
        if missing <= 0:
            return True
        taken = self.blocks.allocate(missing)
        if taken is None:
            return False
        sequence.block_table.extend(taken)
        return True

    def grow_for_drafts(self, sequence: Sequence, num_tokens: int, num_kept: int) -> int:
        """Take blocks towards ``num_tokens`` while ``num_kept`` stay available; returns the tokens that are covered."""
        missing = self.blocks.blocks_for(num_tokens) - len(sequence.block_table)
        count = min(missing, self.blocks.num_available - num_kept)
        if count > 0 and (taken := self.blocks.allocate(count)) is not None:
            sequence.block_table.extend(taken)
            sequence.num_draft_blocks = len(taken)
        return min(num_tokens, len(sequence.block_table) * self.blocks.block_size)

    def end_drafts(self, sequence: Sequence) -> None:
        """Give back the blocks that were taken for drafts, but those that the sequence has grown into."""
        taken, sequence.num_draft_blocks = sequence.num_draft_blocks, 0
        sequence.drafts = sequence.draft_grammars = ()
        table = sequence.block_table
        end = max(len(table) - taken, self.blocks.blocks_for(len(sequence.tokens)))
        if end < len(table):
            unused, table[end:] = table[end:], []
            sequence.num_planned_blocks = min(sequence.num_planned_blocks, end)
            self.fences.release(unused, sequence.last_plan)

    def num_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence will hold more than now before the table covers ``num_tokens``."""
        num_blocks, window = self.blocks.blocks_for(num_tokens), self.window_of(sequence)
        missing = num_blocks - len(sequence.block_table)
        if window is not None:
            missing = min(missing, window.bounded(num_blocks) - sequence.num_held)
        return max(0, missing)

    def release_passed(self, sequence: Sequence) -> None:
        """Give up the blocks that no token after the computed ones sees; a launched step may read them still."""
        window = self.window_of(sequence)
        if window is None:
            return
        if isinstance(window, PartWindow):
            self._pass_parts(sequence, window)
            return
        # 40 tokens are computed, block 0 holds sinks, blocks 1 to 4 are released: entries [5, 7) have been passed
        begin = window.num_head_blocks + sequence.num_released
        end = min(window.first_block(sequence.num_computed), len(sequence.block_table))
        if end <= begin:
            return
        passed = sequence.block_table[begin:end]
        sequence.block_table[begin:end] = [RELEASED] * len(passed)
        sequence.num_released += len(passed)
        # what stands for the released blocks changes, too, so all entries from the gap on are sent again
        sequence.num_planned_blocks = min(sequence.num_planned_blocks, window.num_head_blocks)
        self.fences.release(passed, sequence.last_plan)

    def _pass_parts(self, sequence: Sequence, window: PartWindow) -> None:
        end = min(window.first_block(sequence.num_computed), len(sequence.block_table))
        if end > sequence.num_passed:
            self.blocks.pass_parts(sequence.block_table[sequence.num_passed : end])
            sequence.num_passed, sequence.num_spared = end, window.spared(end)

    def can_fork(self, parent: Sequence, num_tokens: int) -> bool:
        """The parent still holds all that tokens after its first ``num_tokens`` see; it may be far behind them.

        A request that goes on after what it has emitted may find that in the cache, and begins there: the blocks of
        its prompt are released then, or window parts of them passed, though no choice has forked yet.
        """
        window = self.window_of(parent)
        if window is None:
            return True
        return max(parent.num_passed, window.num_head_blocks + parent.num_released) <= window.first_block(num_tokens)

    def share_passed(self, parent: Sequence, sequence: Sequence) -> None:
        """A fork holds the parent's first blocks: what the parent has passed the fork has passed, too."""
        self.blocks.pass_parts(sequence.block_table[: parent.num_passed])
        sequence.num_passed, sequence.num_spared = parent.num_passed, parent.num_spared

    def release(self, sequence: Sequence) -> None:
        """Give up all blocks of a sequence; a launched step may use them still."""
        self.blocks.end_passes(sequence.block_table[: sequence.num_passed])
        self.fences.release(sequence.held_blocks, sequence.last_plan)
        self._release_states(sequence)
        self.end(sequence)

    def _release_states(self, sequence: Sequence) -> None:
        if self.states is not None:
            self.states.release(sequence)

    # -- what plans carry ----------------------------------------------------------------------------

    def plan_table(self, sequence: Sequence, num_tokens: int) -> tuple[int, tuple[int, ...]]:
        """The table that covers ``num_tokens``, as far as no plan has carried it: where it begins, and a runner's ids.

        A held block stands for those released, on which no kernel relies. The entries count as carried from now on.
        """
        end = self.blocks.blocks_for(num_tokens)
        if sequence.num_planned_blocks == end:
            return end * self.blocks.num_pages, ()
        begin = min(sequence.num_planned_blocks, end)
        table = sequence.block_table[begin:end]
        gap = 0 if self.window is None else self.window.num_head_blocks
        gap_end = gap + sequence.num_released  # the first held block after the gap
        if sequence.num_released and begin < gap_end:
            first = max(gap, begin)
            table[first - begin : gap_end - begin] = [sequence.block_table[gap_end]] * (gap_end - first)
        sequence.num_planned_blocks = end
        if begin == 0:
            self._planned.add(sequence.seq_id)
        return begin * self.blocks.num_pages, tuple(self.blocks.page_ids(table))

    def plan_again(self, sequence: Sequence) -> None:
        """A plan that carried entries was taken back: the next one carries the whole table."""
        sequence.num_planned_blocks = 0

    def end(self, sequence: Sequence) -> None:
        """The sequence gives its blocks up."""
        if sequence.seq_id in self._planned:
            self._planned.remove(sequence.seq_id)
            self._ended.append(sequence.seq_id)
        sequence.block_table, sequence.num_released, sequence.num_planned_blocks = [], 0, 0
        sequence.num_passed = sequence.num_spared = 0

    def drain_ended(self) -> tuple[int, ...]:
        """For the next plan: tables that a runner may forget."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def return_ended(self, ended: tuple[int, ...]) -> None:
        """The plan was taken back: the next one carries the same entries again."""
        self._ended[:0] = ended

    def could_come_back(self, sequence: Sequence) -> bool:
        """Alone in the pool, the sequence could start from its first token again."""
        window, num_blocks = self.window_of(sequence), self.blocks.blocks_for(len(sequence.tokens))
        return (num_blocks if window is None else window.bounded(num_blocks)) <= self.blocks.num_blocks
