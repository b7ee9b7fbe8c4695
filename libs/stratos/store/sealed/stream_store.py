"""Records of streams, for all gateways: what is needed to go on with an answer whose gateway is gone.

<prefix>:streams:<tenant>         hash: <id> meta, <id>/h sealed head, <id>/<n> sealed tokens, <id>/d sealed end
<prefix>:streams:<tenant>:until   sorted set of the ids, by the milliseconds at which each one ends
<prefix>:streams:<tenant>:bytes   bytes of all of them

A record has one owner, by a lease; who takes it over raises its epoch, and what the older owner writes then is
refused.  Where a tenant has no room, the records that were written longest ago go first: a stream whose record has gone
runs on, and cannot be resumed.
"""

from __future__ import annotations

import base64
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.data_keys import BrokenSeal, Purpose, seal, unseal
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import stream_scripts as scripts
from stratos.store.sealed.answer_store import SubKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """How long streams are owned and kept, and how much of them."""

    lease_s: float
    kept_s: float
    tenant_bytes: int
    tenant_streams: int


class Found(enum.StrEnum):
    """State of a stream's record, as one who asks for it finds it."""

    NONE = "none"
    MADE = "made"
    """By the one who asks, who owns it."""
    TAKEN = "taken"
    """Over by the one who asks: its owner was gone."""
    LIVE = "live"
    """Another one owns it."""
    DONE = "done"
    CANCELLED = "cancelled"
    OTHER = "other"
    """It is of another body."""


class WriteOutcome(enum.StrEnum):
    """Outcomes of a write."""

    OK = "ok"
    FENCED = "fenced"
    """Another one has taken it over, or it is done."""
    CANCELLED = "cancelled"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """A record, as far as it was asked for; texts that do not open are empty."""

    found: Found
    epoch: int = 0
    head: bytes = b""
    end: bytes = b""
    blocks: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWrite:
    """News of one stream that this gateway owns; renews its lease."""

    tenant_id: str
    stream_id: str
    epoch: int
    block: int = -1
    """Number of the block, which replaces the one of this number; -1 writes none."""
    content: bytes = b""
    ends: str = ""
    """"d" done, "r" given up."""
    end: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAsk:
    """Question for one record."""

    tenant_id: str
    stream_id: str
    fingerprint: str = ""
    """Hash of the body that it has to be of; empty for any."""
    head: bytes = b""
    """Makes a record where there is none."""
    first_block: int = 0
    may_take: bool = True


class StreamStore:
    """Belongs to the event loop. Every method raises ``DependencyDown`` where Redis does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        bounds: of what is kept.
        owner: name of this process, never used again.
        sub_key: of a tenant.
        store_id: of the store that takes and gives them; ``None`` before it is known.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        bounds: StreamBounds,
        owner: str,
        sub_key: SubKey,
        store_id: StoreId = any_store,
    ) -> None:
        self._redis = redis
        self._head = f"{config.prefix}:streams"
        self.bounds = bounds
        self._owner = owner
        self._sub_key = sub_key
        self._open = GuardedScript(redis, config, scripts.OPEN, store_id)
        self._write = GuardedScript(redis, config, scripts.WRITE, store_id)
        self._cancel = GuardedScript(redis, config, scripts.CANCEL, store_id)
        self._lease_ms, self._kept_ms = int(bounds.lease_s * 1000), int(bounds.kept_s * 1000)

    def key(self, tenant_id: str) -> bytes | None:
        """The sub-key of a tenant; ``None`` where nothing of it can be kept."""
        return self._sub_key(tenant_id, Purpose.STREAM_RECORDS)

    async def open(self, ask: StreamAsk) -> StreamRecord:
        """Find a record, make it, or take it over."""
        key, bounds = self.key(ask.tenant_id), self.bounds
        if key is None:
            return StreamRecord(found=Found.NONE)
        head = _sealed(key, ask.head, ask.tenant_id, ask.stream_id, "h") if ask.head else ""
        args: list[str | int | float] = [
            ask.stream_id, self._owner, self._lease_ms, self._kept_ms, ask.fingerprint, head, ask.first_block,
            int(ask.may_take), bounds.tenant_bytes, bounds.tenant_streams,
        ]  # fmt: skip
        with translate_redis_errors():
            answer: Any = await self._open(self._keys(ask.tenant_id), args)

        def opened(text: str, field: object) -> bytes:
            return _opened(key, text, ask.tenant_id, ask.stream_id, field)

        return StreamRecord(
            found=Found(answer[0]),
            epoch=int(answer[1]),
            head=opened(answer[2], "h"),
            end=opened(answer[3], "d"),
            blocks=[opened(text, number) for number, text in enumerate(answer[4:], ask.first_block)],
        )

    async def write(self, writes: Sequence[StreamWrite]) -> list[WriteOutcome]:
        """News of many streams in one call; what came of each."""
        places = {tenant: place for place, tenant in enumerate(dict.fromkeys(write.tenant_id for write in writes))}
        args: list[str | int | float] = [self._owner, self._lease_ms, self._kept_ms]
        for write in writes:
            place, key = places[write.tenant_id], self.key(write.tenant_id)
            if key is None:  # the tenant is being deleted: its record goes with it
                args += (place, write.stream_id, -1, -1, "", "", "")
                continue
            where = write.tenant_id, write.stream_id
            content = _sealed(key, write.content, *where, write.block) if write.block >= 0 else ""
            end = _sealed(key, write.end, *where, "d") if write.ends == "d" else ""
            args += (place, write.stream_id, write.epoch, write.block, content, write.ends, end)
        with translate_redis_errors():
            answer: Any = await self._write([key for tenant in places for key in self._keys(tenant)], args)
        return [WriteOutcome(what) for what in answer]

    async def cancel(self, tenant_id: str, stream_id: str) -> str:
        """End a stream for good; its state before: none, open, done, cancelled."""
        with translate_redis_errors():
            return str(await self._cancel(self._keys(tenant_id), [stream_id, self._kept_ms]))

    async def forget(self, tenant_id: str) -> None:
        """Remove all records of a tenant that is deleted."""
        with translate_redis_errors():
            await self._redis.delete(*self._keys(tenant_id))

    def _keys(self, tenant_id: str) -> list[str]:
        head = f"{self._head}:{tenant_id}"
        return [head, f"{head}:until", f"{head}:bytes"]


def _sealed(key: bytes, plain: bytes, tenant_id: str, stream_id: str, field: object) -> str:
    return base64.b64encode(seal(key, plain, f"{tenant_id}/{stream_id}/{field}".encode())).decode()


def _opened(key: bytes, text: str, tenant_id: str, stream_id: str, field: object) -> bytes:
    if not text:
        return b""
    try:
        return unseal(key, base64.b64decode(text, validate=True), f"{tenant_id}/{stream_id}/{field}".encode())
    except (BrokenSeal, ValueError):
        return b""  # altered, or cut: as if it were not there
