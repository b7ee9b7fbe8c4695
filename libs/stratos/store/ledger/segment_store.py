"""Segments of the ledger in the object store: a part of one at a time, and each part checked.

Indices are small and asked for again and again, so the last ones are kept in memory.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from stratos.common.errors import DependencyDown, NotFound
from stratos.core.ledger.segments import (
    HEAD_KEY,
    Block,
    BrokenSegment,
    Place,
    SegmentIndex,
    SegmentLine,
    SegmentRef,
    parse_ref,
    read_block,
    read_index,
)
from stratos.store.object_store import ObjectStore

_HEAD_BYTES = 1024
_MAX_BLOCKS = 50_000
"""Blocks of indices in memory: some 20 MB."""


class SegmentStore:
    """Reads and writes; every method raises ``DependencyDown`` where the object store does not answer.

    Args:
        objects: where they are.
    """

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._indices: OrderedDict[SegmentRef, SegmentIndex] = OrderedDict()
        self._num_blocks = 0

    async def put(self, ref: SegmentRef, path: Path) -> None:
        """Store a segment; once more changes nothing."""
        await self._objects.put(ref.key, path)

    async def put_head(self, ref: SegmentRef) -> None:
        """Note the last segment beside the segments."""
        await self._objects.put(HEAD_KEY, f"{ref.text}\n".encode())

    async def head(self) -> SegmentRef | None:
        """Read that note; ``None`` where there are no segments."""
        try:
            return parse_ref((await self._objects.read(HEAD_KEY, 0, _HEAD_BYTES)).decode().strip())
        except NotFound:
            return None
        except ValueError as error:
            raise DependencyDown(f"the object {HEAD_KEY} cannot be read: {error}") from error

    async def index(self, ref: SegmentRef) -> SegmentIndex:
        """Read what a segment holds.

        Raises:
            DependencyDown: it is missing, or not the one that was written.
        """
        if (found := self._indices.get(ref)) is not None:
            self._indices.move_to_end(ref)
            return found
        try:
            found = await self.checked_index(ref)
        except (BrokenSegment, NotFound) as error:
            raise DependencyDown(f"segment {ref.number} of the ledger cannot be read: {error}") from error
        self._indices[ref] = found
        self._num_blocks += len(found.blocks)
        while self._num_blocks > _MAX_BLOCKS and len(self._indices) > 1:
            self._num_blocks -= len(self._indices.popitem(last=False)[1].blocks)
        return found

    async def checked_index(self, ref: SegmentRef) -> SegmentIndex:
        """The same from the object store; raises ``BrokenSegment`` or ``NotFound``."""
        data = await self._objects.read(ref.key, ref.num_bytes - ref.index_bytes, ref.index_bytes)
        return await asyncio.to_thread(read_index, ref, data)

    async def lines(self, ref: SegmentRef, block: Block) -> list[SegmentLine]:
        """The lines of a block.

        Raises:
            DependencyDown: they are missing, or not those that were written.
        """
        try:
            return await self.checked_lines(ref, block)
        except (BrokenSegment, NotFound) as error:
            raise DependencyDown(f"segment {ref.number} of the ledger cannot be read: {error}") from error

    async def checked_lines(self, ref: SegmentRef, block: Block) -> list[SegmentLine]:
        """The same; raises ``BrokenSegment`` or ``NotFound``."""
        data = await self._objects.read(ref.key, block.offset, block.num_bytes)
        return await asyncio.to_thread(read_block, block, data)

    async def check_end(self, ref: SegmentRef) -> None:
        """Look behind the end of a segment; raises ``BrokenSegment`` where something is there."""
        if await self._objects.read(ref.key, ref.num_bytes, 1):
            raise BrokenSegment("something follows its end")

    async def all_lines(self, ref: SegmentRef) -> AsyncIterator[list[SegmentLine]]:
        """A whole segment, block by block."""
        for block in (await self.index(ref)).blocks:
            yield await self.lines(ref, block)

    async def find(self, refs: Sequence[SegmentRef], tenant: str, place: Place) -> tuple[int, SegmentLine] | None:
        """The last line of an entry, and the number of its segment.

        Args:
            refs: segments in their order.
            tenant: by its id.
            place: of the entry.
        """
        for ref in reversed(refs):
            for block in (await self.index(ref)).blocks:
                if block.tenant == tenant and block.first_ms <= place[0] <= block.last_ms:
                    for line in await self.lines(ref, block):
                        if line.place == place:
                            return ref.number, line
        return None
