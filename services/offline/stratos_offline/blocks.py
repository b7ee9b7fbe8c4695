"""Pieces of a job and the store of them: what each has to compute, and what was computed.

    blocks/KEY     lines of a block, each with its number; written by the driver
    results/KEY    its checkpoint: all its result lines, written at once
    tries/KEY-N    an engine began it for the N-th time

A key is a digest of the job and of the block's lines.  So another file, model or option never finds a foreign result.
Objects begin with a digest of the rest: a checkpoint that was cut short or altered is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from stratos.common.errors import BadRequest, DependencyDown, NotFound
from stratos.store.object_store import ObjectStore
from stratos_offline.lines import LineFile
from stratos_offline.options import digest_of

BLOCK_BYTES = 4 * 1024 * 1024
"""After which a block takes no more lines."""
MAX_TRIES = 4
"""Engines that one block may end."""
_PART_BYTES = 8 * 1024 * 1024
_DELETES_AT_ONCE = 16
Row = tuple[int, bool, str]
"""Number of a line, whether it was answered without an error, and its line of results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTask:
    """One block, as pools pass it on."""

    key: str
    num_lines: int
    begin: int
    """Number of its first line."""

    def to_dict(self) -> dict[str, Any]:
        """Fields for JSON, or for a row."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReport:
    """A block that is computed."""

    key: str
    num_lines: int
    num_failed: int
    was_there: bool = False
    """An earlier run, or an engine that was lost afterwards, had computed it."""

    def to_dict(self) -> dict[str, Any]:
        """Fields for JSON, or for a row."""
        return asdict(self)


def cut(file: LineFile, order: Iterable[int], job: str, block_lines: int) -> Iterator[tuple[BlockTask, bytes]]:
    """Blocks of a file in an order of its lines, with the bytes of each."""
    rows, size, first = list[bytes](), 0, 0
    for number in map(int, order):
        row = b"%d\t%b" % (number, file.line(number))
        if rows and (len(rows) == block_lines or size + len(row) > BLOCK_BYTES):
            yield _task(job, rows, first)
            rows, size = [], 0
        first = first if rows else number
        rows.append(row)
        size += len(row)
    if rows:
        yield _task(job, rows, first)


def _task(job: str, rows: list[bytes], first: int) -> tuple[BlockTask, bytes]:
    content = b"\n".join(rows)
    return BlockTask(key=digest_of(job, content), num_lines=len(rows), begin=first), content


class BlockStore:
    """Blocks of one job.

    Args:
        store: of the objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put_lines(self, task: BlockTask, content: bytes) -> None:
        """Keep what a block has to compute."""
        await self._store.put(f"blocks/{task.key}", _sealed(content))

    async def lines(self, task: BlockTask) -> list[tuple[int, dict[str, Any]]]:
        """Numbered lines of a block.

        Raises:
            DependencyDown: they are damaged, or this store is not the driver's.
        """
        try:
            content = _opened(await self._read(f"blocks/{task.key}"))
        except NotFound as error:
            text = "the block is not in the store of this engine: all nodes must reach the store of the driver"
            raise DependencyDown(text) from error
        if content is None:
            raise DependencyDown("a block in the store is damaged; the same command begins it again")
        rows = (row.partition(b"\t") for row in content.split(b"\n"))
        return [(int(number), orjson.loads(line)) for number, _, line in rows]

    async def begin(self, task: BlockTask) -> None:
        """Note that an engine begins a block.

        Raises:
            BadRequest: it has ended too many engines.
        """
        for place in range(MAX_TRIES):
            if not await self._has(f"tries/{task.key}-{place}"):
                return await self._store.put(f"tries/{task.key}-{place}", b"begun")
        where = f"the block of {task.num_lines} lines that begins with line {task.begin + 1}"
        raise BadRequest(f"{where} has ended {MAX_TRIES} engines; what was computed is kept", code="engine_lost")

    async def put_result(self, task: BlockTask, rows: Sequence[Row]) -> BlockReport:
        """Keep the result of a block, all of it or nothing."""
        report = BlockReport(key=task.key, num_lines=len(rows), num_failed=sum(not row[1] for row in rows))
        head = orjson.dumps([report.num_lines, report.num_failed])
        await self._store.put(f"results/{task.key}", _sealed(b"\n".join([head, *map(orjson.dumps, rows)])))
        return report

    async def find(self, task: BlockTask) -> BlockReport | None:
        """Counts of a block that is computed; ``None`` of one that is not, or whose checkpoint is damaged."""
        try:
            content = _opened(await self._read(f"results/{task.key}"))
        except NotFound:
            return None
        if content is None:
            return None
        num_lines, num_failed = orjson.loads(content.partition(b"\n")[0])
        return BlockReport(key=task.key, num_lines=num_lines, num_failed=num_failed, was_there=True)

    async def rows(self, task: BlockTask) -> list[Row]:
        """Result of a block that is computed; raises ``DependencyDown`` where its checkpoint is damaged."""
        content = _opened(await self._read(f"results/{task.key}"))
        if content is None:
            raise DependencyDown("a checkpoint in the store is damaged; the same command computes it again")
        return [(row[0], row[1], row[2]) for row in map(orjson.loads, content.split(b"\n")[1:])]

    async def kept(self) -> set[str]:
        """Keys of blocks that have a result, damaged or not."""
        return {info.key.removeprefix("results/") for info in await self._store.list_all("results")}

    async def forget_tries(self) -> None:
        """Engines that began blocks before count no more."""
        await self._drop_all("tries")

    async def drop(self) -> None:
        """Forget all blocks: their lines are in the files of results."""
        for folder in ("tries", "blocks", "results"):
            await self._drop_all(folder)

    async def _drop_all(self, folder: str) -> None:
        keys = [info.key for info in await self._store.list_all(folder)]
        for begin in range(0, len(keys), _DELETES_AT_ONCE):
            await asyncio.gather(*map(self._store.delete, keys[begin : begin + _DELETES_AT_ONCE]))

    async def _has(self, key: str) -> bool:
        try:
            await self._store.read(key, 0, 1)
        except NotFound:
            return False
        return True

    async def _read(self, key: str) -> bytes:
        parts, offset = list[bytes](), 0
        while part := await self._store.read(key, offset, _PART_BYTES):
            parts.append(part)
            offset += len(part)
            if len(part) < _PART_BYTES:
                break
        return b"".join(parts)


def _sealed(body: bytes) -> bytes:
    return digest_of(body).encode() + b"\n" + body


def _opened(content: bytes) -> bytes | None:
    digest, _, body = content.partition(b"\n")
    return body if digest == digest_of(body).encode() else None
