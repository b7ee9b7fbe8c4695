"""Requests of the revisions that a roll-out compares, as each gateway has counted them; the sum of all is judged.

<prefix>:rollout_counts:<start in microseconds>:<epoch>:<model>   hash, gateway process -> JSON {digest: counts}

A gateway writes its totals again and again under a name of its own, so a write whose answer is lost counts nothing
twice.  A gateway that dies takes with it what it counted since its last write.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.steps import NUM_BUCKETS, ONE_IN
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.models.rollout_record import RolloutRecord
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_KEPT_S = 8 * 24 * 3600
"""Since the last write: a day more than the longest hold."""
NONE_LEFT: Mapping[int, int] = MappingProxyType({})
_PUT = f"""
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('EXPIRE', KEYS[1], {_KEPT_S})
"""


@dataclass(slots=True)
class ArmCounts:
    """Requests of one revision; one time of each request, by the steps of ``core.ledger.steps``."""

    num_requests: int = 0
    """Requests that got a token, ended, or failed."""
    num_errors: int = 0
    """Requests among them that failed by the revision's fault, or may have."""
    ttfts: Counter[int] = field(default_factory=Counter)
    itls: Counter[int] = field(default_factory=Counter)
    """The p99 of each request's own times between tokens."""
    left: Counter[int] = field(default_factory=Counter)
    """Waits of requests beside them whose clients left before the first token: no TTFT, but one that is not shorter."""
    num_missed: int = 0
    """Requests beside them that it had no room for: refused, or answered by an external endpoint."""

    def add(self, other: ArmCounts) -> None:
        """Count what another gateway has counted."""
        self.num_requests += other.num_requests
        self.num_errors += other.num_errors
        self.num_missed += other.num_missed
        self.ttfts.update(other.ttfts)
        self.itls.update(other.itls)
        self.left.update(other.left)

    def as_json(self) -> dict[str, Any]:
        """Counts by name; steps that are empty are left out."""
        return {
            "requests": self.num_requests,
            "errors": self.num_errors,
            "missed": self.num_missed,
            "ttfts": self.ttfts,
            "itls": self.itls,
            "left": self.left,
        }


def p99_bucket_of(counts: Mapping[int, int], left: Mapping[int, int] = NONE_LEFT) -> int | None:
    """The step with the p99 (nearest rank); ``None`` without any time.

    Args:
        counts: of times.
        left: of waits that ended without a time.  One that is not below the p99 counts, a shorter one says nothing.
    """
    total, seen = sum(counts.values()), 0
    for bucket in sorted({*counts, *left}, reverse=True):
        seen += counts.get(bucket, 0) + left.get(bucket, 0)
        total += left.get(bucket, 0)
        if seen > total // ONE_IN and counts:
            return bucket
    return None


@dataclass(frozen=True, slots=True)
class CountName:
    """Which counts of which roll-out."""

    model: str
    started_us: int
    epoch: int

    @classmethod
    def of(cls, rollout: RolloutRecord) -> CountName:
        """The counts that are judged now."""
        return cls(rollout.model, rollout.started_us, rollout.epoch)


_Read = tuple[str, Mapping[str, ArmCounts]]
"""Text of a gateway, and what it says; nothing changes it."""


class ArmCountStore:
    """Writes and sums counts; both raise ``DependencyDown`` where Redis does not answer, or is another store.

    Args:
        redis: with decoded answers.
        config: where records lie.
        gateway: name of this process, never used again.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, gateway: str, store_id: StoreId = any_store) -> None:
        self._redis = redis
        self._head = f"{config.prefix}:rollout_counts"
        self._gateway = gateway
        self._put = GuardedScript(redis, config, _PUT, store_id)
        self._reads = GuardedReads(redis, config, store_id)
        self._read: dict[CountName, dict[str, _Read]] = {}
        """Texts of gateways at the last look, of the last count of each model."""

    async def put(self, name: CountName, arms: Mapping[str, ArmCounts]) -> None:
        """Write all that this gateway has counted, by digest."""
        text = json.dumps({digest: arm.as_json() for digest, arm in arms.items()}, separators=(",", ":"))
        with translate_redis_errors():
            await self._put([self._key(name)], [self._gateway, text])

    async def sums(self, name: CountName) -> dict[str, ArmCounts]:
        """Counts of all gateways by digest."""
        await self._reads.check()
        with translate_redis_errors():
            texts: Any = await self._redis.hgetall(self._key(name))
        known = self._read.get(name, {})
        read, total = await asyncio.to_thread(_summed, texts, known)  # up to a millisecond of each gateway
        self._read = {other: found for other, found in self._read.items() if other.model != name.model} | {name: read}
        return total

    async def forget(self, name: CountName) -> None:
        """Remove counts of a step that is over; what a gateway still writes to them is kept for days, and not read."""
        await self._reads.check()
        with translate_redis_errors():
            await self._redis.unlink(self._key(name))

    def _key(self, name: CountName) -> str:
        return f"{self._head}:{name.started_us}:{name.epoch}:{name.model}"


def _summed(texts: Mapping[str, str], known: Mapping[str, _Read]) -> tuple[dict[str, _Read], dict[str, ArmCounts]]:
    """Texts of gateways, of which only those that have changed are read, and the sum; runs in another thread."""
    read, total = dict[str, _Read](), dict[str, ArmCounts]()
    for gateway, text in texts.items():
        last = known.get(gateway)
        read[gateway] = last if last is not None and last[0] == text else (text, _arms(text))
        for digest, arm in read[gateway][1].items():
            total.setdefault(digest, ArmCounts()).add(arm)
    return read, total


def _arms(text: str) -> Mapping[str, ArmCounts]:
    """Counts by digest; what cannot be read, as of a later version, counts as nothing."""
    try:
        return {digest: _counts(value) for digest, value in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _counts(value: Mapping[str, Any]) -> ArmCounts:
    return ArmCounts(
        num_requests=int(value["requests"]),
        num_errors=int(value["errors"]),
        num_missed=int(value["missed"]),
        ttfts=_steps(value["ttfts"]),
        itls=_steps(value["itls"]),
        left=_steps(value["left"]),
    )


def _steps(value: Mapping[str, int]) -> Counter[int]:
    found = Counter({int(bucket): int(count) for bucket, count in value.items()})
    if any(not 0 <= bucket < NUM_BUCKETS or count < 0 for bucket, count in found.items()):
        raise ValueError("no step of a histogram")
    return found
