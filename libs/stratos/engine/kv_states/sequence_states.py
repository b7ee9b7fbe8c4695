"""States of sequences: where one begins, which slots its rows read and write, where snapshots are taken.

A sequence has two slots, which its rows write by turns: a row reads the one that the row before it wrote.  Its first
row reads the snapshot at the end of its cached prefix, or zeros.  So a plan that is carried out again reads what it
read before.

Snapshots are taken at the end of every so many blocks, and of the last full block of a prompt.  A cached prefix ends
where there is one.  Blocks of 4, a snapshot every 3 blocks, a prompt of 22 tokens: snapshots are after 12 and after 20
tokens.  A prompt that begins with 18 of them goes on from 12, though 16 are cached.
"""

from __future__ import annotations

from collections.abc import Sequence as Series

from stratos.engine.contract.states import NO_SLOT, HeldStates, StateRow
from stratos.engine.kv_states.slot_pool import SlotPool
from stratos.engine.sequence import Sequence


class SequenceStates:
    """States of one engine's sequences; guarded by the core's lock.

    Args:
        pool: of the slots.
        block_size: tokens of a KV block.
        period: blocks between two snapshots.
        is_shared: equal prefixes are shared; without that there are no snapshots.
    """

    def __init__(self, pool: SlotPool, block_size: int, period: int, *, is_shared: bool) -> None:
        self.pool, self._size, self._period, self._is_shared = pool, block_size, period, is_shared

    def usable(self, hashes: Series[bytes]) -> int:
        """Blocks of a cached prefix up to its last snapshot."""
        num_blocks = len(hashes)
        while num_blocks and self.pool.find(hashes[num_blocks - 1]) is None:
            num_blocks -= 1
        return num_blocks

    def take(self, prefix: Series[bytes], num_own: int = 2) -> HeldStates | None:
        """Slots for a sequence that begins with the blocks ``prefix``, which end with a snapshot; ``None``: no room."""
        current = NO_SLOT
        if prefix:
            found = self.pool.find(prefix[-1])
            assert found is not None, "the prefix ends without a snapshot"
            self.pool.hold(current := found)
        own = self.pool.take(num_own)
        if own is None:
            self.pool.release([current] if prefix else [])
            return None
        return HeldStates(current, tuple(own))

    def begin(self, sequence: Sequence, prefix: Series[bytes], num_tokens: int) -> bool:
        """Take the slots of a sequence whose prompt has ``num_tokens`` that may be cached; ``False``: no room."""
        sequence.states = self.take(prefix)
        if sequence.states is not None:
            sequence.states.prompt_end = num_tokens - num_tokens % self._size
        return sequence.states is not None

    def row(self, sequence: Sequence, start: int, count: int) -> StateRow:
        """Slots of the row that computes ``count`` tokens from ``start`` on."""
        held = sequence.states
        assert held is not None, "a sequence that runs has slots"
        held.snapshots = self._snapshots(sequence, held, start, start + count)
        wanted = tuple([(num_tokens - start, slot) for num_tokens, slot in held.snapshots])
        return StateRow(read=held.current, write=held.next, snapshots=wanted)

    def _snapshots(self, sequence: Sequence, held: HeldStates, start: int, end: int) -> list[tuple[int, int]]:
        taken: list[tuple[int, int]] = []
        size, span = self._size, self._size * self._period
        if not self._is_shared or sequence.bypasses_prefix_cache:
            return taken
        wanted = set(range(start - start % span + span, min(end, len(sequence.tokens)) + 1, span))
        if start < held.prompt_end <= end:
            wanted.add(held.prompt_end)
        for num_tokens in sorted(wanted):
            is_known = self.pool.find(sequence.hash_chain(num_tokens // size, size)[-1]) is not None
            if not is_known and (slots := self.pool.take(1)):
                taken.append((num_tokens, slots[0]))
        return taken

    def advance(self, sequence: Sequence) -> None:
        """The launched row is computed: what it wrote is the sequence's state, and its snapshots can be found."""
        held = sequence.states
        assert held is not None, "a sequence that ran has slots"
        written = held.next
        if held.current not in (*held.own, NO_SLOT):
            self.pool.release([held.current])
        held.current = written
        snapshots, held.snapshots = held.snapshots, []
        for num_tokens, slot in snapshots:
            self.pool.publish(sequence.hash_chain(num_tokens // self._size, self._size)[-1], slot)

    def withdraw(self, sequence: Sequence) -> None:
        """The launched row was taken back, with its snapshots."""
        if sequence.states is not None:
            snapshots, sequence.states.snapshots = sequence.states.snapshots, []
            self.pool.release([slot for _, slot in snapshots])

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Let ``child`` go on from the parent's state; ``False``: no room, and nothing has changed."""
        held = parent.states
        assert held is not None, "a parent that ran has slots"
        is_own = held.current in held.own
        taken = self.pool.take(3 if is_own else 2)
        if taken is None:
            return False
        if is_own:  # the parent would write it again before the child has read it
            rest = next(slot for slot in held.own if slot != held.current)
            held.own = (taken.pop(), rest)
        if held.current != NO_SLOT:
            self.pool.hold(held.current)
        child.states = HeldStates(held.current, tuple(taken))
        return True

    def release(self, sequence: Sequence) -> None:
        """Give up all slots of a sequence."""
        held, sequence.states = sequence.states, None
        if held is not None:
            self.pool.release(held.slots)

    def receive(self, held: HeldStates, *, is_whole: bool) -> None:
        """A hand-off has ended: the state that came is that of the sequence, or it goes on from its prefix."""
        if is_whole:
            borrowed = [] if held.current in (*held.own, NO_SLOT) else [held.current]
            held.current = held.own[0]
            self.pool.release(borrowed)
