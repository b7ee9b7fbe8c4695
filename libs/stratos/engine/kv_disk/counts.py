"""Counts of the disk tier, of which every block that was seen ends in exactly one.

noted for the disk == written + not kept (by reason) + waiting + under way
found by a request == loaded  + not loaded (by reason) + under way
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, get_args

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
