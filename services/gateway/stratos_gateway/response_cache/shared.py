"""Kept answers of all gateways, in Redis: looked for within a bound of time, written in the background.

While Redis is away a gateway has what it kept itself.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos_gateway.response_cache.cache import KeptAnswer
from stratos_gateway.response_cache.codec import decode_answer, encode_answer

_log = logging.getLogger(__name__)
LOOK_S = 0.05
"""Longest wait of a request for Redis; after it the request is computed."""
MAX_SHARED_BYTES = 256 * 1024
"""Largest answer, by either measure: to read one takes 5 ms, in which no other stream goes on. With log probabilities
of many tokens it would be 200 ms; such an answer stays at its gateway."""
_MAX_WAITING = 256
"""Answers that wait to be written; more are not shared."""


class SealedAnswers(Protocol):
    """Where they are; ``store.sealed.AnswerStore`` is the one of a gateway."""

    async def put(self, tenant_id: str, request: bytes, answer: bytes, ttl_s: float) -> bool:
        """Keep the answer to a request; raises ``DependencyDown``."""
        ...

    async def find(self, tenant_id: str, request: bytes) -> tuple[bytes, float] | None:
        """The answer to a request, and for how many seconds it is still kept; raises ``DependencyDown``."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    tenant_id: str
    request: bytes
    answer: KeptAnswer
    ttl_s: float


class SharedAnswers:
    """Belongs to the event loop.

    Args:
        store: sealed answers.
    """

    def __init__(self, store: SealedAnswers) -> None:
        self._store = store
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_MAX_WAITING)

    @property
    def num_waiting(self) -> int:
        """Answers that are to be written."""
        return self._waiting.qsize()

    async def find(self, request: bytes, tenant_id: str) -> tuple[KeptAnswer, float] | None:
        """The answer that some gateway kept, and for how many seconds it may still be kept."""
        try:
            async with asyncio.timeout(LOOK_S):
                found = await self._store.find(tenant_id, request)
        except (TimeoutError, DependencyDown, RedisError) as error:
            _log.debug("an answer is not looked for: %s", error)
            return None
        if found is None or len(found[0]) > MAX_SHARED_BYTES:
            return None
        answer = decode_answer(found[0])
        return None if answer is None else (answer, found[1])

    def keep(self, request: bytes, tenant_id: str, answer: KeptAnswer, ttl_s: float) -> None:
        """Share an answer, soon; not at all where it is large, or too many wait."""
        if answer.num_bytes <= MAX_SHARED_BYTES and not self._waiting.full():
            self._waiting.put_nowait(_Waiting(tenant_id, request, answer, ttl_s))

    async def run(self) -> None:
        """Root task."""
        while True:
            one = await self._waiting.get()
            try:
                content = await asyncio.to_thread(encode_answer, one.answer)
                await self._store.put(one.tenant_id, one.request, content, one.ttl_s)
            except (DependencyDown, RedisError) as error:
                _log.debug("an answer is not shared: %s", error)
