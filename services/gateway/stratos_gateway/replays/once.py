"""One answer for all requests with one idempotency key: a record of it, whose lease says that it is being made."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown, KeyReused, StreamGone
from stratos.store.sealed.moved_texts import RecordUnread
from stratos.store.sealed.stream_store import Found, StreamAsk, StreamRecord, StreamWrite
from stratos_gateway.streams.asking import body_fingerprint, stream_id
from stratos_gateway.streams.desk import SealedStreams
from stratos_gateway.streams.settings import StreamsConfig

_HEAD = b"-"
"""Of a record that is no stream: nothing goes on with it."""
REPLAYED = b"idempotent-replayed", b"true"


@dataclass(slots=True)
class KeyTurn:
    """A request's turn with its key."""

    answer: bytes = b""
    """Answer to an earlier request; empty where it is to be made."""
    made: bytes = b""
    """The answer, once there is one."""


class KeptAnswers:
    """Belongs to the event loop.

    Args:
        store: of records.
        config: of the gateway.
    """

    def __init__(self, store: SealedStreams, config: StreamsConfig) -> None:
        self._store = store
        self._config = config

    @asynccontextmanager
    async def once(self, tenant_id: str, key: str, path: str, body: bytes) -> AsyncIterator[KeyTurn | None]:
        """Inside, no other request with this key is answered; ``None`` where there can be no record.

        Args:
            tenant_id: whose key.
            key: of the request.
            path: of its route.
            body: what has to be the same each time.

        Raises:
            KeyReused: the key came with another body, or to another route.
            StreamGone: its record cannot be read.
            RecordUnread: nor can it now.
        """
        sub_key = self._store.key(tenant_id)
        if sub_key is None:
            yield None
            return
        stream, fingerprint = stream_id(sub_key, key), body_fingerprint(sub_key, path, body)
        ask = StreamAsk(
            tenant_id=tenant_id, stream_id=stream, fingerprint=fingerprint, head=_HEAD, within_s=self._config.call_s
        )
        found = await self._settled(ask)
        if found is None:
            yield None
        elif found.found is Found.OTHER:
            raise KeyReused("this idempotency key was used with another body")
        elif found.found is Found.DONE and found.end:
            yield KeyTurn(found.end)
        elif found.found in (Found.MADE, Found.TAKEN):
            async with self._owned(ask, found.epoch) as turn:
                yield turn
        else:
            raise StreamGone("what this idempotency key was used for before cannot be read, or was cancelled")

    async def _settled(self, ask: StreamAsk) -> StreamRecord | None:
        """The record once no other request makes its answer; ``None`` where the store does not say."""
        while True:
            try:
                found = await self._store.open(ask)
            except RecordUnread:
                raise  # there is an answer, so another one would be a second bill
            except (DependencyDown, RedisError, TimeoutError):
                return None
            if found.found is Found.NONE:  # Redis is short of memory, or the tenant's data key has gone
                return None
            if found.found is not Found.LIVE:
                return found
            await asyncio.sleep(self._config.follow_s)

    @asynccontextmanager
    async def _owned(self, ask: StreamAsk, epoch: int) -> AsyncIterator[KeyTurn]:
        turn, renewing = KeyTurn(), asyncio.create_task(self._renew(ask, epoch))
        try:
            yield turn
        finally:
            renewing.cancel()
            is_kept = 0 < len(turn.made) <= self._config.max_body_bytes and self._store.bounds.has_room()
            await self._write(
                StreamWrite(
                    tenant_id=ask.tenant_id,
                    stream_id=ask.stream_id,
                    epoch=epoch,
                    ends="d" if is_kept else "r",
                    end=turn.made if is_kept else b"",
                )
            )

    async def _renew(self, ask: StreamAsk, epoch: int) -> None:
        while True:
            await asyncio.sleep(self._store.bounds.lease_s / 3)
            with contextlib.suppress(DependencyDown, RedisError):
                await self._store.write((), (), {ask.tenant_id: f"{ask.stream_id} {epoch}"})

    async def _write(self, write: StreamWrite) -> None:
        """End the turn; where the store does not answer, its lease ends it, and the same request is computed again."""
        with contextlib.suppress(DependencyDown, RedisError, TimeoutError):
            async with asyncio.timeout(self._config.call_s):
                await self._store.write([write])
