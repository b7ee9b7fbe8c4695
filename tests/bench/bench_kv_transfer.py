"""Rate of each KV transport for frames of 1 MiB between two ends in one process; prints one line of JSON each.

    python -m pytest -m bench -s tests/bench/bench_kv_transfer.py

A frame counts from its announcement until it is complete in its slot: control messages and checksums are not in it.
Measured on 2 shared x86-64 cores, torch 2.13 CPU, 2 frames in flight (MB/s): inproc 31,000, shm 30,000 (one copy each,
of memory that fits the cache), gloo 2,400 over loopback. SHA-256 runs at 1,800, so the checksum is what
bounds shm. What tls costs against gloo is measured by scripts/bench/kv_tls.py.
"""

import asyncio
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import pytest

from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.identity import PeerRole
from stratos.core.kv import KvRange
from stratos.kv_transfer.framing import checksum
from stratos.kv_transfer.inproc import InprocHub
from stratos.kv_transfer.registry import TRANSPORTS, make_ends
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.kv_transfer.transfer import FrameArrived, FrameHeader, TransportOffer
from tests.support.servers.certificates import CertificateFolder

pytestmark = pytest.mark.bench

FRAME_BYTES = 1024 * 1024
NUM_FRAMES = 400
IN_FLIGHT = 2


@pytest.fixture
def shm_directory():
    with tempfile.TemporaryDirectory(prefix="stratos-bench-", dir="/dev/shm") as path:
        yield Path(path)


@pytest.mark.parametrize("name", TRANSPORTS)
async def test_rate_of_one_pair(name, shm_directory, tmp_path):
    staging, hub = StagingConfig(slot_bytes=FRAME_BYTES, slots_per_pair=8), InprocHub()
    settings = TransportConfig(shm_directory=shm_directory, staging=staging)
    tls = TlsContexts(CertificateFolder(tmp_path / "tls").files(PeerRole.DECODE_WORKER))
    ends = make_ends(name, settings, hub=hub, tls=tls)
    ring = await ends.open_ring("inc-p>inc-d#1")
    arrived = [asyncio.Event() for _ in range(IN_FLIGHT)]

    def note(event):
        assert isinstance(event, FrameArrived), event
        arrived[int(event.leg)].set()

    ring.start(note)
    offer = TransportOffer(
        transport=name, pair="inc-p>inc-d#1", address=ring.address, slot_bytes=FRAME_BYTES, num_slots=8
    )
    pair = await ends.connect(offer)
    payload = bytearray(os.urandom(FRAME_BYTES))

    async def lane(slot):
        for seq in range(NUM_FRAMES // IN_FLIGHT):
            header = FrameHeader(
                leg=str(slot), seq=seq, kv_range=KvRange(0, 1, 0, 1), head_begin=0, head_end=1,
                num_bytes=FRAME_BYTES, checksum=0, slot=slot,
            )  # fmt: skip
            if not ring.completes_on_sent:
                ring.announce_frame(header)
            await pair.send(header, payload)
            if not ring.completes_on_sent:
                await arrived[slot].wait()
                arrived[slot].clear()

    begin = time.perf_counter()
    await asyncio.gather(*(lane(slot) for slot in range(IN_FLIGHT)))
    elapsed_s = time.perf_counter() - begin
    await pair.close()
    if (closing := ring.close()) is not None:
        await closing
    await ends.close()
    _report(transport=name, mb_per_s=round(NUM_FRAMES * FRAME_BYTES / elapsed_s / 1e6))


def test_rate_of_the_checksum():
    payload = os.urandom(FRAME_BYTES)
    begin = time.perf_counter()
    for _ in range(100):
        checksum(payload)
    _report(checksum="sha256", mb_per_s=round(100 * FRAME_BYTES / (time.perf_counter() - begin) / 1e6))


def _report(**result):
    where = {"cpus": os.cpu_count(), "machine": platform.machine(), "frame_bytes": FRAME_BYTES, "in_flight": IN_FLIGHT}
    print(json.dumps({**result, **where}))
