"""How many rings a receiver may hold, and what they take: the plan of the GPU's memory leaves room for all of them."""

from __future__ import annotations

from dataclasses import replace

from stratos.kv_transfer.settings import StagingConfig, TransportConfig

GRANULARITY_BYTES = 2 << 20
"""Smaller allocations share a block of the driver's, and a handle is of the whole block."""


def whole_blocks(num_bytes: int) -> int:
    """Bytes of an allocation that holds ``num_bytes`` and shares no block."""
    return -(-num_bytes // GRANULARITY_BYTES) * GRANULARITY_BYTES


def most_rings(max_pairs: int) -> int:
    """Rings of ``max_pairs`` open pairs, and of as many ended ones that sources still map or that are still read."""
    return 2 * max_pairs


def staging_of(config: TransportConfig) -> StagingConfig:
    """Slots of the transport: as of the others, for fewer sources."""
    return replace(config.staging, max_pairs=min(config.staging.max_pairs, config.cuda_ipc.max_pairs))


def planned_bytes(config: TransportConfig) -> int:
    """Device memory that rings may take at once; 0 where the transport is off."""
    if "cuda_ipc" not in config.names:
        return 0
    staging = staging_of(config)
    return most_rings(staging.max_pairs) * whole_blocks(staging.slot_bytes * staging.slots_per_pair)
