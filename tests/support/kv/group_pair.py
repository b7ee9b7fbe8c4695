"""One end of a pair over groups that pair frames by order, as a process: ``group_pair MAKER ROLE [OFFER]``.

The receiver prints its offer, a line once it has read half of the frames, and a last one: every frame has arrived as it
was sent, or the pair is given up.  The sender prints a line once all left.  MAKER is ``nccl`` or ``ordered-gloo``; ROLE
``receive``, ``send``, or ``send-half``, whose last frames never leave.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from dataclasses import asdict
from typing import Any

from stratos.common.errors import StratosError
from stratos.core.kv import KvRange
from stratos.core.requests.records import RequestKey
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.groups.nccl import NcclGroups
from stratos.kv_transfer.groups.ordered import ordered_ends
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.settings import GlooConfig, NcclConfig, StagingConfig
from stratos.kv_transfer.transfer import FrameHeader, TransportOffer
from tests.support.kv.memory_pages import MemoryPages
from tests.support.kv.ordered_gloo import OrderedGloo

SIZES = (1, 4097, 1 << 20, 3 << 20)
STAGING = StagingConfig(slot_bytes=max(SIZES), slots_per_pair=len(SIZES))
TIMEOUT_S = float(os.environ.get("PAIR_TIMEOUT_S", "60"))
LEG = "leg-1"
NUM_HALF = len(SIZES) // 2


def frames() -> list[tuple[FrameHeader, bytes]]:
    payloads = [random.Random(seq).randbytes(size) for seq, size in enumerate(SIZES)]
    return [
        (
            FrameHeader(
                leg=LEG, seq=seq, kv_range=KvRange(seq, seq + 1, 0, 1), head_begin=0, head_end=1,
                num_bytes=len(payload), checksum=checksum(payload), slot=seq, pair_seq=seq,
            ),
            payload,
        )
        for seq, payload in enumerate(payloads)
    ]  # fmt: skip


async def receive(config: Any, maker: Any) -> None:
    pages = MemoryPages()
    port = LocalPort({maker.name: PortTransport(make=lambda: ordered_ends(STAGING, config, maker))}, pages)
    receiver = StagingSlots(maker.name, "inc-d", STAGING, port)
    offer = await receiver.open_pair("inc-p")
    slots: list[int] = []
    while len(slots) < len(SIZES):
        slots += receiver.allocate_slots(offer.pair, len(SIZES), leg=LEG)
    print(json.dumps(asdict(offer)), flush=True)
    for header, _ in frames():
        receiver.announce_frame(offer.pair, header)
    try:
        for header, payload in frames():
            await receiver.wait_arrived(offer.pair, LEG, header.seq, timeout_s=TIMEOUT_S)
            key = RequestKey(LEG, header.seq)
            assert await port.receive(offer.pair, key, header) == header.checksum
            assert pages.written[key] == payload
            if len(pages.written) == NUM_HALF:
                print("half of the frames are read", flush=True)
        said = "all frames are right"
    except (StratosError, TimeoutError) as error:
        said = f"the pair is lost after {len(pages.written)} frames: {type(error).__name__}"
    await receiver.close()
    await port.close()
    print(said, flush=True)


async def send(config: Any, maker: Any, offer: TransportOffer, num_frames: int) -> None:
    pair = await ordered_ends(STAGING, config, maker).connect(offer)
    for header, payload in frames()[:num_frames]:
        await pair.send(header, payload)
    print("all frames have left", flush=True)
    sys.stdin.readline()  # a group ends with its first end: not before the other one has everything
    await pair.close()


def main() -> None:
    name, role = sys.argv[1:3]
    is_nccl = name == NcclGroups.name
    config = NcclConfig(timeout_s=TIMEOUT_S) if is_nccl else GlooConfig(timeout_s=TIMEOUT_S)
    maker = NcclGroups(config) if isinstance(config, NcclConfig) else OrderedGloo(config)
    if role == "receive":
        asyncio.run(receive(config, maker))
    else:
        num_frames = NUM_HALF if role == "send-half" else len(SIZES)
        asyncio.run(send(config, maker, TransportOffer(**json.loads(sys.argv[3])), num_frames))


if __name__ == "__main__":
    main()
