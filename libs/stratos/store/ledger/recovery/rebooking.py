"""Entries of segments that Redis does not know: those that were sealed after the copy from which it was filled again.

They are written as any others are, each once: one that the copy has as well is met there, and sums count it once.  Then
they are sealed once more, behind the last segment that the copy knows; the objects from which they came have no name in
the chain any more.
"""

from __future__ import annotations

from stratos.common.errors import DependencyDown
from stratos.core.ledger.segments import SegmentRef
from stratos.store.ledger.chain import Chain
from stratos.store.ledger.ledger_store import LedgerStore
from stratos.store.ledger.sealer import Sealer
from stratos.store.ledger.segment_store import SegmentStore


async def book_again(chain: Chain, segments: SegmentStore, store: LedgerStore, sealer: Sealer) -> int:
    """Write what segments behind the end of the chain have; returns how many lines they had.

    Args:
        chain: as Redis has it.
        segments: where more of it may be.
        store: takes the entries.
        sealer: keeps them from filling Redis.

    Raises:
        DependencyDown: a segment cannot be read, or they do not follow the chain.
    """
    state, ref = await chain.state(), await segments.head()
    unknown: list[SegmentRef] = []
    while ref is not None and ref.number >= state.num_segments:
        unknown.append(ref)
        ref = (await segments.index(ref)).previous
    if unknown and ref != state.last:
        raise DependencyDown("the segments in the object store do not follow those that Redis knows")
    num_lines = 0
    for one in reversed(unknown):
        async for lines in segments.all_lines(one):
            await store.write([line.entry for line in lines])
            num_lines += len(lines)
        await sealer.turn()
    return num_lines
