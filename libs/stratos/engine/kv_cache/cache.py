"""The KV cache of an engine: everything that knows blocks, made once and shared by scheduler and request tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stratos.common.clock import Clock
from stratos.core.requests.pins import PinnedSpan
from stratos.core.requests.terms import RequestTerms
from stratos.engine.contract.results import DiskTierStatus, StateStatus, TierPinStatus
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.kv_cache.admission import KvAdmission
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.block_tables import BlockTables
from stratos.engine.kv_cache.change_log import Tier
from stratos.engine.kv_cache.fences import StepFences
from stratos.engine.kv_cache.grouped_blocks import GroupedBlockManager
from stratos.engine.kv_cache.host_tier import HostTier, make_tier
from stratos.engine.kv_cache.owners import BlockOwners
from stratos.engine.kv_cache.pins import Pin
from stratos.engine.kv_cache.window import make_window
from stratos.engine.kv_states.sequence_states import SequenceStates
from stratos.engine.kv_states.slot_pool import SlotPool
from stratos.engine.settings import SchedulerConfig

NO_DISK = DiskTierStatus()


@dataclass(frozen=True, slots=True)
class KvCache:
    """One per engine; guarded by the core's lock."""

    blocks: BlockManager
    tier: HostTier
    admission: KvAdmission
    fences: StepFences
    tables: BlockTables
    owners: BlockOwners
    clock: Clock
    max_pin_s: float
    states: SequenceStates | None = None
    """Recurrent states, where the model has some."""

    def store(self, block_hash: bytes, block: int, tenant: str) -> None:
        """Offer a full, computed block of a tenant to the prefix cache."""
        if self.blocks.cache.insert(block_hash, block):
            self.owners.note(block_hash, tenant)

    def hold_slot(self, slot: int) -> None:
        """Keep a slot of a state from being reused while a copy outside of the step loop touches it."""
        assert self.states is not None, "the model has states"
        self.states.pool.hold(slot)

    def release_slot(self, slot: int) -> None:
        """End that."""
        assert self.states is not None, "the model has states"
        self.states.pool.release([slot])

    def forget(self, hashes: Sequence[bytes]) -> int:
        """Drop blocks from both tiers by hash; those in use stay in use. Returns how many were known."""
        return max(self.blocks.forget(hashes), self.tier.forget(hashes))

    def forget_tenant(self, tenant: str) -> int:
        """Drop all blocks of a tenant, and its key for the disk. Returns how many were known."""
        num_below = 0 if self.tier.below is None else self.tier.below.forget_tenant(tenant)
        return max(self.forget(self.owners.take(tenant)), num_below)

    def disk_status(self) -> DiskTierStatus:
        return NO_DISK if self.tier.below is None else self.tier.below.status()

    def state_status(self) -> StateStatus:
        if self.states is None:
            return StateStatus()
        pool = self.states.pool
        return StateStatus(pool.num_slots, pool.num_available, pool.num_snapshots)

    def load_ratios(self) -> tuple[float, float]:
        """Time to load a block over the time to compute it, of host memory and of disk; 1 where there is no tier."""
        host = self.tier.costs.load_ratio() if self.tier.is_enabled else 1.0
        return host, 1.0 if self.tier.below is None else min(1.0, host + self.tier.below.load_ratio)

    def verify(self) -> None:
        """Recount all tiers; raises ``AssertionError`` where one is off."""
        self.blocks.verify()
        self.tier.pool.verify()
        if self.states is not None:
            self.states.pool.verify()
        if self.tier.below is not None:
            self.tier.below.verify()

    def pin(self, hashes: Sequence[bytes], terms: RequestTerms) -> tuple[int, tuple[PinnedSpan, ...]]:
        """Pin the first blocks of a prompt, as far as the device's pool holds them.

        A copy in host memory lives as long as that on the device; one that is made later inherits the pin.  Where
        blocks are released behind a window, or a state goes with them, they are of no use alone: nothing is pinned.

        Returns:
            First tokens of the prompt that are pinned, and those of them that were not, or for a shorter time.
        """
        if self.tables.window is not None or self.states is not None:
            return 0, ()
        self.expire_pins()
        now_s, num_pinned, begin = self.clock.now(), 0, 0
        size, spans = self.blocks.block_size, list[PinnedSpan]()
        for end, ttl_s in terms.pins.block_runs(size):
            chunk, is_whole = hashes[begin:end], num_pinned == begin
            num_kept = self.blocks.cache.pins.num_kept(chunk, ttl_s)
            pin = Pin(
                tenant=terms.tenant,
                ttl_s=ttl_s,
                expires_s=now_s + min(ttl_s, self.max_pin_s),
                device_ratio=terms.pins.device_ratio,
                host_ratio=terms.pins.host_ratio,
                priority_class=terms.priority_class,
            )
            self.tier.pool.pin(chunk, pin)
            num_here = self.blocks.cache.pin(chunk, pin)
            if is_whole and num_here > num_kept:
                spans.append(PinnedSpan((begin + num_kept) * size, (begin + num_here) * size, ttl_s))
            num_pinned, begin = num_pinned + (num_here if is_whole else 0), end
        return num_pinned * size, tuple(spans)

    @property
    def are_pins_due(self) -> bool:
        """The time of some pin is over."""
        now_s = self.clock.now()
        return self.blocks.cache.pins.is_due(now_s) or self.tier.pool.pins.is_due(now_s)

    def pin_status(self) -> dict[str, TierPinStatus]:
        """Pins by tier; those whose time is over are none, or end with the next looks where they are many."""
        self.expire_pins()
        return {"device": self.blocks.cache.pins.status(), "host": self.tier.pool.pins.status()}

    def expire_pins(self) -> None:
        """End the pins whose time is over."""
        now_s = self.clock.now()
        self.blocks.cache.pins.expire(now_s)
        self.tier.pool.pins.expire(now_s)

    @classmethod
    def make(cls, info: RunnerInfo, config: SchedulerConfig, clock: Clock, *, is_fenced: bool) -> KvCache:
        """The cache of an engine; ``is_fenced``: steps are in flight while the next one is planned.

        Raises:
            InvalidCheckpoint: the settings cannot be combined with StreamingLLM.
        """
        shares_prefixes = config.shares_prefixes
        make_blocks = BlockManager if info.groups is None else partial(GroupedBlockManager, groups=info.groups)
        blocks = make_blocks(
            info.num_blocks,
            info.geometry.block_size,
            enable_prefix_cache=shares_prefixes,
            max_cache_changes=config.max_cache_changes,
            max_pinned_ratio=config.max_pinned_ratio,
        )
        tier = make_tier(info, config, blocks, clock, is_fenced=is_fenced)
        window = make_window(info, config, is_fenced=is_fenced)
        admission = KvAdmission(
            blocks,
            watermark=config.kv_watermark,
            default_output_tokens=config.default_output_tokens,
            slot_tokens=info.max_model_len if config.baseline.kv_allocation == "contiguous" else 0,
            window=window,
        )
        fences = StepFences(blocks)
        owners = BlockOwners(partial(_is_known, blocks, tier))
        tier.on_swap_out = owners.note
        tier.pool.on_change = blocks.cache.note_below
        blocks.cache.changes.below = partial(_tier_of, tier)
        blocks.cache.below = partial(_hashes_below, blocks, tier)
        states = _make_states(info, config, blocks)
        tables = BlockTables(blocks, tier, admission, fences, window, states)
        return cls(blocks, tier, admission, fences, tables, owners, clock, config.max_pin_s, states)


def _make_states(info: RunnerInfo, config: SchedulerConfig, blocks: BlockManager) -> SequenceStates | None:
    if not info.num_state_slots:
        return None
    pool, size = SlotPool(info.num_state_slots), info.geometry.block_size
    states = SequenceStates(pool, size, config.snapshot_blocks, is_shared=config.shares_prefixes)
    blocks.usable, blocks.cache.on_gone = states.usable, pool.drop
    return states


def _is_known(blocks: BlockManager, tier: HostTier, block_hash: bytes) -> bool:
    return blocks.cache.find(block_hash) is not None or tier.pool.find(block_hash) is not None


def _tier_of(tier: HostTier, block_hash: bytes) -> Tier | None:
    """Highest tier below the device that holds a block."""
    if tier.pool.find(block_hash) is not None:
        return "host"
    return "disk" if tier.below is not None and block_hash in tier.below else None


def _hashes_below(blocks: BlockManager, tier: HostTier) -> tuple[list[bytes], list[bytes]]:
    """Hashes that host memory holds and the device does not, and those that only disk does."""
    cache, pool = blocks.cache, tier.pool
    on_host = [name for name in pool.hashes() if cache.find(name) is None]
    recent = () if tier.below is None else tier.below.recent()
    return on_host, [name for name in recent if pool.find(name) is None and cache.find(name) is None]
