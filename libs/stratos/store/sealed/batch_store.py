"""Batches of tenants, for all gateways: what each one is, and which gateway has which slice of its lines.

<prefix>:batches:<tenant>             sorted set of ids, by the milliseconds of their creation
<prefix>:batch:<tenant>:<id>          hash, see ``batch_scripts``
<prefix>:batch:<tenant>:<id>:leases   sorted set of slices that gateways have, by the end of their leases
<prefix>:batches-open:<model>         sorted set of "<tenant>/<id>" that gateways of a model work on, by the last look

A slice is some lines of the input.  Its result is a sealed object of its own; which result counts is decided by the
epoch of the slice's lease, in one step with the counts, so each line is counted once, however often it was computed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import math
import secrets
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from redis.asyncio import Redis

from stratos.common.errors import NotFound
from stratos.store.counters.guard import GuardedReads, GuardedScript, StoreId, any_store
from stratos.store.data_keys import BrokenSeal, seal, unseal
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors
from stratos.store.sealed import batch_scripts as scripts
from stratos.store.sealed.file_store import FileStore

FINAL = -1
"""Slice that is the making of a batch's files."""
_MAX_RESULT_BYTES = 256 * 1024 * 1024
_RESULT_KEPT_MS = 8 * 24 * 3600 * 1000
_KEPT_MS = 31 * 24 * 3600 * 1000
_HOUR_S = 3600.0
_MAX_READS = 256
"""Batches that are read in one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHead:
    """Terms of a batch, as its client gave them."""

    input_file_id: str
    endpoint: str
    window: str
    """Completion window, in the words of the API."""
    tenant_name: str
    key_id: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    kept_s: float | None = None
    """Seconds that its results are kept; ``None`` is as long as files are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch as it stands; times are seconds since the epoch, 0 for what was not yet."""

    id: str
    head: BatchHead
    status: str
    num_lines: int
    num_slices: int
    num_completed: int
    num_failed: int
    created_unix_s: int
    begun_unix_s: int
    finalizing_unix_s: int
    cancelling_unix_s: int
    ended_unix_s: int
    expires_unix_s: int
    ends: str
    """Why it ends: completed, expired, cancelled or failed; empty while it goes on."""
    output_file_id: str
    error_file_id: str
    problem: str


@dataclass(frozen=True, slots=True)
class BatchBacklog:
    """Rest of all open batches."""

    num_lines: int = 0
    """Lines that are not answered."""
    num_due: int = 0
    """Lines of them to be answered within an hour, so that each batch keeps its window by going on evenly."""
    left_s: float | None = None
    """Shortest time until a window ends; ``None`` without a batch."""

    def plus(self, num_lines: int, left_s: float) -> BatchBacklog:
        """Add a batch that has so many lines left, and so much time."""
        num_due = math.ceil(num_lines * min(1.0, _HOUR_S / max(left_s, 1.0)))
        least_s = left_s if self.left_s is None else min(left_s, self.left_s)
        return BatchBacklog(self.num_lines + num_lines, self.num_due + num_due, least_s)


class BatchStore:
    """Belongs to the event loop. Every method raises ``DependencyDown`` where a store does not answer, or is not ours.

    Args:
        redis: with decoded answers.
        config: where records lie.
        files: where inputs and results are.
        model: base model of this gateway, which takes batches of no other one.
        tenant_batches: kept of each tenant.
        store_id: of the store that takes and gives them; ``None`` before it is known.
        unix_s: seconds since the epoch, by one clock for all who share the store.
    """

    def __init__(
        self,
        redis: Redis,
        config: RecordStoreConfig,
        files: FileStore,
        model: str,
        tenant_batches: int,
        store_id: StoreId = any_store,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self._redis = redis
        self._prefix = config.prefix
        self.files = files
        self._open = f"{config.prefix}:batches-open:{model}"
        self._tenant_batches = tenant_batches
        self._unix_s = unix_s
        self._reads = GuardedReads(redis, config, store_id)

        def script(text: str) -> GuardedScript:
            return GuardedScript(redis, config, scripts.HEAD + text, store_id)

        self._create, self._claim, self._renew = script(scripts.CREATE), script(scripts.CLAIM), script(scripts.RENEW)
        self._commit, self._lose = script(scripts.COMMIT), script(scripts.LOSE)
        self._finish, self._cancel, self._fail = script(scripts.FINISH), script(scripts.CANCEL), script(scripts.FAIL)

    def new_id(self, tenant_id: str, idempotency: str = "") -> str:
        """Id of a new batch: the same for the same idempotency key, a fresh one without."""
        if not idempotency:
            return f"batch_{secrets.token_hex(12)}"
        found = hmac.new(self.files.key(tenant_id), f"batch of {idempotency}".encode(), hashlib.sha256)
        return f"batch_{found.hexdigest()[:24]}"

    async def create(
        self, tenant_id: str, batch_id: str, head: BatchHead, num_lines: int, num_slices: int, window_s: float
    ) -> bool:
        """Make a batch, or leave the one that has this id; false where the tenant has too many."""
        text = self._sealed(tenant_id, batch_id, "head", orjson.dumps(head))
        args: list[str | int | float] = [
            batch_id, f"{tenant_id}/{batch_id}", text, num_lines, num_slices, int(window_s * 1000), _KEPT_MS,
            self._tenant_batches,
        ]  # fmt: skip
        return bool(await self._run(self._create, tenant_id, batch_id, args))

    async def find(self, tenant_id: str, batch_id: str) -> StoredBatch | None:
        """A batch of the tenant, or ``None``."""
        await self._reads.check()
        names = ["s", "h", "t", "n", "ok", "bad", "c", "i", "f", "k", "z", "u", "w", "o", "p", "m"]
        with translate_redis_errors():
            found: Any = await self._redis.hmget(self._keys(tenant_id, batch_id)[1], names)
        value = dict(zip(names, (text or "" for text in found), strict=True))
        head = self._opened(tenant_id, batch_id, "head", value["h"])
        if not head:
            return None

        def number(name: str) -> int:
            return int(value[name] or "0")

        return StoredBatch(
            id=batch_id,
            head=BatchHead(**orjson.loads(head)),
            status=value["s"],
            num_lines=number("t"),
            num_slices=number("n"),
            num_completed=number("ok"),
            num_failed=number("bad"),
            created_unix_s=number("c") // 1000,
            begun_unix_s=number("i") // 1000,
            finalizing_unix_s=number("f") // 1000,
            cancelling_unix_s=number("k") // 1000,
            ended_unix_s=number("z") // 1000,
            expires_unix_s=number("u") // 1000,
            ends=value["w"],
            output_file_id=value["o"],
            error_file_id=value["p"],
            problem=self._opened(tenant_id, batch_id, "problem", value["m"]).decode(),
        )

    async def names(self, tenant_id: str) -> list[str]:
        """Ids of the tenant's batches, the newest first."""
        await self._reads.check()
        with translate_redis_errors():
            found: Any = await self._redis.zrevrange(self._keys(tenant_id, "")[0], 0, -1)
        return list(found)

    async def cancel(self, tenant_id: str, batch_id: str) -> None:
        """End a batch that goes on; what was answered is kept."""
        await self._run(self._cancel, tenant_id, batch_id, [])

    async def open_batches(self, most: int) -> list[tuple[str, str]]:
        """Tenant and id of batches that go on, the one that was looked at longest ago first; 0 gives all."""
        with translate_redis_errors():
            found: Any = await self._redis.zrange(self._open, 0, most - 1)
        return [(tenant_id, batch_id) for tenant_id, _, batch_id in (name.partition("/") for name in found)]

    async def backlog(self) -> BatchBacklog:
        """Sum up what is left of all open batches."""
        names, found_so_far = ["t", "ok", "bad", "u"], BatchBacklog()
        batches = await self.open_batches(0)
        for begin in range(0, len(batches), _MAX_READS):
            with translate_redis_errors():
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for tenant_id, batch_id in batches[begin : begin + _MAX_READS]:
                        pipeline.hmget(self._keys(tenant_id, batch_id)[1], names)
                    rows: Any = await pipeline.execute()
            for row in rows:
                total, completed, failed, ends_ms = (int(text or "0") for text in row)
                found_so_far = found_so_far.plus(total - completed - failed, ends_ms / 1000 - self._unix_s())
        return found_so_far

    async def claim(self, tenant_id: str, batch_id: str, lease_s: float) -> tuple[int, int] | None:
        """A slice that no gateway has, and the epoch of its lease; ``None`` where there is none now."""
        args: list[str | int | float] = [f"{tenant_id}/{batch_id}", int(lease_s * 1000)]
        found: Any = await self._run(self._claim, tenant_id, batch_id, args)
        return None if found is None else (int(found[0]), int(found[1]))

    async def arrived_unix_ms(self, tenant_id: str, batch_id: str, number: int) -> int:
        """When a slice was taken first: its lines arrived then, however often they are computed."""
        await self._reads.check()
        with translate_redis_errors():
            found: Any = await self._redis.hget(self._keys(tenant_id, batch_id)[1], f"a{number}")
        return int(found or "0")

    async def renew(self, tenant_id: str, batch_id: str, claim: tuple[int, int], lease_s: float) -> str:
        """Keep a slice, or give it up with 0.

        Returns:
            The status of its batch, "expired" where no more of it is to be computed, "fenced" where the slice was lost.
        """
        return str(await self._run(self._renew, tenant_id, batch_id, [*claim, int(lease_s * 1000)]))

    async def commit(
        self, tenant_id: str, batch_id: str, claim: tuple[int, int], result: bytes, counts: tuple[int, int]
    ) -> bool:
        """Keep the result of a slice, and count its lines; false where another gateway has it."""
        key, place = self.files.key(tenant_id), _result(tenant_id, batch_id, claim)
        sealed = await asyncio.to_thread(lambda: seal(key, zlib.compress(result, 1), place.encode()))
        await self.files.plan(place, _RESULT_KEPT_MS)
        await self.files.objects.put(place, sealed)
        if await self._run(self._commit, tenant_id, batch_id, [*claim, *counts]):
            return True
        await self.files.plan(place, 0)
        return False

    async def epochs(self, tenant_id: str, batch_id: str, slices: Sequence[int]) -> list[int]:
        """The epoch of each slice whose result counts; 0 where it has none."""
        with translate_redis_errors():
            names = [f"g{number}" for number in slices]
            found: Any = await self._redis.hmget(self._keys(tenant_id, batch_id)[1], names)
        return [int(text or "0") for text in found]

    async def read_result(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> bytes:
        """The result of a slice; raises ``NotFound`` where it is broken."""
        key, place = self.files.key(tenant_id), _result(tenant_id, batch_id, claim)
        sealed = await self.files.objects.read(place, 0, _MAX_RESULT_BYTES)
        try:
            return await asyncio.to_thread(lambda: zlib.decompress(unseal(key, sealed, place.encode())))
        except (BrokenSeal, zlib.error) as error:
            raise NotFound("a result of this batch was altered") from error

    async def lose(
        self, tenant_id: str, batch_id: str, epoch: int, claims: Sequence[tuple[int, int]], most: int
    ) -> bool:
        """Take back results that cannot be read, so that their slices are computed again.

        Args:
            tenant_id: whose batch it is.
            batch_id: the batch.
            epoch: of the lease of the slice ``FINAL``, which ends with it where the batch goes on.
            claims: slices, and the epochs of their results.
            most: times that a batch may lose some.

        Returns:
            False where another gateway has the batch, or it lost some too often.
        """
        args: list[str | int | float] = [epoch, most, *(number for claim in claims for number in claim)]
        return bool(await self._run(self._lose, tenant_id, batch_id, args))

    async def fail(self, tenant_id: str, batch_id: str, claim: tuple[int, int], problem: str) -> bool:
        """Let a batch end for a problem with a slice: what was answered is kept; false where another gateway has it."""
        sealed = self._sealed(tenant_id, batch_id, "problem", problem.encode())
        return bool(await self._run(self._fail, tenant_id, batch_id, [*claim, sealed]))

    async def drop_result(self, tenant_id: str, batch_id: str, claim: tuple[int, int]) -> None:
        """The result of a slice is in a file now."""
        await self.files.plan(_result(tenant_id, batch_id, claim), 0)

    async def finish(
        self,
        tenant_id: str,
        batch_id: str,
        claim: tuple[int, int],
        status: str,
        files: tuple[str, str] = ("", ""),
        problem: str = "",
    ) -> bool:
        """End a batch; false where another gateway has the slice of the claim."""
        sealed = self._sealed(tenant_id, batch_id, "problem", problem.encode()) if problem else ""
        args: list[str | int | float] = [f"{tenant_id}/{batch_id}", *claim, status, *files, sealed]
        return bool(await self._run(self._finish, tenant_id, batch_id, args))

    async def forget(self, tenant_id: str) -> None:
        """Remove all batches of a tenant that is deleted."""
        for batch_id in await self.names(tenant_id):
            _, own, leases, _ = self._keys(tenant_id, batch_id)
            with translate_redis_errors():
                await self._redis.delete(own, leases)
                await self._redis.zrem(self._open, f"{tenant_id}/{batch_id}")
        with translate_redis_errors():
            await self._redis.delete(self._keys(tenant_id, "")[0])

    async def _run(self, script: GuardedScript, tenant_id: str, batch_id: str, args: list[str | int | float]) -> object:
        with translate_redis_errors():
            return await script(self._keys(tenant_id, batch_id), args)

    def _keys(self, tenant_id: str, batch_id: str) -> list[str]:
        own = f"{self._prefix}:batch:{tenant_id}:{batch_id}"
        return [f"{self._prefix}:batches:{tenant_id}", own, f"{own}:leases", self._open]

    def _sealed(self, tenant_id: str, batch_id: str, name: str, content: bytes) -> str:
        place = f"{name} of {batch_id} of {tenant_id}".encode()
        return base64.b64encode(seal(self.files.key(tenant_id), content, place)).decode()

    def _opened(self, tenant_id: str, batch_id: str, name: str, text: str) -> bytes:
        place = f"{name} of {batch_id} of {tenant_id}".encode()
        try:
            return unseal(self.files.key(tenant_id), base64.b64decode(text, validate=True), place) if text else b""
        except (BrokenSeal, ValueError):
            return b""  # altered: as if it were not there


def _result(tenant_id: str, batch_id: str, claim: tuple[int, int]) -> str:
    return f"files/{tenant_id}/{batch_id}-{claim[0]}-{claim[1]}"
