"""Rewrites of Redis' own files after a deletion: its append-only file and its dump keep what is in Redis no more.

Until a file is rewritten it has the wrapped data key of a tenant that was deleted.  Every gateway asks for a rewrite
once the tenant's requests have ended; the store lets one of them begin, at most once in ``MIN_GAP_S``, and one that
began after a tenant was deleted counts for that tenant at all gateways.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from stratos.common.clock import Clock
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_log = logging.getLogger(__name__)
MIN_GAP_S = 60.0
"""Between two rewrites: each one makes Redis write all that it has."""
_MAX_REMEMBERED = 10_000

# KEYS: when the last rewrite began, unix microseconds. ARGV: age of the deletion and gap, microseconds.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[1]) or 0)
if last > now - tonumber(ARGV[1]) then return 'covered' end
if last > now - tonumber(ARGV[2]) then return 'later' end
redis.call('SET', KEYS[1], string.format('%.0f', now))
return 'begin'
"""


class FileRewrites:
    """Belongs to the event loop.

    Args:
        redis: with decoded answers.
        config: where records lie.
        clock: of the deletions' age.
        settle_s: from a deletion, as this process hears of it, until it is asked about it.
        store_id: of the store that is followed.
    """

    def __init__(
        self, redis: Redis, config: RecordStoreConfig, clock: Clock, settle_s: float, store_id: StoreId = any_store
    ) -> None:
        self._redis = redis
        self._key = f"{config.prefix}:files-rewritten"
        self._clock = clock
        self._settle_s = settle_s
        self._take = GuardedScript(redis, config, _TAKE, store_id)
        self._heard_s: OrderedDict[str, float] = OrderedDict()
        self._is_refused = False

    async def forget(self, tenant: str) -> bool:
        """Have the files rewritten that may have something of a deleted tenant; false where it is too early to.

        Raises:
            DependencyDown: Redis does not answer; or it is another store.
        """
        if self._is_refused:
            return True
        heard_s = self._heard_s.setdefault(tenant, self._clock.now() - self._settle_s)
        while len(self._heard_s) > _MAX_REMEMBERED:
            self._heard_s.popitem(last=False)
        args = [round(1e6 * (self._clock.now() - heard_s)), round(1e6 * MIN_GAP_S)]
        with translate_redis_errors():
            found = await self._take([self._key], args)
            is_done = found == "covered" or (found == "begin" and await self._begin())
        if is_done:
            self._heard_s.pop(tenant, None)
        return is_done

    async def _begin(self) -> bool:
        try:
            await self._rewrite()
        except ResponseError as error:
            return await self._refused(error)
        except BaseException:
            await self._redis.delete(self._key)
            raise
        return True

    async def _refused(self, error: ResponseError) -> bool:
        """A rewrite that runs may have begun before the deletion; a server that allows none is asked once."""
        await self._redis.delete(self._key)
        if "in progress" in str(error).lower():
            return False
        self._is_refused = True
        _log.warning(
            "Redis does not let gateways rewrite its files (%s): they have destroyed data keys, wrapped, until the "
            "server rewrites them by itself",
            error,
        )
        return True

    async def _rewrite(self) -> None:
        persistence = await self._redis.info("persistence")
        if persistence.get("aof_enabled"):
            await self._redis.bgrewriteaof()
        if await self._has_dump():
            await self._redis.bgsave(schedule=True)

    async def _has_dump(self) -> bool:
        """The server writes dumps by itself, so there may be an old one; else one of ours would never be replaced."""
        try:
            found = await self._redis.config_get("save")
        except ResponseError:  # it is not allowed, or there is no such command
            return False
        return bool(found.get("save"))
