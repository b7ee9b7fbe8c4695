"""Counts of the disk tier, of which every block that was seen ends in exactly one.

noted for the disk == written + not kept (by reason) + waiting + under way
found by a request == loaded  + not loaded (by reason) + under way
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from stratos.core.kv import DiskLedger
from stratos.engine.contract.results import DiskTierStatus
from stratos.engine.kv_disk.disk_index import DiskIndex

KeepRefusal = Literal["no_key", "late", "busy", "slow", "error", "damaged", "forgotten"]
"""Why a block did not go to disk: its tenant has no key here, host memory needed its slot first, too many waited,
reading it back would take longer than computing it, the disk failed or is full, it had changed in host memory, or its
tenant was deleted."""
LoadRefusal = Literal["slow", "no_room", "error", "damaged", "other_key", "behind", "forgotten"]
"""Why a block that lies there was not loaded: computing it takes less time, no room in host memory, the disk failed, it
is not what was written, it is sealed under an older key, one before it was not loaded, or its tenant was deleted."""
KEEP_REFUSALS: tuple[KeepRefusal, ...] = get_args(KeepRefusal)
LOAD_REFUSALS: tuple[LoadRefusal, ...] = get_args(LoadRefusal)


@dataclass(slots=True)
class DiskCounts:
    """Blocks since the start. Guarded by the core's lock."""

    num_found: int = 0
    """Files of an earlier process."""
    num_noted: int = 0
    num_written: int = 0
    num_hits: int = 0
    num_loaded: int = 0
    num_verified: int = 0
    """Read and found to be what was written."""
    not_kept: Counter[KeepRefusal] = field(default_factory=Counter)
    not_loaded: Counter[LoadRefusal] = field(default_factory=Counter)

    def status(self, index: DiskIndex, block_bytes: int, *, num_waiting: int, num_loading: int) -> DiskTierStatus:
        """The counts, and what lies on disk now."""
        return DiskTierStatus(
            blocks=DiskLedger(total=index.max_blocks, stored=len(index)),
            block_bytes=block_bytes,
            num_found=self.num_found,
            num_noted=self.num_noted,
            num_waiting=num_waiting,
            num_written=self.num_written,
            num_hits=self.num_hits,
            num_loading=num_loading,
            num_loaded=self.num_loaded,
            num_verified=self.num_verified,
            not_kept=_positive(self.not_kept),
            not_loaded=_positive(self.not_loaded),
            dropped=_positive(index.dropped),
        )


def _positive(counts: Mapping[Any, int]) -> dict[str, int]:
    return {str(reason): number for reason, number in counts.items() if number}
