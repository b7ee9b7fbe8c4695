"""Context that the request tables of an engine share: configuration, memory, queues, counters."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from stratos.common.clock import Clock
from stratos.common.errors import ContextLengthExceeded
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.requests.pins import PinnedSpan
from stratos.engine.contract.runner import RunnerInfo
from stratos.engine.kv_cache.cache import KvCache
from stratos.engine.requests.grammars import RequestGrammars
from stratos.engine.scheduler.scheduler import Scheduler
from stratos.engine.sequence import Sequence
from stratos.engine.settings import SchedulerConfig


@dataclass(slots=True, kw_only=True)
class EngineContext:
    """One per engine; guarded by the core's lock."""

    info: RunnerInfo
    config: SchedulerConfig
    clock: Clock
    kv: KvCache
    scheduler: Scheduler
    grammars: RequestGrammars
    seq_ids: Iterator[int] = field(default_factory=itertools.count)

    def check_size(self, num_tokens: int, num_output: int = 0) -> None:
        """Raise ``ContextLengthExceeded`` for tokens that could never fit the model's context or the pool.

        A prompt of ``num_tokens`` must fit whole, as a hand-off carries it whole; of ``num_output`` tokens of output
        after it only what is held at a time, where blocks are released.
        """
        if num_tokens + num_output > self.info.max_model_len:
            raise ContextLengthExceeded(
                f"{num_tokens + num_output} tokens do not fit the context of {self.info.max_model_len}"
            )
        blocks, window = self.kv.blocks, self.kv.tables.window
        num_prompt_blocks, num_blocks = blocks.blocks_for(num_tokens), blocks.blocks_for(num_tokens + num_output)
        if (num_blocks if window is None else window.at_once(num_prompt_blocks, num_blocks)) > blocks.num_blocks:
            capacity = self.kv.blocks.num_blocks * self.kv.blocks.block_size
            raise ContextLengthExceeded(f"{num_tokens + num_output} tokens do not fit the KV pool of {capacity} tokens")

    def root(self, adapter_digest: str, cache_salt: bytes) -> bytes:
        """Root of the block-hash chains of one adapter and tenant salt."""
        return chain_root(self.info.identity, adapter_digest, cache_salt)

    def prompt_hashes(self, prompt_ids: tuple[int, ...], adapter_digest: str, cache_salt: bytes) -> list[bytes]:
        """Hashes of the full blocks of a prompt, its last token excluded."""
        return block_hashes(self.root(adapter_digest, cache_salt), prompt_ids[:-1], self.kv.blocks.block_size)

    def num_cached_blocks(self, hashes: list[bytes]) -> int:
        """Blocks of the chain that the tiers hold for a hand-off to start from."""
        num_blocks, tier = len(self.kv.blocks.match(hashes)), self.kv.tier
        hosted = tier.match(hashes[num_blocks:], may_wait=False)
        tier.unmatch(hosted)
        return num_blocks + len(hosted)

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Offer full, computed blocks of a sequence to the prefix cache."""
        size = self.kv.blocks.block_size
        num_full = sequence.num_computed // size
        if num_full <= sequence.num_hashed or not self.config.shares_prefixes:
            return
        hashes = sequence.hash_chain(num_full, size)
        for index in range(sequence.num_hashed, num_full):
            self.kv.store(hashes[index], sequence.block_table[index], sequence.terms.tenant)
        sequence.num_hashed = num_full

    def pin_prompt(self, sequence: Sequence) -> tuple[int, tuple[PinnedSpan, ...]]:
        """Pin blocks of a prompt that is computed, as its terms say.

        Returns:
            The tokens of its beginning that are pinned, and those of them that were not, or for a shorter time.
        """
        pins, size = sequence.terms.pins, self.kv.blocks.block_size
        if not pins.breakpoints or not self.config.shares_prefixes:
            return 0, ()
        num_blocks = min(pins.num_tokens // size, sequence.num_hashed)
        return self.kv.pin(sequence.hash_chain(num_blocks, size), sequence.terms)
