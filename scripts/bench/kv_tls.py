#!/usr/bin/env python3
"""Measure what encryption costs when KV moves between hosts: the TLS transport against Gloo, which does not encrypt.

    python -m scripts.bench.kv_tls --out benchmarks/results/kv-tls-2core-cpu.json

Two processes on loopback, frames of 1 MiB, up to 8 of them on the way, rounds of both transports by turns.  A hand-off
is the KV of 1,024 tokens, of the shipped model in float32 (6 KiB per token) and of a Llama 3 8B in bfloat16 (128 KiB).
Its time runs from the first header to the last byte in its slot.  Control messages and checksums, which are the same
for both, are not in it.  CPU is that of both processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.bench.harness import flag, run_bench
from stratos.common.tls.contexts import TlsContexts
from stratos.common.tls.files import TlsFiles
from stratos.common.tls.identity import PeerRole
from stratos.core.kv import KvRange
from stratos.core.rules.quantile import percentile
from stratos.kv_transfer.registry import make_ends
from stratos.kv_transfer.settings import StagingConfig, TransportConfig
from stratos.kv_transfer.transfer import (
    FrameArrived,
    FrameHeader,
    PairSender,
    PortEvent,
    Ring,
    TransportEnds,
    TransportOffer,
)
from stratos.pki.local import make_certificates, tls_config

TRANSPORTS = ("gloo", "tls")
PAIR = "bench-p>bench-d#1"
FRAME_BYTES = 1024 * 1024
TOKEN_BYTES = {"shipped model, float32": 6 * 2 * 4 * 32 * 4, "Llama 3 8B, bfloat16": 32 * 2 * 8 * 128 * 2}
NUM_TOKENS = 1024
IN_FLIGHT = 8
NUM_SLOTS = 2 * IN_FLIGHT
SETTINGS = TransportConfig(staging=StagingConfig(slot_bytes=FRAME_BYTES, slots_per_pair=NUM_SLOTS))
TIMEOUT_S = 60.0


def contexts(folder: Path, role: PeerRole) -> TlsContexts:
    """Certificates of one end."""
    return TlsContexts(TlsFiles(tls_config(folder, role)))


def frame(leg: str, seq: int, slot: int) -> FrameHeader:
    """A header as both ends know it; checksums are not measured."""
    return FrameHeader(
        leg=leg, seq=seq, kv_range=KvRange(0, 1, 0, 1), head_begin=0, head_end=1,
        num_bytes=FRAME_BYTES, checksum=0, slot=slot,
    )  # fmt: skip


def cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def send_all(pair: PairSender, leg: str, num_frames: int, payload: bytearray) -> None:
    """Frames in order, several on the way at once."""
    room = asyncio.Semaphore(IN_FLIGHT)

    async def one(seq: int) -> None:
        try:
            await pair.send(frame(leg, seq, 0), payload)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for seq in range(num_frames):
            await room.acquire()
            group.create_task(one(seq))


async def run_sender(folder: Path) -> None:
    """The sending process: orders on stdin, its CPU seconds at the start and after each."""
    tls = contexts(folder, PeerRole.PREFILL_WORKER)
    ends = {name: make_ends(name, SETTINGS, tls=tls) for name in TRANSPORTS}
    pairs: dict[str, PairSender] = {}
    payload = bytearray(FRAME_BYTES)
    print(json.dumps({"cpu_s": cpu_s()}), flush=True)  # torch is imported: a rendezvous now takes its usual time
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "offer" in order:
            offer = TransportOffer(**order["offer"])
            pairs[offer.transport] = await ends[offer.transport].connect(offer)
        else:
            await send_all(pairs[order["transport"]], order["leg"], order["num_frames"], payload)
        print(json.dumps({"cpu_s": cpu_s()}), flush=True)
    for pair in pairs.values():
        await pair.close()


class Source:
    """The sending process, seen from here."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def order(self, **order: Any) -> float:
        """Give an order; returns the process' CPU seconds at its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> float:
        """Its CPU seconds, once it has done what it was started or ordered for."""
        assert self._process.stdout is not None
        return float(json.loads(await self._process.stdout.readline())["cpu_s"])


class Target:
    """The ring of one transport, and the frames that have arrived in it."""

    def __init__(self, transport: str, ends: TransportEnds, ring: Ring) -> None:
        self.transport, self._ends, self._ring = transport, ends, ring
        self._arrived: set[int] = set()
        self._changed = asyncio.Event()
        ring.start(self._note)

    @classmethod
    async def open(cls, transport: str, tls: TlsContexts) -> Target:
        """Make the ring."""
        ends = make_ends(transport, SETTINGS, tls=tls)
        return cls(transport, ends, await ends.open_ring(PAIR))

    @property
    def offer(self) -> TransportOffer:
        """For the source."""
        return TransportOffer(
            transport=self.transport,
            pair=PAIR,
            address=self._ring.address,
            slot_bytes=FRAME_BYTES,
            num_slots=NUM_SLOTS,
        )

    def announce(self, leg: str, seq: int) -> None:
        """Expect a frame in the slot of its turn."""
        self._ring.announce_frame(frame(leg, seq, seq % IN_FLIGHT))

    async def wait_arrived(self, seq: int) -> None:
        """Wait for a frame of the hand-off under way."""
        async with asyncio.timeout(TIMEOUT_S):
            while seq not in self._arrived:
                self._changed.clear()
                await self._changed.wait()
        self._arrived.discard(seq)

    async def close(self) -> None:
        """End the pair."""
        if (closing := self._ring.close()) is not None:
            await closing
        await self._ends.close()

    def _note(self, event: PortEvent) -> None:
        assert isinstance(event, FrameArrived), f"the pair broke: {event}"
        self._arrived.add(event.seq)
        self._changed.set()


async def hand_off(target: Target, source: Source, leg: str, num_frames: int) -> dict[str, float]:
    """One hand-off; returns its seconds and CPU seconds."""
    before = await source.order(transport=target.transport, leg=leg, num_frames=0)
    own, begin = cpu_s(), time.perf_counter()
    sending = asyncio.create_task(source.order(transport=target.transport, leg=leg, num_frames=num_frames))
    for seq in range(min(IN_FLIGHT, num_frames)):
        target.announce(leg, seq)
    for seq in range(num_frames):
        await target.wait_arrived(seq)
        if seq + IN_FLIGHT < num_frames:
            target.announce(leg, seq + IN_FLIGHT)
    took_s = time.perf_counter() - begin
    theirs = await sending - before
    return {"s": took_s, "cpu_s": theirs + cpu_s() - own}


async def measure(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Both transports by turns, for both models."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "scripts.bench.kv_tls",
        "--sender",
        str(folder),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    source, tls = Source(process), contexts(folder, PeerRole.DECODE_WORKER)
    await source.answer()
    targets = {}
    for name in TRANSPORTS:
        targets[name] = await Target.open(name, tls)
        await source.order(offer=asdict(targets[name].offer))
    results = []
    for model, token_bytes in TOKEN_BYTES.items():
        num_frames = NUM_TOKENS * token_bytes // FRAME_BYTES
        found: dict[str, list[dict[str, float]]] = {name: [] for name in TRANSPORTS}
        for number in range(rounds + 1):
            for name in TRANSPORTS:
                one = await hand_off(targets[name], source, f"{model}-{number}", num_frames)
                if number:  # the first round warms up
                    found[name].append(one)
        results += [summary(name, model, num_frames, runs) for name, runs in found.items()]
    for target in targets.values():
        await target.close()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()
    return results


def summary(transport: str, model: str, num_frames: int, runs: list[dict[str, float]]) -> dict[str, Any]:
    """Median, and the 90th percentile of the time."""
    num_bytes, times = num_frames * FRAME_BYTES, [run["s"] for run in runs]
    return {
        "transport": transport,
        "model": model,
        "mib": num_bytes // 2**20,
        "rounds": len(runs),
        "ms_p50": round(statistics.median(times) * 1e3, 2),
        "ms_p90": round(percentile(sorted(times), 90) * 1e3, 2),
        "mb_per_s": round(num_bytes / statistics.median(times) / 1e6),
        "cpu_ms": round(statistics.median(run["cpu_s"] for run in runs) * 1e3, 1),
    }


def bench(args: argparse.Namespace) -> dict[str, Any]:
    """Both transports by turns, in a folder of certificates."""
    with tempfile.TemporaryDirectory() as folder:
        make_certificates(Path(folder))
        return {"results": asyncio.run(measure(Path(folder), args.rounds))}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sender"]:
        asyncio.run(run_sender(Path(sys.argv[2])))
        sys.exit()
    run_bench(__doc__, bench, flag("--rounds", type=int, default=30))
