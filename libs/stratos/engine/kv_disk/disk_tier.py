"""The disk tier of one engine: blocks of host memory go to files, and come back before a request is queued.

    out   a cached block is copied to host memory (``HostTier``); its plan has retired -> it waits here -> the writer
          thread marks its slot as moving, seals its bytes, gives the slot back, and writes the file
    in    before a request is queued, a thread looks for the blocks that follow on what device and host hold, takes
          free slots, reads, opens and verifies the files into them, and then gives the slots their hashes. The request
          finds them as it finds all of host memory; if they are gone again by then, it computes them

The step loop only notes hashes: files are touched in ``load`` and ``write``, by threads of their own.  Whatever is
wrong with a file or a disk is a block that is computed, and a count.  A slot has no hash before its content is whole
and verified, so nothing else can find it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Series
from contextlib import AbstractContextManager
from itertools import takewhile

from stratos.common.clock import Clock
from stratos.common.errors import InvalidCheckpoint
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import DiskTierStatus
from stratos.engine.contract.runner import Runner
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.kv_disk.block_folder import BlockFolder, tenant_folder
from stratos.engine.kv_disk.block_load import BlockLoad
from stratos.engine.kv_disk.block_seal import (
    OVERHEAD_BYTES,
    DamagedBlock,
    OtherKey,
    layout_digest,
    open_block,
    seal_block,
)
from stratos.engine.kv_disk.counts import DiskCounts, LoadRefusal
from stratos.engine.kv_disk.disk_costs import DiskCosts
from stratos.engine.kv_disk.disk_index import DiskIndex, DropReason
from stratos.engine.kv_disk.removals import Removals
from stratos.engine.kv_disk.tenant_keys import TenantKeys
from stratos.engine.settings import DiskTierConfig, SchedulerConfig

_log = logging.getLogger(__name__)
PAUSE_S = 30.0
"""After a failed write nothing is written for so long: a full disk stays full for a while."""
MAX_TOLD = 65536
"""Blocks that a router is told when it begins to follow; the lock is held while they are listed."""
SLOT_SHARE = 2
"""A load takes at most one in so many slots of host memory."""


class DiskTier:
    """Use ``make_disk_tier``.

    ``worth_s``, ``load`` and ``write`` may run in any thread, everything else under the core's lock.
    """

    def __init__(
        self,
        config: DiskTierConfig,
        runner: Runner,
        kv: KvCache,
        clock: Clock,
        changing: Callable[[], AbstractContextManager[None]],
        *,
        always: bool,
    ) -> None:
        self._runner, self.kv, self._clock, self._changing = runner, kv, clock, changing
        self._info, self._layout = runner.info, layout_digest(runner.info)
        geometry = runner.info.geometry
        self.block_bytes = geometry.token_bytes * geometry.block_size + OVERHEAD_BYTES
        self._folder = BlockFolder(config.directory, self._layout, self.block_bytes)
        max_blocks = config.max_bytes // self.block_bytes
        self.index = DiskIndex(max_blocks, max(1, round(max_blocks * config.max_tenant_ratio)))
        self.keys, self.counts = TenantKeys(), DiskCounts()
        self._costs = DiskCosts(self.block_bytes, kv.tier.costs, clock, always=always)
        self._waiting: OrderedDict[bytes, None] = OrderedDict()
        self.removals = Removals(self.index, self._folder, changing)
        self._loads: dict[bytes, BlockLoad] = {}
        self._writing: tuple[bytes, str] | None = None
        """The block that the writer has taken, and its tenant."""
        self._is_revoked = False
        """It was forgotten since."""
        self._failed_s = float("-inf")
        self.patience_s = config.load_timeout_s / 2
        """A load ends so soon at most: the request that waits for it gives it up later, and uses what was read."""
        self._is_closing, self._has_other_layouts = False, True
        for block_hash, folder in self._folder.scan():  # of an earlier process
            self.counts.num_found += 1
            self.removals.add(self.index.add(block_hash, folder))
        self.index.on_change = kv.blocks.cache.note_below
        kv.tier.below = self

    def stop(self) -> None:
        """End the writer after the block under way, once it has removed what is to be."""
        self._is_closing = True

    def close(self) -> None:
        """Let go of the directory, once no thread writes there."""
        self.stop()
        self._folder.close()

    # -- out ---------------------------------------------------------------------------------------

    def note(self, block_hash: bytes) -> None:
        """Host memory holds a copy of a cached block: it is to go to disk."""
        is_written = self._writing is not None and self._writing[0] == block_hash and not self._is_revoked
        if is_written or block_hash in self.index or block_hash in self._waiting:
            return
        counts = self.counts
        counts.num_noted += 1
        if self.keys.find(self.kv.owners.find(block_hash)) is None:
            counts.not_kept["no_key"] += 1
        elif self._clock.now() - self._failed_s < PAUSE_S:
            counts.not_kept["error"] += 1
        elif not self._costs.is_worth(1):
            counts.not_kept["slow"] += 1
        else:
            self._waiting[block_hash] = None
            if len(self._waiting) > self.kv.tier.pool.num_slots:
                self._waiting.popitem(last=False)
                counts.not_kept["busy"] += 1

    @property
    def has_writes(self) -> bool:
        """The writer thread has something to do."""
        return bool(self.removals or (not self._is_closing and (self._waiting or self._has_other_layouts)))

    def write(self) -> None:
        """Do all that waits; for the one thread that writes."""
        if self._has_other_layouts and not self._is_closing:
            self._has_other_layouts = self._folder.remove_other_layouts()
        while self.removals.next() or (not self._is_closing and self._write_one()):
            pass

    def _write_one(self) -> bool:
        pool, counts = self.kv.tier.pool, self.counts
        with self._changing():
            if not self._waiting:
                return False
            block_hash, _ = self._waiting.popitem(last=False)
            slot, tenant = pool.find(block_hash), self.kv.owners.find(block_hash)
            key = self.keys.find(tenant)
            if slot is None or pool.is_filling(slot):
                counts.not_kept["late"] += 1
                return True
            if tenant is None or key is None:
                counts.not_kept["no_key"] += 1
                return True
            pool.begin_move(slot)
            self._writing, self._is_revoked = (block_hash, tenant), False
        sealed = None
        try:
            content = self._runner.read_slot(slot)
            sealed = None if content is None else seal_block(key, self._layout, block_hash, content)
        finally:
            with self._changing():
                pool.end_move(slot)
                if sealed is None:
                    self._writing = None
                    counts.not_kept["damaged"] += 1  # a load from there finds out as well
        if sealed is not None:
            self._store(block_hash, tenant_folder(tenant), sealed)
        return True

    def _store(self, block_hash: bytes, folder: str, sealed: bytes) -> None:
        try:
            self._folder.write(block_hash, folder, sealed)
        except OSError as error:
            _log.warning("a KV block cannot be written to %s: %s", self._folder.path, error.strerror)
            with self._changing():
                self._failed_s, self._writing = self._clock.now(), None
                self.counts.not_kept["error"] += 1 + len(self._waiting)
                self._waiting.clear()
            return
        with self._changing():
            self._writing = None
            if self._is_revoked:
                self.counts.not_kept["forgotten"] += 1
                self.removals.add([(block_hash, folder)])
            else:
                self.counts.num_written += 1
                self.removals.add(self.index.add(block_hash, folder))

    # -- in ----------------------------------------------------------------------------------------

    def worth_s(self, token_ids: tuple[int, ...], terms: RequestTerms) -> float:
        """Seconds to compute what disk has of a prompt, 0 without; keeps the tenant's key, and touches no file."""
        hashes = self._hashes(token_ids, terms)
        with self._changing():
            self.keys.note(terms.tenant, terms.kv_key)
            return self._costs.compute_s(num) if (num := len(self._find(hashes, terms.tenant)[1])) else 0

    def load(self, token_ids: tuple[int, ...], terms: RequestTerms) -> int:
        """Bring blocks of a prompt, its last token excluded, from disk to host memory, where that beats computing.

        Returns the number of blocks; it takes no longer than they would take to compute, but for a disk that hangs.
        """
        hashes, limit_s = self._hashes(token_ids, terms), self._clock.now() + self.patience_s
        with self._changing():
            self.keys.note(terms.tenant, terms.kv_key)
            other = self._other_load(hashes)
        if other is not None:
            other.is_over.wait(min(self.patience_s, self._costs.compute_s(len(other.hashes))))
        with self._changing():
            load = self._begin(hashes, terms)
        if load is None:
            return 0
        num_read, began_s = 0, self._clock.now()
        refusal: LoadRefusal | None = "error"  # of an exception that nothing below expects
        try:
            num_read, refusal = self._read(load, limit_s)
        finally:
            with self._changing():
                num_loaded = self._end(load, num_read, refusal, self._clock.now() - began_s)
        self._folder.touch(reversed(load.hashes[:num_read]), tenant_folder(load.tenant))  # the first block goes last
        return num_loaded

    def _hashes(self, token_ids: tuple[int, ...], terms: RequestTerms) -> list[bytes]:
        root = chain_root(self._info.identity, terms.adapter.digest, terms.cache_salt)
        return block_hashes(root, token_ids[:-1], self._info.geometry.block_size)

    def _find(self, hashes: list[bytes], tenant: str) -> tuple[list[int], list[bytes]]:
        """Slots of a chain behind what the device has of it, and the blocks on disk that follow on those."""
        slots, begin = [], len(self.kv.blocks.cache.match(hashes))
        while begin < len(hashes) and (slot := self.kv.tier.pool.find(hashes[begin])) is not None:
            slots.append(slot)
            begin += 1
        folder = tenant_folder(tenant)
        return slots, list(takewhile(lambda name: self.index.folder_of(name) == folder, hashes[begin:]))

    def _other_load(self, hashes: list[bytes]) -> BlockLoad | None:
        """The load under way that has some of these blocks."""
        return next((self._loads[name] for name in hashes if name in self._loads), None)

    def _begin(self, hashes: list[bytes], terms: RequestTerms) -> BlockLoad | None:
        """Take slots for the blocks on disk that follow on what the other tiers hold."""
        pool, counts, key = self.kv.tier.pool, self.counts, self.keys.find(terms.tenant)
        before, run = self._find(hashes, terms.tenant)
        run = list(takewhile(lambda name: name not in self._loads, run))
        if key is None or not run:
            return None
        counts.num_hits += len(run)
        if not self._costs.is_worth(len(run)):
            counts.not_loaded["slow"] += len(run)
            return None
        pool.hold(before)  # the prompt needs them before those that are read: they do not make room
        num_slots = min(len(run), pool.num_unpinned, max(1, pool.num_slots // SLOT_SHARE))
        counts.not_loaded["no_room"] += len(run) - num_slots
        slots = [slot for _ in range(num_slots) if (slot := pool.allocate(None)) is not None]
        pool.release(reversed(before))
        load = BlockLoad(run[:num_slots], slots, terms.tenant, key)
        self._loads |= dict.fromkeys(load.hashes, load)
        return load

    def _read(self, load: BlockLoad, limit_s: float) -> tuple[int, LoadRefusal | None]:
        """Fill slots in the order of the chain, until ``limit_s`` at most; returns how many, and why not all."""
        limit_s = min(limit_s, self._clock.now() + self._costs.compute_s(len(load.hashes)))
        folder = tenant_folder(load.tenant)
        for number, (block_hash, slot) in enumerate(zip(load.hashes, load.slots, strict=True)):
            if number and self._clock.now() > limit_s:
                return number, "slow"
            try:
                sealed = self._folder.read(block_hash, folder)
                self._runner.fill_slot(slot, open_block(load.key, self._layout, block_hash, sealed))
            except OSError as error:
                _log.warning("a KV block cannot be read from %s: %s", self._folder.path, error.strerror)
                return number, "error"
            except OtherKey:
                return number, "other_key"
            except DamagedBlock as error:
                _log.error("a KV block in %s is damaged: %s; it is computed again", self._folder.path, error)
                return number, "damaged"
        return len(load.hashes), None

    def _end(self, load: BlockLoad, num_read: int, refusal: LoadRefusal | None, seconds: float) -> int:
        pool, counts, num_all, num_loaded = self.kv.tier.pool, self.counts, len(load.hashes), 0
        is_known = self.keys.find(load.tenant) == load.key  # else the tenant was deleted since
        for number in reversed(range(num_all)):  # the last block is the first to be evicted, here and on disk
            block_hash, slot = load.hashes[number], load.slots[number]
            del self._loads[block_hash]
            is_sound = number < num_read and is_known and block_hash not in load.revoked
            if is_sound:
                pool.name(slot, block_hash)
                self.kv.owners.note(block_hash, load.tenant)
                self.index.touch(block_hash)
            pool.end_move(slot)
            num_loaded += is_sound
        load.is_over.set()
        counts.num_verified += num_read
        counts.num_loaded += num_loaded
        counts.not_loaded["forgotten"] += num_read - num_loaded
        if refusal is not None:
            counts.not_loaded[refusal] += 1
            counts.not_loaded["slow" if refusal == "slow" else "behind"] += num_all - num_read - 1
        if refusal == "damaged" or refusal == "other_key" or refusal == "error":
            self._drop(load.hashes[num_read], refusal)
        self._costs.observe(num_read, seconds)
        return num_loaded

    def _drop(self, block_hash: bytes, reason: DropReason) -> bool:
        folder = self.index.drop(block_hash, reason)
        if folder is not None:
            self.removals.add([(block_hash, folder)])
        return folder is not None

    # -- forgetting --------------------------------------------------------------------------------

    def forget(self, hashes: Series[bytes]) -> int:
        """Drop blocks by hash, those under way included; returns how many were known."""
        known = 0
        for block_hash in hashes:
            if block_hash in self._waiting:
                del self._waiting[block_hash]
                self.counts.not_kept["forgotten"] += 1
            self._is_revoked |= self._writing is not None and self._writing[0] == block_hash
            if block_hash in self._loads:
                self._loads[block_hash].revoked.add(block_hash)
            known += self._drop(block_hash, "forgotten")
        return known

    def forget_tenant(self, tenant: str) -> int:
        """Drop a tenant's key and all of its blocks; the writer removes their files. Returns how many there were."""
        self.keys.forget(tenant)
        self._is_revoked |= self._writing is not None and self._writing[1] == tenant
        for block_hash, load in self._loads.items():
            if load.tenant == tenant:  # also where a late request brings the key again
                load.revoked.add(block_hash)
        folder = tenant_folder(tenant)
        self.removals.add([(None, folder)])
        return self.index.hide(folder)

    def forget_all(self) -> None:
        """Drop every block, and write none any more: what this process computes is wrong."""
        self.stop()
        self._is_revoked |= self._writing is not None
        for block_hash, load in self._loads.items():
            load.revoked.add(block_hash)
        for folder in self.index.folders:
            self.index.hide(folder)
            self.removals.add([(None, folder)])

    # -- what others hear --------------------------------------------------------------------------

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self.index

    def recent(self) -> list[bytes]:
        """Blocks that a router is told at first."""
        return self.index.recent(MAX_TOLD)

    @property
    def load_ratio(self) -> float:
        """Time to load a block over the time to compute it, 1 at most."""
        return self._costs.load_ratio

    def status(self) -> DiskTierStatus:
        num_waiting = len(self._waiting) + (self._writing is not None)
        return self.counts.status(self.index, self.block_bytes, num_waiting=num_waiting, num_loading=len(self._loads))

    def verify(self) -> None:
        """Raise ``AssertionError`` where the index is off, or a block is counted twice or not at all."""
        self.index.verify()
        self.status().check_laws()


def no_blocks(token_ids: tuple[int, ...], terms: RequestTerms) -> int:
    """``DiskTier.load`` and ``worth_s`` without a disk tier."""
    return 0


def make_disk_tier(
    config: DiskTierConfig | None,
    runner: Runner,
    kv: KvCache,
    clock: Clock,
    changing: Callable[[], AbstractContextManager[None]],
    scheduler: SchedulerConfig,
) -> DiskTier | None:
    """The tier of an engine; ``None`` where it is off, or there are no prefixes or no host memory to go through.

    Raises:
        InvalidCheckpoint: its directory cannot be used, or is too small for a block, or the model has states.
    """
    if config is not None and config.is_on and kv.states is not None:
        raise InvalidCheckpoint("layers with a state are not served with a disk tier: set its max_bytes to 0")
    if config is None or not config.is_on or not scheduler.shares_prefixes or not kv.tier.is_enabled:
        return None
    tier = DiskTier(config, runner, kv, clock, changing, always=not scheduler.switches.swap_costs)
    if not tier.index.max_blocks:
        tier.close()
        raise InvalidCheckpoint(f"a disk tier of {config.max_bytes} bytes holds no block of {tier.block_bytes}")
    return tier
