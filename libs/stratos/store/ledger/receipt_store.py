"""Receipts in Redis, the latest ones, bounded by bytes and by age.

<prefix>:ledger:receipts   <rank>|<JSON>; ``bounded_texts``, by the milliseconds at which each was written
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from stratos.core.ledger.receipt import RequestReceipt
from stratos.store.counters.bounded_texts import BoundedTexts
from stratos.store.counters.guard import GuardedReads, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# ARGV: most bytes, seconds that they are kept, then name, rank, text of each.
_PUT = """
for i = 3, #ARGV, 3 do
  local name, rank = ARGV[i], ARGV[i + 1]
  local old = redis.call('HGET', KEYS[1], name)
  if not old or tonumber(string.match(old, '^%d+')) <= tonumber(rank) then
    put(name, rank .. '|' .. ARGV[i + 2], now)
  end
end
trim('(' .. string.format('%.0f', now - ARGV[2] * 1000), tonumber(ARGV[1]))
save()
"""


class ReceiptStore:
    """Writes and reads.

    Args:
        redis: with decoded answers.
        config: where records lie.
        max_bytes: of all receipts of all tenants; the oldest go first.
        kept_s: after which a receipt is gone.
        store_id: of the store that takes them; ``None`` before it is known.
    """

    def __init__(
        self, redis: Redis, config: RecordStoreConfig, max_bytes: int, kept_s: float, store_id: StoreId = any_store
    ) -> None:
        self._redis = redis
        self._texts = BoundedTexts(redis, config, "ledger:receipts", "order", store_id)
        self._bounds = [max_bytes, int(kept_s)]
        self._put = self._texts.script(_PUT)
        self._reads = GuardedReads(redis, config, store_id)

    async def put(self, receipts: Sequence[RequestReceipt]) -> None:
        """Write receipts; one that another of a higher rank is there for changes nothing.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        args = [part for one in receipts for part in (_name(one.tenant, one.request_id), one.rank, one.text)]
        with translate_redis_errors():
            await self._put(self._texts.keys, [*self._bounds, *args])

    async def find(self, tenant: str, request_id: str) -> dict[str, Any] | None:
        """The sections of a tenant's receipt; ``None`` where there is none, or none any more."""
        await self._reads.check()
        with translate_redis_errors():
            stored: Any = await self._redis.hget(self._texts.keys[0], _name(tenant, request_id))
        if stored is None:
            return None
        sections: dict[str, Any] = json.loads(str(stored).partition("|")[2])
        return sections

    async def forget(self, tenant: str) -> None:
        """Remove all receipts of a tenant that is deleted."""
        await self._texts.forget(tenant)


def _name(tenant: str, request_id: str) -> str:
    return f"{tenant}/{request_id}"
