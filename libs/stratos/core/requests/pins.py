"""Pins that a client asks for: up to which token a prompt's KV is to be kept, and how long.

A breakpoint ends a prefix of the prompt.  A block of tokens is kept as long as the longest of the breakpoints behind
it says.  What is kept is within the tenant's quota, and live requests come first: a pin is a preference, never a
promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from stratos.common.changed import record
from stratos.common.errors import BadRequest

MAX_BREAKPOINTS = 4
"""That a request may mark; the end of its prompt may be one more."""
TTL_5M_S, TTL_1H_S, TTL_24H_S = 300, 3600, 86_400
TTLS: Mapping[str, int] = {"5m": TTL_5M_S, "1h": TTL_1H_S, "24h": TTL_24H_S}
"""Seconds by the names that clients have for them."""
WRITE_COUNTS = tuple(f"cache_write_{ttl}_tokens" for ttl in TTLS)
"""Names of the counts of ``CacheWrites`` in ledger, statements and receipts, by time."""
BREAKPOINT_TTLS: Mapping[str, int] = {"30m": TTL_1H_S, "12h": TTL_24H_S}
"""The same of OpenAI's breakpoints, whose times are minimums: the next longer time that there is."""
CACHE_CONTROL, BREAKPOINT = "cache_control", "prompt_cache_breakpoint"
RETENTION, CACHE_OPTIONS = "prompt_cache_retention", "prompt_cache_options"
"""Fields with which clients ask for pins, in all dialects: of parts of a prompt, and of all of it."""
RETENTIONS: Mapping[str, int] = {"in_memory": TTL_5M_S, "in-memory": TTL_5M_S, "24h": TTL_24H_S}
"""Seconds that a whole prompt is kept, by the values of ``prompt_cache_retention``."""


class CacheMark(NamedTuple):
    """Place in the text of a message up to which it is to be kept."""

    end: int
    """Characters before it."""
    ttl_s: int
    fields: tuple[str, ...] = (CACHE_CONTROL,)
    """Marks that ask for it."""
    is_untimed: bool = False
    """One of OpenAI without a time of its own: it has the one of its request's ``prompt_cache_options``."""


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

    def block_runs(self, block_size: int) -> list[tuple[int, int]]:
        """Ends of runs of full blocks and their seconds, never ascending, as far as some breakpoint covers them."""
        runs: list[tuple[int, int]] = []
        for mark in sorted(self.breakpoints, key=lambda mark: -mark.ttl_s):
            end = mark.num_tokens // block_size
            if end > (runs[-1][0] if runs else 0):
                runs.append((end, mark.ttl_s))
        return runs


NO_PINS = PinTerms()


def cache_control_ttl(value: Any, param: str) -> int:
    """Seconds of a mark as Anthropic and OpenRouter have it.

    Raises:
        BadRequest: another type, or a time that there is not.
    """
    return _ttl(value, param, ("type", "ephemeral"), TTLS, "5m")


def breakpoint_ttl(value: Any, param: str) -> int:
    """The same of a mark as OpenAI has it."""
    return _ttl(value, param, ("mode", "explicit"), BREAKPOINT_TTLS, "30m")


class CacheOptions(NamedTuple):
    """Options of a request, as OpenAI has them."""

    keeps_all: bool
    """The whole prompt is kept, besides what breakpoints mark."""
    ttl_s: int
    """Seconds for that, and for breakpoints without a time."""

    @property
    def keeps_s(self) -> int:
        """Seconds that the whole prompt is kept."""
        return self.ttl_s if self.keeps_all else 0


def cache_options(value: Any, param: str) -> CacheOptions:
    """Read OpenAI's options: an implicit breakpoint is the end of the prompt.

    Raises:
        BadRequest: no object, or a mode, a time or a field that there is not.
    """
    if not isinstance(value, dict):
        raise BadRequest(f"{param} must be an object", param=param)
    given: dict[str, Any] = value
    mode = "implicit" if given.get("mode") is None else given["mode"]
    if mode not in ("implicit", "explicit"):
        raise BadRequest(f"{param}.mode must be implicit or explicit", param=f"{param}.mode")
    for name in given.keys() - {"mode", "ttl"}:
        text = f"{param}.{name[:100]}"
        raise BadRequest(f"unknown parameter {text!r}", param=text, code="unknown_parameter")
    return CacheOptions(mode == "implicit", _seconds(given.get("ttl"), f"{param}.ttl", BREAKPOINT_TTLS, "30m"))


def _ttl(value: Any, param: str, kind: tuple[str, str], ttls: Mapping[str, int], default: str) -> int:
    name, wanted = kind
    if not isinstance(value, dict) or value.get(name) != wanted:
        raise BadRequest(f"{param}.{name} must be {wanted}", param=f"{param}.{name}")
    return _seconds(value.get("ttl"), f"{param}.ttl", ttls, default)


def _seconds(given: Any, param: str, ttls: Mapping[str, int], default: str) -> int:
    ttl = default if given is None else given
    if not isinstance(ttl, str) or ttl not in ttls:
        raise BadRequest(f"{param} must be one of {', '.join(ttls)}", param=param)
    return ttls[ttl]


def retention_ttl(value: Any, param: str) -> int:
    """Seconds that a whole prompt is to be kept; raises ``BadRequest`` for a value that there is not."""
    if not isinstance(value, str) or value not in RETENTIONS:
        raise BadRequest(f"{param} must be one of {', '.join(RETENTIONS)}", param=param)
    return RETENTIONS[value]


class PinnedSpan(NamedTuple):
    """Tokens of a prompt that one request pins, and that were not pinned before, or for a shorter time."""

    begin: int
    end: int
    ttl_s: int


@record(frozen=True, slots=True, kw_only=False)
class CacheWrites:
    """Prompt tokens whose KV is kept since a request, by how long."""

    num_5m: int = 0
    num_1h: int = 0
    num_24h: int = 0
    num_cached: int = 0
    """Tokens of them that a cache had: nothing but keeping them is new."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.num_5m + self.num_1h + self.num_24h

    @property
    def counts(self) -> dict[str, int]:
        """Tokens by the names of ``WRITE_COUNTS``."""
        return dict(zip(WRITE_COUNTS, (self.num_5m, self.num_1h, self.num_24h), strict=True))

    def plus(self, other: CacheWrites) -> CacheWrites:
        """The sum; mostly there is nothing to add."""
        if self == NO_WRITES or other == NO_WRITES:
            return other if self == NO_WRITES else self
        return CacheWrites(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(CacheWrites)))


NO_WRITES = CacheWrites()


def cache_writes(spans: Sequence[PinnedSpan], num_found: int, num_cached: int) -> CacheWrites:
    """Tokens of spans from ``num_found`` on, by time; a cache had the first ``num_cached`` of the prompt."""
    counts, cached = dict.fromkeys((TTL_5M_S, TTL_1H_S, TTL_24H_S), 0), 0
    for span in spans:
        begin = max(span.begin, num_found)
        counts[next(ttl_s for ttl_s in counts if span.ttl_s <= ttl_s)] += max(0, span.end - begin)
        cached += max(0, min(span.end, num_cached) - begin)
    return CacheWrites(counts[TTL_5M_S], counts[TTL_1H_S], counts[TTL_24H_S], cached)
