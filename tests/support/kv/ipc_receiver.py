"""The receiving process of exported memory: a pool of pages on a device, and orders as lines of JSON.

Run as ``ipc_receiver OPTIONS``; ``RemotePages`` is its other end.  With a GPU its memory is CUDA's, else files.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import torch

from tests.support.reference.triton_interpreter import DEVICE
from stratos.core.device.checksum import mixed_sum
from stratos.core.device.payload import DevicePayload, Payload
from stratos.core.kv import KvGeometry, KvRange
from stratos.core.requests.records import RequestKey
from stratos.engine.memory.kv_pages import KvPages
from stratos.engine.runner.cuda.device_facts import facts_of
from stratos.engine.runner.cuda.page_copies import PageCopies, bytes_at
from stratos.kv_transfer.device.cuda import CudaMemory
from stratos.kv_transfer.device.memory import DeviceMemory
from stratos.kv_transfer.device.receiver import CUDA_IPC, DeviceRings
from stratos.kv_transfer.device.sender import DeviceAttacher
from stratos.kv_transfer.port.local import LocalPort, PortTransport
from stratos.kv_transfer.port.receiving import StagingSlots
from stratos.kv_transfer.settings import StagingConfig
from stratos.kv_transfer.transfer import FrameHeader, PairSender, TransportEnds, TransportOffer
from tests.support.kv.segment_memory import SegmentMemory
from tests.support.servers.module_command import module_command

TIMEOUT_S = 60.0
LEG = "leg-1"


def memory_of(directory: Path) -> DeviceMemory:
    if DEVICE == "cpu":
        return SegmentMemory(directory.parent / "device")
    return CudaMemory(torch.cuda.current_device(), facts_of(torch.device("cuda")).uuid)


class RemotePages:
    """Sends frames into the pages of the other process, one at a time."""

    def __init__(self, process: asyncio.subprocess.Process, pair: PairSender, num_slots: int) -> None:
        self._process, self._pair, self._num_slots, self._seq = process, pair, num_slots, 0

    @classmethod
    @asynccontextmanager
    async def start(
        cls, directory: Path, geometry: KvGeometry, dtype: str, num_blocks: int, slot_bytes: int
    ) -> AsyncIterator[RemotePages]:
        """Start the process and map its slots; ``directory`` is made where it is not there."""
        options = {
            "directory": str(directory), "geometry": dataclasses.asdict(geometry), "dtype": dtype,
            "num_blocks": num_blocks, "slot_bytes": slot_bytes,
        }  # fmt: skip
        attacher = DeviceAttacher(directory, TIMEOUT_S, memory_of(directory))
        process = await asyncio.create_subprocess_exec(
            *module_command("tests.support.kv.ipc_receiver"), json.dumps(options),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        try:
            offer = TransportOffer(**await _answer(process))
            pair = await attacher.connect(offer)
            try:
                yield cls(process, pair, offer.num_slots)
            finally:
                await pair.close()
        finally:
            process.stdin.close()
            await process.wait()

    async def send(self, payload: DevicePayload, checksum: int, kv_range: KvRange) -> dict[str, Any]:
        """Copy a frame over and have it unpacked; the answer has seconds and the checksum of what was written."""
        slot, self._seq = self._seq % self._num_slots, self._seq + 1
        header = FrameHeader(
            leg=LEG, seq=self._seq, kv_range=kv_range, head_begin=0, head_end=1, num_bytes=payload.nbytes,
            checksum=checksum, slot=slot,
        )  # fmt: skip
        begin_s = time.perf_counter()
        await self._pair.send(header, payload)
        copied_s = time.perf_counter() - begin_s
        return {"copy_s": copied_s, **await self._ask(dataclasses.asdict(header))}

    async def digest(self, kv_range: KvRange) -> int:
        """Checksum of what is in the pages now, computed by the host."""
        return int((await self._ask({"digest": dataclasses.astuple(kv_range)}))["digest"])

    async def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await _answer(self._process)


async def _answer(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("the receiving process has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer


class _DevicePool:
    """Pages of which all are reserved for the one request."""

    has_device_pages = True

    def __init__(self, options: dict[str, Any]) -> None:
        geometry = KvGeometry(**options["geometry"])
        num_blocks, dtype = options["num_blocks"], getattr(torch, options["dtype"])
        self._pages = KvPages(geometry, num_blocks, dtype, torch.device(DEVICE))
        self._copies, self._table = PageCopies(self._pages), tuple(reversed(range(num_blocks)))

    async def gather(self, leg: str, kv_range: KvRange, *, on_device: bool) -> tuple[Payload, int | None]:
        raise NotImplementedError("this end only receives")

    async def scatter(self, key: RequestKey, kv_range: KvRange, payload: Payload) -> int | None:
        assert isinstance(payload, DevicePayload)
        return self._copies.unpack(self._table, kv_range, bytes_at(payload, torch.device(DEVICE)))

    def digest(self, kv_range: KvRange) -> int:
        return mixed_sum(self._pages.gather(self._table, kv_range))


class _ReceivingEnd:
    def __init__(self, options: dict[str, Any]) -> None:
        self._pool = _DevicePool(options)
        directory = Path(options["directory"])
        staging = StagingConfig(slot_bytes=options["slot_bytes"], slots_per_pair=4)

        def make() -> TransportEnds:
            rings = DeviceRings(staging, directory, TIMEOUT_S, memory_of(directory))
            attacher = DeviceAttacher(directory, TIMEOUT_S, memory_of(directory))
            return TransportEnds(open_ring=rings.open_ring, connect=attacher.connect, close=rings.close)

        self._port = LocalPort({CUDA_IPC: PortTransport(make=make, is_on_device=True)}, self._pool)
        self._slots = StagingSlots(CUDA_IPC, "inc-d", staging, self._port)

    async def offer(self) -> TransportOffer:
        offer = await self._slots.open_pair("inc-p")
        while self._slots.allocate_slots(offer.pair, 1, leg=LEG):
            pass
        return offer

    async def obey(self, pair: str, order: dict[str, Any]) -> dict[str, Any]:
        if "digest" in order:
            return {"digest": self._pool.digest(KvRange(*order["digest"]))}
        header = FrameHeader(**{**order, "kv_range": KvRange(**order["kv_range"])})
        self._slots.announce_frame(pair, header)
        self._slots.notify_sent(pair, LEG, header.seq)
        await self._slots.wait_arrived(pair, LEG, header.seq, timeout_s=TIMEOUT_S)
        begin_s = time.perf_counter()
        checksum = await self._port.receive(pair, RequestKey(LEG, 0), header)
        unpack_s = time.perf_counter() - begin_s
        self._slots.recycle_slot(pair, header.slot)
        return {"checksum": checksum, "unpack_s": unpack_s, "is_right": checksum == header.checksum}

    async def close(self) -> None:
        await self._slots.close()
        await self._port.close()


async def main() -> None:
    end = _ReceivingEnd(json.loads(sys.argv[1]))
    offer = await end.offer()
    print(json.dumps(dataclasses.asdict(offer)), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await end.obey(offer.pair, json.loads(line))), flush=True)
    await end.close()


if __name__ == "__main__":
    asyncio.run(main())
