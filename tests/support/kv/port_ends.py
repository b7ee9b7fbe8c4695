"""The other end of an engine's data port, over shared memory: reads and writes its KV as another worker does."""

from __future__ import annotations

import itertools
from pathlib import Path

from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.port.base import DataPort
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.shm import shm_ends
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer

STAGING = StagingConfig(slot_bytes=512 * 1024, slots_per_pair=1)
"""Of both ends."""
_pairs = itertools.count()


def _offer(address: str) -> TransportOffer:
    return TransportOffer(
        transport="shm",
        pair=f"inc-p>inc-d#{next(_pairs)}",
        address=address,
        slot_bytes=STAGING.slot_bytes,
        num_slots=STAGING.slots_per_pair,
    )


def _header(leg: str, kv_range: KvRange, num_bytes: int, check: int) -> FrameHeader:
    return FrameHeader(
        leg=leg, seq=0, kv_range=kv_range, head_begin=0, head_end=1, num_bytes=num_bytes, checksum=check, slot=0
    )


async def read_kv(port: DataPort, directory: Path, leg: str, kv_range: KvRange) -> bytes:
    """Computed KV of a leg, in wire layout."""
    ring = await shm_ends(STAGING, directory).open_ring("reader")
    offer = _offer(ring.address)
    try:
        await port.connect(offer)
        gathered = await port.gather("shm", leg, kv_range)
        await port.send("shm", offer.pair, _header(leg, kv_range, gathered.num_bytes, gathered.checksum))
        got = ring.payload(0, gathered.num_bytes)
        assert isinstance(got, memoryview)
        assert checksum(got) == gathered.checksum
        return bytes(got)
    finally:
        port.end_pair("shm", offer.pair)
        port.drop_leg(leg)
        ring.close()


async def write_kv(port: DataPort, directory: Path, key: RequestKey, kv_range: KvRange, payload: bytes) -> None:
    """Fill blocks that a request has reserved."""
    pair = f"inc-p>inc-d#{next(_pairs)}"
    opened = await port.open_ring("shm", pair)
    header = _header("writer", kv_range, len(payload), checksum(payload))
    try:
        sender = await shm_ends(STAGING, directory).connect(_offer(opened.address))
        await sender.send(header, payload)
        await sender.close()
        assert await port.receive(pair, key, header) == header.checksum
    finally:
        port.end_ring(pair)


async def move_kv(source: DataPort, target: DataPort, leg: str, key: RequestKey, kv_range: KvRange) -> None:
    """From one engine to another."""
    pair = f"inc-p>inc-d#{next(_pairs)}"
    opened = await target.open_ring("shm", pair)
    offer = _offer(opened.address)
    await source.connect(offer)
    gathered = await source.gather("shm", leg, kv_range)
    header = _header(leg, kv_range, gathered.num_bytes, gathered.checksum)
    await source.send("shm", offer.pair, header)
    assert await target.receive(pair, key, header) == header.checksum
    source.end_pair("shm", offer.pair)
    target.end_ring(pair)
