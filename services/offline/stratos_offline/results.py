"""Results in the order of the file: rows of all blocks go through buckets of neighbouring lines on the local disk.

Blocks are in the order of prefixes, files of results in that of lines.  A first pass reads each block once and appends
its rows to the bucket of their numbers; a second one sorts the places of a bucket's rows, and reads them in order.  So
memory has one block, or the places of one bucket, however long results are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from stratos_offline.blocks import Row

OUTPUT, ERRORS = "output.jsonl", "errors.jsonl"
BUCKET_BYTES = 16 * 1024 * 1024
_MAX_BUCKETS = 200
"""Files that are open at a time."""


class ResultFiles:
    """Files of results in a folder.

    Args:
        out: the folder.
        num_lines: of the job.
        num_bytes: of its input, from which the size of a bucket is guessed.
    """

    def __init__(self, out: Path, num_lines: int, num_bytes: int) -> None:
        self._out = out
        self._num_lines = num_lines
        num_buckets = min(_MAX_BUCKETS, 1 + num_bytes // BUCKET_BYTES)
        self._bucket_lines = -(-num_lines // num_buckets)

    async def write(self, blocks: AsyncIterator[list[Row]]) -> tuple[int, int]:
        """Write the files; how many lines are answered, and how many are errors."""
        folder = self._out / ".sorting"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            paths = await self._spread(folder, blocks)
            return self._join(paths)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _spread(self, folder: Path, blocks: AsyncIterator[list[Row]]) -> list[Path]:
        num_buckets = -(-self._num_lines // self._bucket_lines)
        paths = [folder / f"{place}" for place in range(num_buckets)]
        files = [path.open("wb") for path in paths]
        try:
            async for rows in blocks:
                for row in rows:
                    files[row[0] // self._bucket_lines].write(orjson.dumps(row) + b"\n")
        finally:
            for file in files:
                file.close()
        return paths

    def _join(self, paths: list[Path]) -> tuple[int, int]:
        counts = [0, 0]
        names = [self._out / f".{name}.part" for name in (ERRORS, OUTPUT)]
        files = [name.open("wb") for name in names]
        for number, is_ok, text in self._rows(paths):
            assert number == sum(counts), "each line is there once"
            counts[is_ok] += 1
            files[is_ok].write(text.encode() + b"\n")
        assert sum(counts) == self._num_lines, "each line is there"
        for file, part, name in zip(files, names, (ERRORS, OUTPUT), strict=True):
            file.flush()
            os.fsync(file.fileno())
            file.close()
            part.replace(self._out / name)
        return counts[True], counts[False]

    def _rows(self, paths: list[Path]) -> Iterator[Row]:
        for path in paths:
            with path.open("rb") as file:
                for _, begin in _places(file):
                    file.seek(begin)
                    number, is_ok, text = orjson.loads(file.readline())
                    yield number, is_ok, text
            path.unlink()


def _places(file: BinaryIO) -> list[tuple[int, int]]:
    """Number of each row of a bucket and where it begins, by their numbers."""
    found, begin = list[tuple[int, int]](), 0
    for row in file:
        found.append((int(row[1 : row.index(b",")]), begin))  # [NUMBER,...
        begin += len(row)
    return sorted(found)
