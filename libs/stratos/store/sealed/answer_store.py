"""Whole answers in Redis, for all gateways: sealed, with an end, bounded by bytes over all tenants.

<prefix>:answers   sealed answers, base64; ``bounded_texts``, by the milliseconds at which each one ends

A name is a keyed hash of the request under the tenant's sub-key, so that Redis cannot even be asked whether a guessed
prompt was sent.  What ends first goes first where there is no room.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.bounded_texts import BoundedTexts
from stratos.store.counters.guard import StoreId, any_store
from stratos.store.data_keys import BrokenSeal, Purpose, seal, unseal
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# ARGV: most bytes, name, text, milliseconds that it is kept.
_PUT = """
put(ARGV[2], ARGV[3], now + ARGV[4])
trim(now, tonumber(ARGV[1]))
save()
"""
# ARGV: name. Answers {text, milliseconds that are left}, or nothing.
_FIND = """
local left = tonumber(redis.call('ZSCORE', KEYS[2], ARGV[1]) or '0') - now
if left <= 0 then return nil end
local text = redis.call('HGET', KEYS[1], ARGV[1])
return text and {text, string.format('%.0f', left)}
"""
SubKey = Callable[[str, Purpose], bytes | None]


class AnswerStore:
    """Writes and reads; without a data key of the tenant it does neither.

    Args:
        redis: with decoded answers.
        config: where records lie.
        max_bytes: of all answers of all tenants.
        sub_key: of a tenant.
        store_id: of the store that takes and gives them; ``None`` before it is known.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        max_bytes: int,
        sub_key: SubKey,
        store_id: StoreId = any_store,
    ) -> None:
        self._texts = BoundedTexts(redis, config, "answers", "until", store_id)
        self._max_bytes = max_bytes
        self._sub_key = sub_key
        self._put, self._find = self._texts.script(_PUT), self._texts.script(_FIND)

    async def put(self, tenant_id: str, request: bytes, answer: bytes, ttl_s: float) -> bool:
        """Keep the answer to a request; false where the tenant has no data key, or there is no room for one so large.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        key = self._sub_key(tenant_id, Purpose.RESPONSE_CACHE)
        if key is None or 2 * len(answer) > self._max_bytes:
            return False
        name = _name(tenant_id, request, key)
        text = base64.b64encode(seal(key, answer, name.encode())).decode()
        with translate_redis_errors():
            await self._put(self._texts.keys, [self._max_bytes, name, text, max(1, int(ttl_s * 1000))])
        return True

    async def find(self, tenant_id: str, request: bytes) -> tuple[bytes, float] | None:
        """The answer to a request, and for how many seconds it is still kept; ``None`` where there is none.

        Raises:
            DependencyDown: Redis does not answer, or is not the store.
        """
        key = self._sub_key(tenant_id, Purpose.RESPONSE_CACHE)
        if key is None:
            return None
        name = _name(tenant_id, request, key)
        with translate_redis_errors():
            found: Any = await self._find(self._texts.keys, [name])
        if found is None:
            return None
        try:
            return unseal(key, base64.b64decode(found[0], validate=True), name.encode()), int(found[1]) / 1000
        except (BrokenSeal, ValueError):
            return None  # altered, or cut: as if it were not there

    async def forget(self, tenant_id: str) -> None:
        """Remove all answers of a tenant that is deleted: without its key they are noise already."""
        await self._texts.forget(tenant_id)


def _name(tenant_id: str, request: bytes, key: bytes) -> str:
    return f"{tenant_id}/{hmac.new(key, request, hashlib.sha256).hexdigest()}"
