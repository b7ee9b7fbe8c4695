"""The tier below host memory, as the host tier and the cache see it; ``kv_disk`` is the one there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stratos.engine.contract.results import DiskTierStatus


class LowerTier(Protocol):
    """Tier below host memory of one engine; guarded by the core's lock."""

    @property
    def load_ratio(self) -> float: ...

    def __contains__(self, block_hash: bytes) -> bool: ...

    def recent(self) -> list[bytes]: ...

    def note(self, block_hash: bytes) -> None: ...

    def forget(self, hashes: Sequence[bytes]) -> int: ...

    def forget_tenant(self, tenant: str) -> int: ...

    def status(self) -> DiskTierStatus: ...

    def verify(self) -> None: ...
