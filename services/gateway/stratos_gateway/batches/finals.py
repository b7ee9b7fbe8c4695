"""The end of a batch: results of its slices, in the order of its lines, become a file of answers and one of errors."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack
from typing import Any

import orjson

from stratos.common.errors import DependencyDown, NotFound, StreamMoved
from stratos.store.sealed.batch_store import FINAL
from stratos.store.sealed.file_store import StoredFile
from stratos.store.sealed.file_writer import FileWriter
from stratos_gateway.batches.slices import NO_INPUT, BatchWork, result_line

_log = logging.getLogger(__name__)
_AT_A_TIME = 200
"""Slices whose epochs are asked for at a time."""
_MISSING = {
    "expired": "This request could not be executed before the completion window expired.",
    "cancelled": "This request was not executed: its batch was cancelled.",
}
_MAX_LOSSES = 8
"""Times that a batch may lose results: after that its store keeps nothing."""
_NO_ROOM = "the tenant has no room for the results: delete files, and submit the batch again"


class FinalRun:
    """Makes the files of one batch, and ends it; two of it make the same files.

    Args:
        work: the batch.
        epoch: of the lease.
        lease_s: until it is taken away.
        kept_s: seconds that the files are kept at most.
    """

    def __init__(self, work: BatchWork, epoch: int, lease_s: float, kept_s: float) -> None:
        self._work = work
        self._claim = FINAL, epoch
        self._lease_s = lease_s
        self._kept_s = kept_s
        self._lost: list[tuple[int, int]] = []
        """Slices, and the epochs of their results, which cannot be read."""
        self._kept: list[str | None] = []
        """Ids of the files, "" for one without a line, ``None`` where there is no room for it."""
        self._read: tuple[int, list[dict[str, Any]]] = -1, []
        """Slice of the input that was read last, and its lines."""

    async def run(self) -> None:
        """Do it, or give results that are lost to gateways that compute them again.

        Raises:
            DependencyDown: a store does not answer, or the disk of this gateway is full.
            NotFound: results are lost again and again.
            StreamMoved: another gateway does it.
        """
        batch = self._work.batch
        try:
            with ExitStack() as stack:
                writers = await self._writers(stack)
                await self._hold(self._write(*writers.values()))
                if self._lost:
                    await self._lose()
                    if batch.ends == "completed":
                        return
                await self._hold(self._put_all(writers))
        except OSError as error:
            raise DependencyDown("the gateway's disk takes no file now") from error
        await self._finish()

    async def _writers(self, stack: ExitStack) -> dict[str, FileWriter]:
        work, names = self._work, [_file_id(self._work.batch.id, kind) for kind in ("output", "error")]
        return {name: stack.enter_context(await work.store.files.writer(work.tenant_id, name)) for name in names}

    async def _hold(self, work: Coroutine[Any, Any, None]) -> None:
        if await self._work.hold(self._claim, self._lease_s, work, "finalizing"):
            raise StreamMoved("another gateway makes the files of this batch")

    async def _write(self, answers: FileWriter, errors: FileWriter) -> None:
        async for is_ok, text in self._rows():
            await asyncio.to_thread((answers if is_ok else errors).write, text.encode() + b"\n")

    async def _put_all(self, writers: dict[str, FileWriter]) -> None:
        self._kept = [await self._put(name, writer) for name, writer in writers.items()]

    async def _finish(self) -> None:
        work, batch = self._work, self._work.batch
        if None in self._kept:
            is_over = await work.store.finish(work.tenant_id, batch.id, self._claim, "failed", problem=_NO_ROOM)
        else:
            files = str(self._kept[0]), str(self._kept[1])
            problem = batch.problem
            is_over = await work.store.finish(work.tenant_id, batch.id, self._claim, batch.ends, files, problem)
        if is_over:
            await self._drop_results()

    async def _rows(self) -> AsyncIterator[tuple[bool, str]]:
        """All lines of both files, in order."""
        line, is_whole = 0, self._work.batch.ends == "completed"
        async for number, epoch in self._epochs():
            rows = [] if not epoch else await self._result(number, epoch)
            if is_whole and self._lost:
                continue  # the files are made once all of it is there
            for place, is_ok, text in rows:
                at = self._begin(number, rows[0]) + place
                async for missing in self._missing(line, at):
                    yield False, missing
                yield bool(is_ok), text
                line = at + 1
        if not is_whole:
            async for missing in self._missing(line, self._work.batch.num_lines):
                yield False, missing

    def _begin(self, number: int, first: tuple[int, bool, str]) -> int:
        """Number of a slice's first line; where the input is gone its first result tells."""
        if (index := self._work.index) is not NO_INPUT:
            return index.begins[number]
        place, _, text = first
        return int(orjson.loads(text)["id"].rpartition("-")[2]) - place

    async def _missing(self, line: int, end: int) -> AsyncIterator[str]:
        """Lines from ``line`` up to ``end``, which have no result."""
        if line >= end:
            return
        batch = self._work.batch
        error = f"batch_{batch.ends}", _MISSING.get(batch.ends, f"This request was not executed: {batch.problem}.")
        while line < end:
            begin, lines = await self._lines_around(line)
            for row in lines[line - begin : end - begin] or [{}] * (end - line):
                yield result_line(f"{batch.id}-{line}", row.get("custom_id"), None, error)
                line += 1

    async def _lines_around(self, line: int) -> tuple[int, list[dict[str, Any]]]:
        """Lines of a line's slice, and the number of the first one; none where the input is gone."""
        work = self._work
        number = work.index.number_of(line)
        if number != self._read[0]:
            try:
                self._read = number, await work.lines(number)
            except NotFound:
                work.index = NO_INPUT
        return (line, []) if work.index is NO_INPUT else (work.index.begins[number], self._read[1])

    async def _epochs(self) -> AsyncIterator[tuple[int, int]]:
        work, num = self._work, self._work.batch.num_slices
        for begin in range(0, num, _AT_A_TIME):
            numbers = range(begin, min(begin + _AT_A_TIME, num))
            found = await work.store.epochs(work.tenant_id, work.batch.id, numbers)
            for number, epoch in zip(numbers, found, strict=True):
                yield number, epoch

    async def _result(self, number: int, epoch: int) -> list[Any]:
        work = self._work
        try:
            content = await work.store.read_result(work.tenant_id, work.batch.id, (number, epoch))
        except NotFound:
            self._lost.append((number, epoch))
            return []
        rows: list[Any] = await asyncio.to_thread(orjson.loads, content)
        return rows

    async def _lose(self) -> None:
        work = self._work
        _log.warning("of batch %s results are lost, or altered: %s", work.batch.id, _shown(self._lost))
        if not await work.store.lose(work.tenant_id, work.batch.id, self._claim[1], self._lost, _MAX_LOSSES):
            raise NotFound("results of this batch are lost, or altered")

    async def _put(self, name: str, writer: FileWriter) -> str | None:
        """Id of the file, "" for one without a line, ``None`` where there is no room for it."""
        if not writer.num_bytes:
            return ""
        await asyncio.to_thread(writer.finish)
        batch = self._work.batch
        file = StoredFile(id=name, filename=f"{batch.id}_{name[5:9]}.jsonl", purpose="batch_output")
        kept_s = min(batch.head.kept_s or self._kept_s, self._kept_s)
        kept = await self._work.store.files.put(self._work.tenant_id, file, writer, kept_s)
        return None if kept is None else name

    async def _drop_results(self) -> None:
        async for number, epoch in self._epochs():
            if epoch:
                await self._work.store.drop_result(self._work.tenant_id, self._work.batch.id, (number, epoch))


def _shown(claims: list[tuple[int, int]]) -> str:
    more = " ..." if len(claims) > 10 else ""
    return "slices " + ", ".join(str(number) for number, _ in claims[:10]) + more


def _file_id(batch_id: str, kind: str) -> str:
    """The same at every gateway, so that it is there once."""
    return f"file-{hashlib.blake2b(f'{batch_id} {kind}'.encode(), digest_size=12).hexdigest()}"
