"""The KV cache of an engine: everything that knows blocks, made once and shared by scheduler and request tables."""

from __future__ import annotations

from dataclasses import dataclass

from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.kv_cache.admission import KvAdmission
from stratos.engine.kv_cache.block_manager import BlockManager
from stratos.engine.kv_cache.block_tables import BlockTables
from stratos.engine.kv_cache.fences import StepFences
from stratos.engine.kv_cache.host_tier import HostTier, make_tier
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

    @classmethod
    def make(cls, info: RunnerInfo, config: SchedulerConfig, *, is_fenced: bool) -> KvCache:
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
        tier, window = make_tier(info, config, blocks, is_fenced=is_fenced), make_window(info, config)
        admission = KvAdmission(
            blocks,
            watermark=config.kv_watermark,
            default_output_tokens=config.default_output_tokens,
            slot_tokens=info.max_model_len if config.kv_allocation == "contiguous" else 0,
            window=window,
        )
        fences = StepFences(blocks)
        return cls(blocks, tier, admission, fences, BlockTables(blocks, tier, admission, fences, window))
