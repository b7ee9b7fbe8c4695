"""Pairs of one source over two transports, which meet at one data port."""

from __future__ import annotations

from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.registry import make_ends
from stratos.kv_transfer.settings import TransportConfig
from stratos.kv_transfer.transfer import FrameHeader
from tests.support.kv.memory_pages import MemoryPages

CONFIG = TransportConfig().fitted(1)


def header_of(payload: bytes, slot: int) -> FrameHeader:
    return FrameHeader(
        leg="leg-1", seq=0, kv_range=KvRange(0, 1, 0, 1), head_begin=0, head_end=1, num_bytes=len(payload),
        checksum=checksum(payload), slot=slot,
    )  # fmt: skip


async def test_each_transport_has_slots_of_its_own_for_a_source() -> None:
    hubs = {"inproc": InprocHub(), "other": InprocHub()}
    ends = {name: make_ends("inproc", CONFIG, hub=hub) for name, hub in hubs.items()}
    pages = MemoryPages()
    port = LocalPort({name: PortTransport(make=lambda made=made: made) for name, made in ends.items()}, pages)  # type: ignore[misc]
    key = RequestKey("r", 0)
    opened = []
    for name in ends:
        slots = StagingSlots(name, "inc-d", CONFIG.staging, port)
        offer = await slots.open_pair("inc-p")
        opened.append((name, offer, slots.allocate_slots(offer.pair, 1, leg="leg-1")[0]))
    for name, offer, slot in opened:
        payload = name.encode()
        sender = await ends[name].connect(offer)
        await sender.send(header_of(payload, slot), payload)
    for name, offer, slot in opened:
        assert await port.receive(offer.pair, key, header_of(name.encode(), slot)) == checksum(name.encode())
        assert pages.written.pop(key) == name.encode()
    await port.close()
