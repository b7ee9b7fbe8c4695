"""The chain of segments as Redis knows it: which there are, what they hold, and what of it has left Redis.

<prefix>:ledger:chain      hash {number, horizon, cleared, appended, looked, ordered, rebooks}: how many segments there
                           are, before which milliseconds of arrival an entry may be in one, how many have left Redis,
                           when the last one was appended, when nothing was left to seal, whether older entries were
                           ordered, how many segments there were before a rebooking that has not ended
<prefix>:ledger:segments   hash, number -> name of the segment
<prefix>:ledger:days       hash, day -> numbers of the segments that have entries of it, as ranges: 0-3,7-7
<prefix>:ledger:open       set of "<tenant> <day>" that have entries in Redis
<prefix>:ledger:order:<tenant>:<day>      sorted set of their request ids, by milliseconds of arrival
<prefix>:ledger:corrects:<tenant>:<day>   hash, request id -> segment that has an older entry of it, and that entry
<prefix>:ledger:sealer     lease of the gateway that seals

The horizon only rises.  An entry that stands in Redis is newer than what segments have of its request; one that arrived
before the horizon and does not stand there may be in a segment.  So a writer of such a one looks there first, and the
script refuses it where a segment was appended since then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.common.errors import DependencyDown
from stratos.core.ledger.segments import BrokenSegment, SegmentLine, SegmentRef, parse_ref
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.ledger.scripts import APPEND, BEGIN_REBOOKING, CLEAR, END_REBOOKING, NOTE, TAKE_LEASE
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_CLEAR_LINES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainState:
    """The chain at one moment."""

    num_segments: int
    last: SegmentRef | None
    horizon_ms: int
    num_cleared: int
    """Segments whose entries have left Redis."""
    appended_ms: int
    """Time of the last append; 0 for none."""
    looked_ms: int
    """Time at which nothing that was due was left; 0 for never."""
    is_ordered: bool
    """Entries of a version without an order were looked for."""


class Chain:
    """Reads and extends it; every method raises ``DependencyDown`` where Redis does not answer.

    Args:
        redis: with decoded answers.
        config: where records lie.
        store_id: of the store that is followed; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, store_id: StoreId = any_store) -> None:
        self._redis: Any = redis
        self._head = f"{config.prefix}:ledger"
        self._chain, self._segments, self._days = (f"{self._head}:{name}" for name in ("chain", "segments", "days"))
        self._append = GuardedScript(redis, config, APPEND, store_id)
        self._clear = GuardedScript(redis, config, CLEAR, store_id)
        self._note = GuardedScript(redis, config, NOTE, store_id)
        self._take_lease = GuardedScript(redis, config, TAKE_LEASE, store_id)
        self._begin_rebooking = GuardedScript(redis, config, BEGIN_REBOOKING, store_id)
        self._end_rebooking = GuardedScript(redis, config, END_REBOOKING, store_id)
        self._reads = GuardedReads(redis, config, store_id)

    async def state(self) -> ChainState:
        """Read the chain as it is now."""
        await self._reads.check()
        with translate_redis_errors():
            names = ("number", "horizon", "cleared", "appended", "looked", "ordered")
            found = [int(value or 0) for value in await self._redis.hmget(self._chain, names)]
        number, horizon_ms, num_cleared, appended_ms, looked_ms, ordered = found
        (last,) = await self.refs([number - 1]) if number else (None,)
        return ChainState(
            num_segments=number,
            last=last,
            horizon_ms=horizon_ms,
            num_cleared=num_cleared,
            appended_ms=appended_ms,
            looked_ms=looked_ms,
            is_ordered=bool(ordered),
        )

    async def refs(self, numbers: Sequence[int]) -> list[SegmentRef]:
        """Names of segments.

        Raises:
            DependencyDown: Redis has lost one.
        """
        if not numbers:
            return []
        with translate_redis_errors():
            found: list[str | None] = await self._redis.hmget(self._segments, [str(number) for number in numbers])
        try:
            return [parse_ref(text or "") for text in found]
        except BrokenSegment as error:
            raise DependencyDown(f"Redis has lost segments of the ledger: {error}") from None

    async def refs_of_day(self, day: str) -> tuple[int, list[SegmentRef]]:
        """How many segments there are, and which of them have entries of a day."""
        await self._reads.check()
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hget(self._chain, "number")
                pipeline.hget(self._days, day)
                number, ranges = await pipeline.execute()
        return int(number or 0), await self.refs(_numbers(ranges or ""))

    async def append(
        self, state: ChainState, ref: SegmentRef, horizon_ms: int, days: Sequence[str], now_ms: int
    ) -> bool:
        """Make a segment that lies in the object store the next one; false where another one was first."""
        last = "" if state.last is None else state.last.text
        args: list[str | int] = [state.num_segments, last, ref.text, horizon_ms, now_ms, *days]
        with translate_redis_errors():
            return bool(await self._append([self._chain, self._segments, self._days], args))

    async def clear(
        self, number: int, lines: Mapping[tuple[str, str], Sequence[SegmentLine]], ref: SegmentRef | None = None
    ) -> None:
        """Take lines of a segment, by tenant and day, out of Redis; once more changes nothing.

        Args:
            number: of the segment.
            lines: that it has, or that have no entry.
            ref: its name, without which in the chain nothing is taken; ``None`` for one that is being made.
        """
        name = "" if ref is None else ref.text
        for (tenant, day), found in lines.items():
            keys = [f"{self._head}:{part}:{tenant}:{day}" for part in ("entries", "order", "corrects")]
            for begin in range(0, max(len(found), 1), _CLEAR_LINES):
                texts = [part for line in found[begin : begin + _CLEAR_LINES] for part in (line.request_id, line.text)]
                with translate_redis_errors():
                    await self._clear(
                        [*keys, f"{self._head}:open", self._segments], [f"{tenant} {day}", number, name, *texts]
                    )

    async def note(self, name: str, value: int) -> None:
        """Raise one of the chain's numbers."""
        with translate_redis_errors():
            await self._note([self._chain], [name, value])

    async def begin_rebooking(self, num_segments: int) -> int:
        """Note how many segments there are before others are booked again; one that was cut short has noted it."""
        with translate_redis_errors():
            found: Any = await self._begin_rebooking([self._chain], [num_segments])
        return int(found)

    async def end_rebooking(self) -> None:
        """All of them are in the chain."""
        with translate_redis_errors():
            await self._end_rebooking([self._chain], [])

    async def take_lease(self, holder: str, lasting_s: float) -> bool:
        """Ask to be the one who seals, or to stay it; 0 gives it up. What happens once does not depend on it."""
        with translate_redis_errors():
            return bool(await self._take_lease([f"{self._head}:sealer"], [holder, int(lasting_s * 1000)]))


def _numbers(ranges: str) -> list[int]:
    pairs = (one.split("-") for one in ranges.split(",") if one)
    return [number for first, last in pairs for number in range(int(first), int(last) + 1)]
