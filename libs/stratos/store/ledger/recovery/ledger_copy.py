"""A copy of what Redis alone has of the ledger, and of the audit log: for the day on which Redis is lost.

JSON lines: a head {"format", "store_id", "num_segments"}; {"key", "hash" | "set" | "order"} of each key below
<prefix>:ledger, large ones in several lines, and {"key", "until"} of one that ends, in milliseconds since the epoch;
{"audit", "entry"}; and a tail {"lines", "digest"}.  Segments are not in it: they are in the object store.

All keys of a tenant are read in one step, so its sums are those of its entries.  Nothing is sealed while a copy is
made, so the segments that the copy names, and the entries that it has, are all that there is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from redis.asyncio import Redis

from stratos.common.errors import BadRequest, DependencyDown
from stratos.store.ledger.chain import Chain
from stratos.store.records.audit import parse_entry
from stratos.store.records.settings import RecordStoreConfig
from stratos.store.redis import translate_redis_errors

_FORMAT = 1
_LEASE_S = 120.0
_PIECE = 1000
_TENANTS_PER_LEASE = 8
_SETS, _ORDERS = ("tenants", "open"), ("order",)
_OF_DAYS = ("sums", "spans", "entries", "order", "corrects", "missed")
_COPIED = (
    "chain", "segments", "days", "tenants", "open", "spend", "sums", "spans", "entries", "order", "corrects", "windows",
    "missed",
)  # fmt: skip
"""Parts below the ledger's head; histograms of windows, receipts, kept answers and workers pass."""


class LedgerCopy:
    """Writes copies, and puts them back.

    Args:
        redis: with decoded answers.
        config: where records lie.
        holder: name of this process, for the lease of sealers.
    """

    def __init__(self, redis: Redis, config: RecordStoreConfig, holder: str) -> None:
        self._redis: Any = redis
        self._head = f"{config.prefix}:ledger"
        self._audit = f"{config.prefix}:audit"
        self._chain = Chain(redis, config)
        self._holder = holder

    async def export(self, file: BinaryIO, store_id: str) -> int:
        """Write a copy; returns how many lines it has.

        Raises:
            DependencyDown: Redis does not answer, or a gateway is sealing; try again.
        """
        await self._take_lease()
        try:
            num_segments = (await self._chain.state()).num_segments
            out = _Lines(file)
            out.add({"format": _FORMAT, "store_id": store_id, "num_segments": num_segments})
            for place, names in enumerate(await self._groups()):
                if place % _TENANTS_PER_LEASE == 0:
                    await self._take_lease()
                for value in await self._read(names):
                    await asyncio.to_thread(out.add_all, value)
            async for line in self._audit_lines():
                out.add(line)
            if (await self._chain.state()).num_segments != num_segments:
                raise DependencyDown("a segment was appended while the copy was made; try again")
            out.end()
            return out.num_lines
        finally:
            await self._chain.take_lease(self._holder, 0)

    async def restore(self, path: Path, store_id: str) -> int:
        """Put a copy into a Redis whose ledger is of no store; returns how many lines there were.

        Args:
            path: of a copy.
            store_id: of the store that Redis is about to become.

        Raises:
            BadRequest: the file is not a whole copy, or of another store.
        """
        num_lines = await asyncio.to_thread(_check, path, store_id)
        await self.clear()
        with path.open("rb") as file:
            lines = _values(file)
            next(lines)
            while part := await asyncio.to_thread(lambda: list(islice(lines, 64))):
                await self._put(part)
        return num_lines

    async def _take_lease(self) -> None:
        if not await self._chain.take_lease(self._holder, _LEASE_S):
            raise DependencyDown("a gateway is sealing entries of the ledger now; try again in a moment")

    async def _groups(self) -> list[list[str]]:
        """Names of the keys of each tenant, then of those that are of all of them.

        A day may begin while they are looked for: where one of its keys is there, so may the others be.
        """
        by_tenant: dict[str, set[str]] = {}
        with translate_redis_errors():
            async for name in self._redis.scan_iter(f"{self._head}:*", count=1000):
                part, _, rest = name[len(self._head) + 1 :].partition(":")
                if part in _COPIED:
                    names = [f"{self._head}:{one}:{rest}" for one in _OF_DAYS] if part in _OF_DAYS else [name]
                    by_tenant.setdefault(rest.partition(":")[0], set()).update(names)
        common = by_tenant.pop("", set())
        return [sorted(found) for found in (*by_tenant.values(), common) if found]

    async def _read(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Keys, all at one moment."""
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=True) as pipeline:
                for name in names:
                    kind = self._part(name)
                    if kind in _SETS:
                        pipeline.smembers(name)
                    elif kind in _ORDERS:
                        pipeline.zrange(name, 0, -1, withscores=True)
                    else:
                        pipeline.hgetall(name)
                    pipeline.pttl(name)
                seconds, micros = await self._redis.time()
                found = await pipeline.execute()
        now_ms = int(seconds) * 1000 + int(micros) // 1000
        return [
            {"key": name[len(self._head) + 1 :], "value": value, "until": now_ms + left_ms if left_ms > 0 else None}
            for name, value, left_ms in zip(names, found[::2], found[1::2], strict=True)
        ]

    async def _audit_lines(self) -> AsyncIterator[dict[str, Any]]:
        after = "0"
        while True:
            with translate_redis_errors():
                page = await self._redis.xrange(self._audit, min=f"({after}", count=_PIECE)
            for entry_id, fields in page:
                yield {"audit": entry_id, "entry": fields.get("entry", "")}
            if len(page) < _PIECE:
                return
            after = page[-1][0]

    async def clear(self) -> None:
        """Remove a ledger with its audit log; what Redis keeps of no ledger stays."""
        with translate_redis_errors():
            async for name in self._redis.scan_iter(f"{self._head}:*", count=1000):
                await self._redis.unlink(name)
            async for name in self._redis.scan_iter(f"{self._audit}:*", count=1000):
                await self._redis.unlink(name)
            await self._redis.unlink(self._audit)

    async def _put(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with translate_redis_errors():
            async with self._redis.pipeline(transaction=False) as pipeline:
                for line in lines:
                    if "audit" in line:
                        pipeline.xadd(self._audit, {"entry": line["entry"]}, id=line["audit"])
                        entry = parse_entry(line["audit"], line["entry"])
                        if entry is not None and entry.tenant_id:
                            pipeline.xadd(f"{self._audit}:{entry.tenant_id}", {"at": ""}, id=line["audit"])
                    elif "hash" in line:
                        pipeline.hset(f"{self._head}:{line['key']}", mapping=line["hash"])
                    elif "set" in line:
                        pipeline.sadd(f"{self._head}:{line['key']}", *line["set"])
                    elif "order" in line:
                        pipeline.zadd(f"{self._head}:{line['key']}", dict(line["order"]))
                    elif "until" in line:
                        pipeline.pexpireat(f"{self._head}:{line['key']}", line["until"])
                await pipeline.execute()

    def _part(self, name: str) -> str:
        return name[len(self._head) + 1 :].partition(":")[0]


class _Lines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.num_lines = 0

    def add_all(self, key: Mapping[str, Any]) -> None:
        """One key, in pieces."""
        value, name = key["value"], key["key"]
        if isinstance(value, Mapping):
            self._add_pieces(name, "hash", list(value.items()), dict)
        elif isinstance(value, list):
            self._add_pieces(name, "order", value, list)
        else:
            self._add_pieces(name, "set", sorted(value), list)
        if key["until"] is not None:
            self.add({"key": name, "until": key["until"]})

    def _add_pieces(self, name: str, kind: str, items: list[Any], make: type[dict[Any, Any]] | type[list[Any]]) -> None:
        for begin in range(0, len(items), _PIECE):
            self.add({"key": name, kind: make(items[begin : begin + _PIECE])})

    def add(self, value: Mapping[str, Any]) -> None:
        data = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._digest.update(data)
        self._file.write(data)
        self.num_lines += 1

    def end(self) -> None:
        tail = {"lines": self.num_lines, "digest": self._digest.hexdigest()}
        self._file.write(json.dumps(tail).encode() + b"\n")


def _values(file: BinaryIO) -> Iterator[dict[str, Any]]:
    for line in file:
        yield json.loads(line)


def _check(path: Path, store_id: str) -> int:
    """Read a copy once before anything is changed; returns how many lines it has."""
    digest, num_lines, last = hashlib.sha256(), 0, b""
    try:
        with path.open("rb") as file:
            head = json.loads(file.readline())
            file.seek(0)
            for line in file:
                if last:
                    digest.update(last)
                    num_lines += 1
                last = line
        tail = json.loads(last)
        is_whole = tail == {"lines": num_lines, "digest": digest.hexdigest()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        is_whole, head = False, {}
    if not is_whole or head.get("format") != _FORMAT:
        raise BadRequest(f"{path} is no copy of a ledger, or not all of one")
    if head.get("store_id") != store_id:
        raise BadRequest(f"{path} is of another store: {head.get('store_id')}")
    return num_lines
