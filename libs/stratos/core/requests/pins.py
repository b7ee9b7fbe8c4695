"""Pins that a client asks for: up to which token a prompt's KV is to be kept, and how long.

A breakpoint ends a prefix of the prompt.  A block of tokens is kept as long as the longest of the breakpoints behind
it says.  What is kept is within the tenant's quota, and live requests come first: a pin is a preference, never a
promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_BREAKPOINTS = 4
TTL_5M_S, TTL_1H_S, TTL_24H_S = 300, 3600, 86_400
TTLS: Mapping[str, int] = {"5m": TTL_5M_S, "1h": TTL_1H_S, "24h": TTL_24H_S}
"""Seconds by the names that clients have for them."""
RETENTIONS: Mapping[str, int] = {"in_memory": TTL_5M_S, "24h": TTL_24H_S}
"""Seconds that a whole prompt is kept, by the values of ``prompt_cache_retention``."""


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The first ``num_tokens`` of a prompt are kept for ``ttl_s`` seconds after each use."""

    num_tokens: int
    ttl_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PinTerms:
    """Breakpoints of one request, and the quota of its tenant at each worker."""

    breakpoints: tuple[Breakpoint, ...] = ()
    """In the order of the prompt."""
    device_ratio: float = 0.0
    """Part of the KV pool that pins of the tenant may take."""
    host_ratio: float = 0.0
    """Part of the host tier that they may take."""

    @property
    def num_tokens(self) -> int:
        """Tokens before the last breakpoint."""
        return max((mark.num_tokens for mark in self.breakpoints), default=0)

    def block_ttls(self, block_size: int) -> list[int]:
        """Seconds by block of the prompt, for the full blocks that some breakpoint covers; never ascending."""
        ttls: list[int] = []
        for mark in sorted(self.breakpoints, key=lambda mark: -mark.ttl_s):
            ttls += [mark.ttl_s] * (mark.num_tokens // block_size - len(ttls))
        return ttls


NO_PINS = PinTerms()


@dataclass(frozen=True, slots=True)
class CacheWrites:
    """Prompt tokens whose KV was computed for a request and is kept, by how long."""

    num_5m: int = 0
    num_1h: int = 0
    num_24h: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.num_5m + self.num_1h + self.num_24h

    def plus(self, other: CacheWrites) -> CacheWrites:
        return CacheWrites(self.num_5m + other.num_5m, self.num_1h + other.num_1h, self.num_24h + other.num_24h)


NO_WRITES = CacheWrites()


def cache_writes(breakpoints: Sequence[Breakpoint], num_cached: int, num_pinned: int) -> CacheWrites:
    """Tokens ``[num_cached, num_pinned)`` of a prompt by the longest of the breakpoints behind each.

    What a cache had already is read, not written, also where it was not pinned before.
    """
    counts, begin = dict.fromkeys((TTL_5M_S, TTL_1H_S, TTL_24H_S), 0), num_cached
    for mark in sorted(breakpoints, key=lambda mark: -mark.ttl_s):
        end = min(mark.num_tokens, num_pinned)
        if end > begin:
            counts[next(ttl_s for ttl_s in counts if mark.ttl_s <= ttl_s)] += end - begin
            begin = end
    return CacheWrites(*counts.values())
