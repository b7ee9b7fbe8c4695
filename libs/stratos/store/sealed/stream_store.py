"""Records of streams, for all gateways: what is needed to go on with an answer whose gateway is gone.

<prefix>:streams:<tenant>         hash: <id> meta, <id>/h sealed head, <id>/<n> sealed tokens, <id>/d sealed end,
                                  and before it where the stream runs
<prefix>:streams:<tenant>:until   sorted set of the ids, by the milliseconds at which each one ends
<prefix>:streams:<tenant>:bytes   bytes of all of them
<prefix>:streams:<tenant>:frames  hash: newest tokens of all its streams at each gateway, sealed together
<prefix>:streams:<tenant>:queue:<model>   sorted set of open ones without a client, by the milliseconds of their turns
<prefix>:streams:queues:<model>           sorted set of tenants that have a queue, by the milliseconds of the last look
<prefix>:streams:tenants                  sorted set of tenants, of whose records texts may move (``stream_spill``)

A record has one owner, by a lease; who takes it over raises its epoch, and what the older owner writes then is
refused.  Its blocks are written seldom; what came since then is in its owner's frames (``stream_frames``), one for all
streams of a tenant at a time, so that a token costs next to nothing.  Texts of what was written longest ago move to the
object store before a tenant's room is used up, and are read from there.  Where there is none, or they come quicker than
that, whole records go, the oldest first: a stream whose record has gone runs on, and cannot be resumed.
"""

from __future__ import annotations

import contextlib
import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import RedisError

from stratos.common.errors import DependencyDown
from stratos.store.connections.awake_timeout import AwakeTimeout
from stratos.store.counters.guard import GuardedScript, StoreId, any_store
from stratos.store.counters.script_line import ScriptLine
from stratos.store.data_keys import PlaceCipher, Purpose
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import stream_scripts as scripts
from stratos.store.sealed.answer_store import SubKey
from stratos.store.sealed.moved_texts import NOWHERE, MovedTexts, RecordUnread
from stratos.store.sealed.stream_frames import (
    FrameTurns,
    StreamFrame,
    StreamFrames,
    frame_place,
    opened_text,
    sealed_by,
    sealed_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBounds:
    """How long streams are owned and kept, and how much of them."""

    lease_s: float
    kept_s: float
    tenant_bytes: int
    tenant_streams: int
    queued_s: float = 86_400.0
    """Most time of one without a client, until it has ended."""
    tenant_queued: int = 1000
    """Open ones without a client, of one tenant."""
    spill_bytes: int = 0
    """Bytes of a tenant over which texts move to the object store at once; 0 where none ever do."""
    spill_look_s: float = 60.0
    """Seconds until a look whether some are to move in any case."""
    has_room: Callable[[], bool] = lambda: True
    """Whether Redis has memory for further records; those that are there are read and written in any case."""


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
    FAILED = "failed"
    OTHER = "other"
    """It is of another body."""
    FULL = "full"
    """The tenant has too many without a client."""


class WriteOutcome(enum.StrEnum):
    """Outcomes of a write."""

    OK = "ok"
    FENCED = "fenced"
    """Another one has taken it over, or it is done."""
    CANCELLED = "cancelled"
    GONE = "gone"


_NONCES = 64
"""Drawn at a time."""
_BY_LETTER = {outcome.value[0]: outcome for outcome in WriteOutcome}
"""A write is answered by one letter: a client reads one text far quicker than a list of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRecord:
    """A record, as far as it was asked for; texts that do not open are empty."""

    found: Found
    epoch: int = 0
    head: bytes = b""
    end: bytes = b""
    """Facts of the end; of one that is open, where it runs."""
    blocks: Sequence[bytes] = ()
    tail: Mapping[int, int] = field(default_factory=dict)
    """Newest tokens of its only choice, by their numbers among the pieces of all its blocks; some are in those, too."""
    number: int = 0
    """New one for it, in frames of the one who asked."""
    seen: tuple[str, int] = ("", 0)
    """Gateway and turn of the newest frame that was read."""


@dataclass(slots=True, kw_only=True)  # not frozen: there are thousands a second, and freezing them triples their cost
class StreamWrite:
    """News of one stream that this gateway owns; renews its lease."""

    tenant_id: str
    stream_id: str
    epoch: int
    block: int = -1
    """Number of the block, which replaces the one of this number; -1 writes none."""
    content: bytes = b""
    number: int = 0
    """Number of the stream in frames of this gateway, which go on behind the block."""
    pieces: tuple[int, int] = (0, 0)
    """Pieces before its newest block, and with it: so none is missing between two blocks."""
    ends: str = ""
    """"d" done, "r" given up."""
    end: bytes = b""
    """Facts of the end; before it, where the stream runs."""


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
    seen: tuple[str, int] = ("", 0)
    """That of the record as it was read before: older frames are not shown again, unless it is taken over."""
    may_take: bool = True
    is_queued: bool = False
    """The record that it makes has no client, and no owner before a gateway takes it from the queue."""
    wants_head: bool = True
    """The head is read, too, where it lies in the object store."""
    within_s: float | None = None
    """Most time for Redis, without that in which this process was held up."""


@dataclass(slots=True)
class _TenantOfCall:
    """Where texts of a tenant go in a call, and what seals them."""

    key: bytes | None
    cipher: PlaceCipher | None
    """``None`` where the tenant is being deleted."""
    keys: Sequence[bytes]
    """Names in Redis."""
    place: int = 0
    """Among the tenants of the call."""


class StreamStore:
    """Belongs to the event loop. Every method raises ``DependencyDown`` where Redis does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        bounds: of what is kept.
        owner: name of this process, never used again.
        sub_key: of a tenant.
        store_id: of the store that takes and gives them; ``None`` before it is known.
        model: base model of this gateway: it takes streams of no other one from queues.
        moved: reads texts that were moved to the object store.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        bounds: StreamBounds,
        owner: str,
        sub_key: SubKey,
        store_id: StoreId = any_store,
        model: str = "",
        moved: MovedTexts = NOWHERE,
    ) -> None:
        self._redis = redis
        self._model = model
        self._head = f"{config.prefix}:streams"
        self.bounds = bounds
        self._owner = owner
        self._sub_key = sub_key
        self._moved = moved
        texts = scripts.OPEN, scripts.CANCEL, scripts.CLAIM, scripts.DELAY, scripts.FAIL, scripts.DROP
        made = (GuardedScript(redis, config, text, store_id) for text in texts)
        self._open, self._cancel, self._claim, self._delay, self._fail, self._drop = made
        self._frames = StreamFrames(redis)
        self._tenants: dict[str, _TenantOfCall] = {}
        """Of the last call that wrote."""
        self._numbers = itertools.count(1)
        self._lease_ms, self._kept_ms = int(bounds.lease_s * 1000), int(bounds.kept_s * 1000)
        first = owner.encode(), b"%d" % self._lease_ms, b"%d" % self._kept_ms
        self._write = ScriptLine(redis, config, scripts.WRITE, store_id, first)

    def key(self, tenant_id: str) -> bytes | None:
        """The sub-key of a tenant; ``None`` where nothing of it can be kept."""
        return self._sub_key(tenant_id, Purpose.STREAM_RECORDS)

    async def open(self, ask: StreamAsk) -> StreamRecord:
        """Find a record, make it, or take it over.

        Raises:
            RecordUnread: there is one, and the object store has a part of it and does not answer.
            StreamGone: a part of it is lost.
            TimeoutError: Redis does not answer in time.
        """
        key = self.key(ask.tenant_id)
        if key is None:
            return StreamRecord(found=Found.NONE)
        async with AwakeTimeout(ask.within_s):
            with translate_redis_errors():
                answer: Any = await self._open(
                    [*self.keys(ask.tenant_id), f"{self._head}:tenants"], self._args(key, ask)
                )
            what, epoch, head, end, writer, number_there, first, last, is_by_turn, moved, *blocks = answer
            if ask.seen[0] == writer and what != Found.TAKEN:
                first = max(first, ask.seen[1] + 1)
            turns = FrameTurns(ask.tenant_id, writer, first, last, is_by_turn=bool(is_by_turn))
            with translate_redis_errors():
                tail = await self._frames.tail(key, self.keys(ask.tenant_id)[-1], turns, number_there)
        texts = {"h": head, "d": end} | {str(number): text for number, text in enumerate(blocks, ask.first_block)}
        if moved:
            texts |= await self._read_moved(key, ask, Found(what), texts, moved)

        def opened(field: str) -> bytes:
            return opened_text(key, texts[field], f"{ask.tenant_id}/{ask.stream_id}/{field}")

        return StreamRecord(
            found=Found(what),
            epoch=int(epoch),
            head=opened("h"),
            end=opened("d"),
            blocks=[opened(str(number)) for number in range(ask.first_block, ask.first_block + len(blocks))],
            tail=tail,
            number=next(self._numbers),
            seen=(writer, last),
        )

    def _args(self, key: bytes, ask: StreamAsk) -> list[str | int | float]:
        """Arguments of the script that finds a record."""
        bounds = self.bounds
        may_make = ask.head and bounds.has_room()
        head = sealed_text(key, ask.head, f"{ask.tenant_id}/{ask.stream_id}/h") if may_make else ""
        return [
            ask.stream_id, self._owner, self._lease_ms, self._kept_ms, ask.fingerprint, head, ask.first_block,
            int(ask.may_take), bounds.tenant_bytes, bounds.tenant_streams,
            int(bounds.queued_s * 1000) + self._kept_ms if ask.is_queued else 0, bounds.tenant_queued, ask.tenant_id,
            bounds.spill_bytes, int(bounds.spill_look_s * 1000), int(ask.wants_head),
        ]  # fmt: skip

    async def _read_moved(
        self, key: bytes, ask: StreamAsk, found: Found, texts: Mapping[str, str], moved: str
    ) -> dict[str, str]:
        """Texts that are wanted and have moved; what was taken over, and cannot be read now, is given up again."""
        unread = {"d"} if found in (Found.LIVE, Found.TAKEN) else set()
        if not ask.wants_head:
            unread.add("h")
        missing = {field for field, text in texts.items() if not text and field not in unread}
        try:
            return await self._moved.read(key, ask.tenant_id, ask.stream_id, orjson.loads(moved), missing)
        except RecordUnread:
            if found is Found.TAKEN:
                with contextlib.suppress(DependencyDown, RedisError):  # else its lease ends by itself
                    await self.delay(ask.tenant_id, ask.stream_id, 0)
            raise

    async def write(
        self,
        writes: Sequence[StreamWrite],
        frames: Sequence[StreamFrame] = (),
        renewals: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[WriteOutcome], list[str]]:
        """News of many streams in one call; what came of each, and ids of streams that others have taken or ended.

        Told of the latter are those whose lease alone was to be renewed, and all among the tenants of the frames.

        Args:
            writes: of streams, with their leases.
            frames: of tenants.
            renewals: ids and epochs of streams whose lease alone is renewed, by tenant, a blank between.
        """
        tenants: dict[str, _TenantOfCall] = {}
        rows = [self._row(self._tenant(tenants, write.tenant_id), write) for write in writes]
        framed = []
        for frame in frames:
            tenant = self._tenant(tenants, frame.tenant_id)
            if tenant.cipher is not None:
                name = frame_place(frame.tenant_id, f"{self._owner}/{frame.turn}")
                text = sealed_by(tenant.cipher, frame.entries, name) if frame.entries else ""
                framed.append((tenant.place, frame.turn, text, [f"{self._owner}/{turn}" for turn in frame.dropped]))
        renewed = [(self._tenant(tenants, tenant_id).place, ids) for tenant_id, ids in renewals.items()]
        self._tenants = tenants
        keys = [key for tenant in tenants.values() for key in tenant.keys]
        try:
            answer = await self._write(keys, [orjson.dumps(part) for part in (rows, framed, renewed)])
        except Exception:
            with translate_redis_errors():
                raise
        letters, _, lost = answer.partition(" ")
        return [_BY_LETTER[letter] for letter in letters], lost.split()

    def _row(self, tenant: _TenantOfCall, write: StreamWrite) -> tuple[str | int, ...]:
        """A write as the script takes it."""
        stream_id, place, cipher = write.stream_id, tenant.place, tenant.cipher
        if cipher is None:  # the tenant is being deleted: its record goes with it
            return place, stream_id, -1, -1, "", "", "", 0, 0, 0
        head = f"{write.tenant_id}/{stream_id}/"
        content = sealed_by(cipher, write.content, f"{head}{write.block}") if write.block >= 0 else ""
        end = sealed_by(cipher, write.end, f"{head}d") if write.end else ""
        return place, stream_id, write.epoch, write.block, content, write.ends, end, write.number, *write.pieces

    def _tenant(self, tenants: dict[str, _TenantOfCall], tenant_id: str) -> _TenantOfCall:
        """A tenant among those of a call, as it was in the call before where its key is the same."""
        if (found := tenants.get(tenant_id)) is None:
            key, found = self.key(tenant_id), self._tenants.get(tenant_id)
            if found is None or found.key != key:
                cipher = None if key is None else PlaceCipher(key, _NONCES)
                found = _TenantOfCall(key, cipher, [name.encode() for name in self.keys(tenant_id)])
            found.place = len(tenants)
            tenants[tenant_id] = found
        return found

    async def cancel(self, tenant_id: str, stream_id: str) -> str:
        """End a stream for good; its state before: none, open, done, cancelled."""
        with translate_redis_errors():
            return str(await self._cancel(self.keys(tenant_id), [stream_id, self._kept_ms]))

    async def queues(self, most: int) -> list[str]:
        """Tenants that have streams without a client, the one that was looked at longest ago first."""
        with translate_redis_errors():
            found: Any = await self._redis.zrange(f"{self._head}:queues:{self._model}", 0, most - 1)
        return list(found)

    async def claim(self, tenant_id: str) -> tuple[str, int] | None:
        """A stream of the tenant that is due, and how many owners it has had; no other gateway finds it for a lease."""
        with translate_redis_errors():
            found: Any = await self._claim(self.keys(tenant_id), [tenant_id, self._lease_ms])
        return None if found is None else (found[0], int(found[1]))

    async def delay(self, tenant_id: str, stream_id: str, after_s: float) -> None:
        """Give a queued stream up, which is due again after a time."""
        with translate_redis_errors():
            await self._delay(self.keys(tenant_id), [stream_id, self._owner, int(after_s * 1000)])

    async def fail(self, tenant_id: str, stream_id: str, end: bytes) -> bool:
        """End a stream with an error, unless another gateway has it; whether it was ended."""
        key = self.key(tenant_id)
        if key is None:
            return False
        text = sealed_text(key, end, f"{tenant_id}/{stream_id}/d")
        with translate_redis_errors():
            return bool(await self._fail(self.keys(tenant_id), [stream_id, self._owner, self._kept_ms, text]))

    async def drop(self, tenant_id: str, stream_id: str, epoch: int = 0) -> bool:
        """Remove a record, with an epoch only if this gateway owns it in that one; whether there was one."""
        with translate_redis_errors():
            return bool(await self._drop(self.keys(tenant_id), [stream_id, self._owner, epoch]))

    async def forget(self, tenant_id: str) -> None:
        """Remove all records of a tenant that is deleted."""
        *own, queues, frames = self.keys(tenant_id)
        with translate_redis_errors():
            await self._redis.delete(*own, frames)
            await self._redis.zrem(queues, tenant_id)

    def keys(self, tenant_id: str) -> list[str]:
        """Names in Redis of a tenant's records."""
        own, model = f"{self._head}:{tenant_id}", self._model
        queues = f"{own}:queue:{model}", f"{self._head}:queues:{model}"
        return [own, f"{own}:until", f"{own}:bytes", *queues, f"{own}:frames"]
