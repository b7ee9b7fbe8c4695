"""Which model a session of the model ``auto`` had, for all gateways.

<prefix>:choices:<tenant>:<session>   the model, for a while after its last request

A session keeps its model as long as that is among those that its next request may get: its KV is there, and its
answers do not change their style.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

# ARGV: milliseconds that the model is kept, models that may answer, the best one first.
_KEEP = """
local kept = redis.call('GET', KEYS[1])
local found = ARGV[2]
for i = 2, #ARGV do
  if ARGV[i] == kept then found = kept end
end
redis.call('SET', KEYS[1], found, 'PX', ARGV[1])
return found
"""


class ChoiceAffinity:
    """Every method raises ``DependencyDown`` where Redis does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        kept_s: how long a session keeps its model after its last request.
        store_id: of the store that takes it; ``None`` before it is known.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, kept_s: float, store_id: StoreId = any_store) -> None:
        self._head = f"{config.prefix}:choices"
        self._kept_ms = int(kept_s * 1000)
        self._keep = GuardedScript(redis, config, _KEEP, store_id)

    async def keep(self, tenant_id: str, session: str, names: Sequence[str]) -> str:
        """The model of a session, which is the first one of ``names`` where it had none of them.

        Args:
            tenant_id: whose session it is.
            session: what its client calls it; only a digest of that is stored.
            names: models that may answer, the best one first.
        """
        key = f"{self._head}:{tenant_id}:{hashlib.sha256(session.encode()).hexdigest()[:32]}"
        with translate_redis_errors():
            found: Any = await self._keep([key], [self._kept_ms, *names])
        return str(found)
