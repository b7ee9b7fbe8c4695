"""The KV cache of an engine: everything that knows blocks, made once and shared by scheduler and request tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from stratos.common.clock import Clock
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.kv_cache.admission import KvAdmission
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.block_tables import BlockTables
from stratos.engine.kv_cache.fences import StepFences
from stratos.engine.kv_cache.host_tier import HostTier, make_tier
from stratos.engine.kv_cache.owners import BlockOwners
from stratos.engine.kv_cache.window import make_window
from stratos.engine.settings import SchedulerConfig


@dataclass(frozen=True, slots=True)
class KvCache:
    """One per engine; guarded by the core's lock."""

    blocks: BlockManager
    tier: HostTier
    admission: KvAdmission
    fences: StepFences
    tables: BlockTables
    owners: BlockOwners

    def store(self, block_hash: bytes, block: int, tenant: str) -> None:
        """Offer a full, computed block of a tenant to the prefix cache."""
        if self.blocks.cache.insert(block_hash, block):
            self.owners.note(block_hash, tenant)

    def forget(self, hashes: Sequence[bytes]) -> int:
        """Drop blocks from both tiers by hash; those in use stay in use. Returns how many were known."""
        return max(self.blocks.forget(hashes), self.tier.forget(hashes))

    @classmethod
    def make(cls, info: RunnerInfo, config: SchedulerConfig, clock: Clock, *, is_fenced: bool) -> KvCache:
        """The cache of an engine; ``is_fenced``: steps are in flight while the next one is planned.

        Raises:
            InvalidCheckpoint: the settings cannot be combined with StreamingLLM.
        """
        shares_prefixes = config.shares_prefixes
        blocks = BlockManager(
            info.num_blocks,
            info.geometry.block_size,
            enable_prefix_cache=shares_prefixes,
            max_cache_changes=config.max_cache_changes,
        )
        tier, window = make_tier(info, config, blocks, clock, is_fenced=is_fenced), make_window(info, config)
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
        return cls(blocks, tier, admission, fences, BlockTables(blocks, tier, admission, fences, window), owners)


def _is_known(blocks: BlockManager, tier: HostTier, block_hash: bytes) -> bool:
    return blocks.cache.find(block_hash) is not None or tier.pool.find(block_hash) is not None
