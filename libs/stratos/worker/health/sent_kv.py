"""Record of the KV that a worker has sent since it last gave known tokens right: receivers forget it, should the worker
be convicted.

Kept as token ids, of which the hashes of blocks are made only then: they are asked for once in a worker's life, if
at all.  The record is bounded; what was sent longest ago falls out first and is counted.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from stratos.common.background import BackgroundTasks
from stratos.common.clock import Clock
from stratos.core.block_hash import block_hashes, chain_root
from stratos.core.kv import KvIdentity
from stratos.core.placement import WorkerRef
from stratos.core.requests.terms import RequestTerms

MAX_TOKENS = 1 << 20
"""4 MiB of token ids."""
_log = logging.getLogger(__name__)

Forget = Callable[[WorkerRef, Sequence[bytes]], Awaitable[None]]
"""Lets a worker forget blocks; bounded in time, and raises nothing."""


@dataclass(frozen=True, slots=True)
class _Sent:
    at_s: float
    receiver: WorkerRef
    identity: KvIdentity
    adapter_digest: str
    cache_salt: bytes
    token_ids: array[int]

    def hashes(self, block_size: int) -> list[bytes]:
        root = chain_root(self.identity, self.adapter_digest, self.cache_salt)
        return block_hashes(root, self.token_ids, block_size)


class SentKv:
    """Belongs to the event loop.

    Args:
        clock: of the entries.
        block_size: tokens of a KV block.
        forget: tells a receiver.
        max_tokens: bound of the record; 0 keeps none, for a worker that nothing convicts.
    """

    def __init__(self, clock: Clock, block_size: int, forget: Forget, max_tokens: int = MAX_TOKENS) -> None:
        self._clock, self._block_size, self._forget, self._max_tokens = clock, block_size, forget, max_tokens
        self._sent: deque[_Sent] = deque()
        self._telling, self._is_convicted = BackgroundTasks(), False
        self.num_tokens = self.num_dropped_tokens = 0
        """Of the record, and that fell out of it."""

    def note(self, receiver: WorkerRef, identity: KvIdentity, terms: RequestTerms, token_ids: tuple[int, ...]) -> None:
        """A receiver has the KV of these first tokens of a prompt now, in part perhaps from before."""
        token_ids = token_ids[: self._max_tokens]
        if not token_ids:
            return
        adapter, now_s = terms.adapter.digest, self._clock.now()
        self._sent.append(_Sent(now_s, receiver, identity, adapter, terms.cache_salt, array("I", token_ids)))
        self.num_tokens += len(token_ids)
        while self.num_tokens > self._max_tokens:
            self.num_dropped_tokens += self._drop_first()
        if self._is_convicted:  # a leg whose receiver was done before it knew
            self.recall()

    def sound_at(self, began_s: float) -> None:
        """Known tokens that were begun then came out right: what was sent before is good."""
        self.num_dropped_tokens = 0
        while self._sent and self._sent[0].at_s < began_s:
            self._drop_first()

    def recall(self) -> None:
        """Begin to tell every receiver, and go on so with what is noted from now on."""
        sent, self.num_tokens, self._is_convicted = list(self._sent), 0, True
        self._sent.clear()
        if self.num_dropped_tokens:
            _log.warning("%d tokens of KV were sent too long ago to be recalled", self.num_dropped_tokens)
        for receiver in {one.receiver for one in sent}:
            theirs = [one for one in sent if one.receiver == receiver]
            self._telling.spawn(self._tell(receiver, theirs), name=f"recall from {receiver.worker_id}")

    async def _tell(self, receiver: WorkerRef, sent: Iterable[_Sent]) -> None:
        hashes = await asyncio.to_thread(
            lambda: list(dict.fromkeys(name for one in sent for name in one.hashes(self._block_size)))
        )
        await self._forget(receiver, hashes)

    def _drop_first(self) -> int:
        num_tokens = len(self._sent.popleft().token_ids)
        self.num_tokens -= num_tokens
        return num_tokens

    async def close(self) -> None:
        """Wait until receivers know."""
        await self._telling.close()
