"""Property tests: after any sequence of calls the ledger law holds and no block has two owners."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratos.engine.kv_cache.block_manager import BlockManager
from tests.support.examples import examples


class BlockManagerMachine(RuleBasedStateMachine):
    """Random owners allocate, share, reserve, publish, fence and release."""

    @initialize(enabled=st.booleans())
    def start(self, enabled):
        self.blocks = BlockManager(12, 4, enable_prefix_cache=enabled)
        self.owned, self.reserved, self.fences, self.hashes = [], [], [], 0

    @rule(count=st.integers(0, 13), reserved=st.booleans())
    def allocate(self, count, reserved):
        available = self.blocks.num_available
        taken = self.blocks.allocate(count, reserved=reserved)
        assert (taken is None) == (count > available)
        if taken:
            (self.reserved if reserved else self.owned).append(taken)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def give_hash(self, data):
        table = data.draw(st.sampled_from(self.owned))
        self.hashes += 1
        self.blocks.cache.insert(self.hashes.to_bytes(32, "little"), table[0])

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def share(self, data):
        block_hash = data.draw(st.integers(1, self.hashes)).to_bytes(32, "little")
        hit = self.blocks.cache.match([block_hash])
        self.blocks.reference(hit)
        if hit:
            self.owned.append(hit)

    @precondition(lambda self: self.hashes)
    @rule(data=st.data())
    def forget(self, data):
        self.blocks.forget([data.draw(st.integers(1, self.hashes)).to_bytes(32, "little")])

    @precondition(lambda self: self.owned or self.reserved)
    @rule(data=st.data())
    def fence(self, data):
        table = data.draw(st.sampled_from(self.owned + self.reserved))
        self.blocks.fence(table)
        self.fences.append(list(table))

    @precondition(lambda self: self.fences)
    @rule(data=st.data())
    def unfence(self, data):
        table = data.draw(st.sampled_from(self.fences))
        self.fences.remove(table)
        self.blocks.unfence(table)

    @precondition(lambda self: self.reserved)
    @rule(publish=st.booleans())
    def end_reservation(self, publish):
        table = self.reserved.pop()
        if publish:
            self.blocks.publish(table)
            self.owned.append(table)
        else:
            self.blocks.release(table)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def release(self, data):
        table = data.draw(st.sampled_from(self.owned))
        self.owned.remove(table)
        self.blocks.release(table)

    @invariant()
    def law(self):
        if not hasattr(self, "blocks"):
            return
        self.blocks.verify()
        ledger = self.blocks.ledger()
        assert ledger.reserved == sum(map(len, self.reserved))
        assert ledger.allocated == len({b for table in self.owned for b in table})
        fenced = {b for table in self.fences for b in table}
        in_use = {b for table in self.owned + self.reserved for b in table}
        taken = self.blocks.allocate(self.blocks.num_available)
        assert taken is not None
        assert not fenced & set(taken), "a fenced block was handed out"
        assert not in_use & set(taken), "a block has two owners"
        self.blocks.release(taken)
        self.hashes = 0 if taken else self.hashes  # all evictable hashes are gone now

    def teardown(self):
        if not hasattr(self, "blocks"):
            return
        for table in self.owned + self.reserved:
            self.blocks.release(table)
        for table in self.fences:
            self.blocks.unfence(table)
        ledger = self.blocks.ledger()
        assert ledger.free + ledger.cached == ledger.total


TestBlockManager = BlockManagerMachine.TestCase
TestBlockManager.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)


def test_suffix_is_evicted_before_prefix():
    blocks = BlockManager(3, 4)
    table = blocks.allocate(3)
    for index, block in enumerate(table):
        blocks.cache.insert(bytes([index]) * 32, block)
    blocks.release(table)
    assert blocks.allocate(1) == [table[2]]
    assert blocks.cache.match([bytes([0]) * 32, bytes([1]) * 32, bytes([2]) * 32]) == table[:2]
