"""The routers' copy of prefix caches equals the caches: after changes, lost changes, dumps and deaths."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratos.core.cache_changes import CacheChanges, short_hash
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.change_log import ChangeLog
from stratos.routing.policy.prefix_index import PrefixIndex, PrefixMatches
from tests.support.examples import examples

NUM_BLOCKS, RING = 10, 6
CHAINS = [[bytes([chain, place]) * 16 for place in range(4)] for chain in range(5)]


class Worker:
    """A block manager whose blocks come and go, and a reader of its changes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.blocks = BlockManager(NUM_BLOCKS, 4, max_cache_changes=RING)
        self.owned: list[list[int]] = []
        self.lost: list[CacheChanges] = []

    @property
    def names(self) -> set[int]:
        return {short_hash(known) for known in self.blocks.cache.hashes()}

    def dump(self) -> CacheChanges:
        cache = self.blocks.cache
        return CacheChanges(after=0, last=cache.changes.last, stored=tuple(self.names), is_dump=True)

    def run(self, chain: list[bytes], length: int) -> None:
        """Compute a prompt: reference what is cached, take blocks for the rest, give them their hashes."""
        hit = self.blocks.cache.match(chain[:length])
        self.blocks.reference(hit)
        taken = self.blocks.allocate(length - len(hit))
        if taken is None:
            self.blocks.release(hit)
            return
        for block_hash, block in zip(chain[len(hit) : length], taken, strict=True):
            self.blocks.cache.insert(block_hash, block)
        self.owned.append(hit + taken)


class PrefixIndexMachine(RuleBasedStateMachine):
    """Workers run prompts, evict and forget; changes arrive, are lost, or come as dumps in parts."""

    @initialize()
    def start(self):
        self.index = PrefixIndex(max_blocks=1000)
        self.count = 2
        self.workers = [Worker("w0"), Worker("w1")]

    def worker(self, data) -> Worker:
        return data.draw(st.sampled_from(self.workers))

    @rule(data=st.data(), chain=st.sampled_from(CHAINS), length=st.integers(1, 4))
    def run(self, data, chain, length):
        self.worker(data).run(chain, length)

    @rule(data=st.data())
    def release(self, data):
        worker = self.worker(data)
        if worker.owned:
            worker.blocks.release(worker.owned.pop(data.draw(st.integers(0, len(worker.owned) - 1))))

    @rule(data=st.data(), chain=st.sampled_from(CHAINS))
    def forget(self, data, chain):
        self.worker(data).blocks.forget(chain[:2])

    @rule(data=st.data(), loses=st.booleans())
    def follow(self, data, loses):
        """The next changes arrive, or are lost: then the ones after them are refused until the gap is closed."""
        worker = self.worker(data)
        known = self.index.last_of(worker.name)
        sent = worker.lost[-1].last if worker.lost else known
        changes = None if sent is None else worker.blocks.cache.changes.since(sent)
        if changes is None:
            self.dump(worker)
        elif loses:
            worker.lost.append(changes)
        elif not self.index.apply(worker.name, changes):
            assert known is not None
            between = worker.blocks.cache.changes.since(known)
            if between is None:
                self.dump(worker)
            else:
                assert self.index.apply(worker.name, between)
        if not loses or changes is None:
            worker.lost.clear()
            assert self.index.blocks_of(worker.name) == worker.names

    @rule(data=st.data())
    def arrive_again(self, data):
        """Changes that were thought lost arrive late: they may be refused, they must not undo newer ones."""
        worker = self.worker(data)
        if worker.lost:
            before = self.index.last_of(worker.name)
            late = data.draw(st.sampled_from(worker.lost))
            if before is not None and late.last < before:
                assert self.index.apply(worker.name, late)
                assert self.index.last_of(worker.name) == before

    @precondition(lambda self: self.count < 12)
    @rule(place=st.integers(0, 1))
    def restart(self, place):
        """Another process takes the place of a worker; nothing of the old one is left."""
        old = self.workers[place]
        self.index.drop(old.name)
        assert self.index.blocks_of(old.name) == frozenset()
        self.workers[place] = Worker(f"w{self.count}")
        self.count += 1

    @rule(max_blocks=st.integers(1, 5))
    def sweep(self, max_blocks):
        self.index.sweep(max_blocks)

    def dump(self, worker: Worker) -> None:
        for part in worker.dump().parts(3):
            assert self.index.apply(worker.name, part)

    @invariant()
    def matches_what_the_copies_say(self):
        for chain in CHAINS:
            names = [short_hash(one) for one in chain]
            depths = {}
            for worker in self.workers:
                known = self.index.blocks_of(worker.name)
                depth = next((i for i, name in enumerate(names) if name not in known), len(names))
                if depth:
                    depths[worker.name] = depth
            assert self.index.match(names) == PrefixMatches(depths, {})
        assert len(self.index) == sum(len(self.index.blocks_of(worker.name)) for worker in self.workers)


TestPrefixIndex = PrefixIndexMachine.TestCase
TestPrefixIndex.settings = settings(max_examples=examples(80), stateful_step_count=50, deadline=None)


def changes(after: int, last: int, stored: tuple[int, ...] = (), removed: tuple[int, ...] = ()) -> CacheChanges:
    return CacheChanges(after=after, last=last, stored=stored, removed=removed)


def test_changes_after_a_gap_are_refused_and_change_nothing() -> None:
    index = PrefixIndex(max_blocks=10)
    assert not index.apply("w", changes(0, 1, (7,)))  # no dump came first
    assert index.apply("w", CacheChanges(after=0, last=4, stored=(1, 2), is_dump=True))
    assert not index.apply("w", changes(5, 6, (3,)))
    assert index.blocks_of("w") == {1, 2}
    assert index.apply("w", changes(4, 6, (3,), (1,)))
    assert index.blocks_of("w") == {2, 3}


def num_calls(work: Callable[[], object]) -> int:
    """Calls of C functions, such as those of sets and dictionaries, that ``work`` makes."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "c_call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_worker_with_many_blocks_is_dropped_without_looking_at_them() -> None:
    index, names = PrefixIndex(max_blocks=10_000), tuple(range(10_000))
    for worker in ("gone", "stays"):
        assert index.apply(worker, CacheChanges(after=0, last=1, stored=names, on_host=(1, 2), is_dump=True))
    assert num_calls(lambda: index.drop("gone")) < 10
    assert index.match([1, 2, 3]) == PrefixMatches({"stays": 3}, {"stays": (2, 0)})
    assert len(index) == 10_000
    assert index.apply("new", CacheChanges(after=0, last=1, stored=(3,), is_dump=True)), "under a bit of its own"
    assert index.match([1, 2, 3]) == PrefixMatches({"stays": 3}, {"stays": (2, 0)})
    num_sweeps = 1
    while index.sweep(100):
        num_sweeps += 1
    assert num_sweeps == 100
    index.drop("stays")
    assert index.match([3]) == PrefixMatches({"new": 1}, {})
    assert index.match([1]) == PrefixMatches({}, {})


def test_a_worker_over_the_bound_is_known_in_part() -> None:
    index = PrefixIndex(max_blocks=3)
    assert index.apply("w", CacheChanges(after=0, last=5, stored=(1, 2, 3, 4, 5), is_dump=True))
    assert index.blocks_of("w") == {1, 2, 3}
    assert index.num_left_out == 2
    assert index.apply("w", changes(5, 7, (6,), (5, 1)))
    assert index.blocks_of("w") == {2, 3, 6}


def test_a_reader_that_fell_back_gets_no_changes_and_neither_does_one_from_elsewhere() -> None:
    log = ChangeLog(3)
    for number in range(5):
        log.note(bytes([number]) * 32, is_stored=True)
    assert log.since(1) is None
    assert log.since(6) is None
    found = log.since(2)
    assert found is not None
    assert len(found.stored) == 3
    log.note(bytes([4]) * 32, is_stored=False)
    assert log.since(4) == changes(4, 6, (), (short_hash(bytes([4]) * 32),))
    assert log.since(6) == changes(6, 6)


def test_blocks_move_between_tiers_and_are_counted_as_far_as_a_worker_matches() -> None:
    index = PrefixIndex(max_blocks=10)
    assert index.apply("a", CacheChanges(after=0, last=4, stored=(1, 2), on_host=(3,), on_disk=(4, 6), is_dump=True))
    assert index.apply("b", CacheChanges(after=0, last=4, on_disk=(1, 2), is_dump=True))
    assert index.match([1, 2, 3, 4, 5, 6]) == PrefixMatches({"a": 4, "b": 2}, {"a": (1, 1), "b": (0, 2)})
    assert index.apply("a", CacheChanges(after=4, last=8, stored=(3,), removed=(1, 4), on_host=(1,)))
    assert index.match([1, 2, 3, 4]) == PrefixMatches({"a": 3, "b": 2}, {"a": (1, 0), "b": (0, 2)})
    index.drop("b")
    assert index.match([1, 2]) == PrefixMatches({"a": 2}, {"a": (1, 0)})
    assert index.apply("a", CacheChanges(after=8, last=9, removed=(1,)))
    assert index.match([1, 2]) == PrefixMatches({}, {})


def test_parts_of_a_dump_have_every_tier_once() -> None:
    whole = CacheChanges(after=0, last=9, stored=(1, 2, 3), on_host=(4, 5, 6), on_disk=(7,), is_dump=True)
    parts = list(whole.parts(2))
    assert [part.is_dump for part in parts] == [True, False, False, False, False]
    assert [part.stored + part.on_host + part.on_disk for part in parts] == [(1, 2), (3,), (4, 5), (6,), (7,)]
    assert [part.after for part in parts] == [0, 9, 9, 9, 9]
    index = PrefixIndex(max_blocks=10)
    assert all(index.apply("w", part) for part in parts)
    assert index.match(range(1, 8)) == PrefixMatches({"w": 7}, {"w": (3, 1)})
    (only,) = CacheChanges(after=3, last=5, removed=(1,)).parts(2)
    assert (only.removed, only.after) == ((1,), 3)


def test_blocks_of_memory_push_out_what_disk_alone_has() -> None:
    """A disk holds more than a router remembers; what a worker computes is known all the same."""
    index = PrefixIndex(max_blocks=4)
    assert index.apply("w", CacheChanges(after=0, last=1, is_dump=True, on_disk=(1, 2, 3, 4, 5)))
    assert index.blocks_of("w") == {1, 2, 3, 4}
    assert index.apply("w", CacheChanges(after=1, last=2, stored=(6, 7)))
    assert index.apply("w", CacheChanges(after=2, last=3, on_disk=(8,)))
    assert index.blocks_of("w") == {3, 4, 6, 7}
    assert index.match([6, 7]) == PrefixMatches({"w": 2}, {})
    assert index.match([3, 4, 6]) == PrefixMatches({"w": 3}, {"w": (0, 2)})
    assert index.num_left_out == 4


def test_a_block_that_a_full_copy_has_on_disk_is_known_to_be_back_on_the_device() -> None:
    index = PrefixIndex(max_blocks=2)
    assert index.apply("w", CacheChanges(after=0, last=1, is_dump=True, on_host=(1,), on_disk=(2,)))
    assert index.match([1, 2]) == PrefixMatches({"w": 2}, {"w": (1, 1)})
    assert index.apply("w", CacheChanges(after=1, last=2, stored=(1, 2)))
    assert index.match([1, 2]) == PrefixMatches({"w": 2}, {})


def test_tiers_of_a_chain_are_counted_for_each_worker_however_they_alternate() -> None:
    """By a walk through the names of each worker."""
    index, chain = PrefixIndex(max_blocks=100), list(range(1, 25))
    tiers = {f"w{number}": [(number * place) % 3 for place in chain[: 24 - number]] for number in range(4)}
    for name, places in tiers.items():
        device, host, disk = (tuple(b for b, tier in zip(chain, places, strict=False) if tier == k) for k in range(3))
        changes = CacheChanges(after=0, last=1, stored=device, is_dump=True, on_host=host, on_disk=disk)
        assert index.apply(name, changes)
    matches = index.match(chain)
    assert matches.depths == {name: len(places) for name, places in tiers.items()}
    counted = {name: (places.count(1), places.count(2)) for name, places in tiers.items()}
    assert matches.below == {name: counts for name, counts in counted.items() if counts != (0, 0)}
