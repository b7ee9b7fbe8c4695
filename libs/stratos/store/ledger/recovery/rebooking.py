"""Entries of segments that Redis does not know: those that were sealed after the copy from which it was filled again.

They are written as any others are, each once: one that the copy has as well is met there, and sums count it once.  Then
they are sealed once more, behind the last segment that the copy knows; the objects from which they came have no name in
the chain any more.
"""

from __future__ import annotations

from stratos.common.errors import DependencyDown
from stratos.core.ledger.segments import SegmentRef
from stratos.store.ledger.chain import Chain, ChainState
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
    unknown = await _unknown(chain, segments)
    num_lines = end_ms = 0
    for ref in reversed(unknown):
        async for lines in segments.all_lines(ref):
            written = await store.write([line.entry for line in lines])
            if waits_for := next((one.waits_for for one in written if one.waits_for), ""):
                raise DependencyDown(waits_for)
            num_lines, end_ms = num_lines + len(lines), max(end_ms, lines[-1].arrived_ms + 1)
        await sealer.turn(moves_head=False)
    if unknown:
        await sealer.seal_before(end_ms, moves_head=False)
        await segments.put_head(_last(await chain.state()))
    await chain.end_rebooking()
    return num_lines


def _last(state: ChainState) -> SegmentRef:
    assert state.last is not None, "something was sealed"
    return state.last


async def _unknown(chain: Chain, segments: SegmentStore) -> list[SegmentRef]:
    """Segments behind the end that the chain had before any was booked again, the last one first."""
    begin = await chain.begin_rebooking((await chain.state()).num_segments)
    (known,) = await chain.refs([begin - 1]) if begin else (None,)
    ref, unknown = await segments.head(), []
    while ref is not None and ref.number >= begin:
        unknown.append(ref)
        ref = (await segments.index(ref)).previous
    if unknown and ref != known:
        raise DependencyDown("the segments in the object store do not follow those that Redis knows")
    return unknown
