"""Contract of pools, which have blocks computed by several engines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from stratos_offline.blocks import BlockReport, BlockTask


class BlockPool(Protocol):
    """``stratos_offline.pools.local.LocalPool`` is one, ``stratos_offline.cluster.pool.RayPool`` another."""

    def run(self, tasks: Sequence[BlockTask]) -> Iterator[BlockReport]:
        """Compute blocks, in any order; an engine that is lost is replaced, and its block begun again.

        Raises:
            StratosError: blocks are left that cannot be computed.
        """
        ...
